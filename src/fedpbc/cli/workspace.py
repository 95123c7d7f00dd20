"""The folder that a command works in, and the hint for when it is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpbc.cli.terminal import command, note_at_once

__all__ = [
    "begin_work",
    "forget_work",
    "free_folder",
    "interrupt_hint",
    "remember_work",
    "say_stopping",
    "stopping_shown",
]

STOPPING = "stopping… with a checkpoint of the round reached; once more ends it at once"

_hints: dict[Path, str] = {}
_stopping: dict[Path, str] = {}
_displays: list[Callable[[str], None]] = []


def begin_work(path: Path, hint: str | None = None, stopping: str = STOPPING) -> None:
    """Prepare for training in a folder; the hint says how to continue after an interrupt.

    ``stopping`` is shown while an interrupted command ends its work in order.
    """
    from fedpbc.engines.malloc import keep_freed_memory

    keep_freed_memory()
    remember_work(path, hint or f"{command('fedpbc', 'resume', path)} continues it")
    _stopping[path] = stopping


def remember_work(path: Path, hint: str) -> None:
    """Set the hint for an interrupt; it is shown if the path exists then."""
    forget_work()
    _hints[path] = hint


def forget_work() -> None:
    """Forget the folder of an earlier command in this process."""
    _hints.clear()
    _stopping.clear()


@contextmanager
def stopping_shown(show: Callable[[str], None]) -> Iterator[None]:
    """Inside this block a display shows that the command stops, instead of a line of its own."""
    _displays.append(show)
    try:
        yield
    finally:
        _displays.remove(show)


def say_stopping() -> None:
    """Say that work is being stopped, if there is any; called in a signal handler."""
    for path, line in _stopping.items():
        if path.exists():
            (_displays[-1] if _displays else note_at_once)(line)


def interrupt_hint() -> str:
    """What to do after an interrupt."""
    return next((hint for path, hint in _hints.items() if path.exists()), "nothing was written")


def free_folder(parent: Path, name: str) -> Path:
    """A path that does not exist yet: NAME, NAME-2, …"""
    path, k = parent / name, 2
    while path.exists():
        path, k = parent / f"{name}-{k}", k + 1
    return path
