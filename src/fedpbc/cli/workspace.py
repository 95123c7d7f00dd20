"""The folder that a command works in, and the hint for when it is interrupted."""

from __future__ import annotations

from pathlib import Path

from fedpbc.cli.terminal import command

__all__ = ["begin_work", "forget_work", "free_folder", "interrupt_hint", "remember_work"]

_hints: dict[Path, str] = {}


def begin_work(path: Path, hint: str | None = None) -> None:
    """Prepare for training in a folder; the hint says how to continue after an interrupt."""
    from fedpbc.engines.malloc import keep_freed_memory

    keep_freed_memory()
    remember_work(path, hint or f"{command('fedpbc', 'resume', path)} continues it")


def remember_work(path: Path, hint: str) -> None:
    """Set the hint for an interrupt; it is shown if the path exists then."""
    _hints.clear()
    _hints[path] = hint


def forget_work() -> None:
    """Forget the folder of an earlier command in this process."""
    _hints.clear()


def interrupt_hint() -> str:
    """What to do after an interrupt."""
    return next((hint for path, hint in _hints.items() if path.exists()), "nothing was written")


def free_folder(parent: Path, name: str) -> Path:
    """A path that does not exist yet: NAME, NAME-2, …"""
    path, k = parent / name, 2
    while path.exists():
        path, k = parent / f"{name}-{k}", k + 1
    return path
