"""SIGINT, SIGTERM and SIGHUP: each ends a command in order, as Ctrl-C does.

The command line handles them with :func:`handled`: the first raises :class:`Interrupted` in the
main thread, so that the run can write a checkpoint and stop its workers. A second one does not
wait for the workers. What was ignored when the process started (``nohup``, background jobs) stays
ignored. Worker processes leave all of it to the process that started them.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

__all__ = [
    "Interrupted",
    "arrived",
    "deferred",
    "end_at_once",
    "exit_code",
    "exit_quickly",
    "handled",
    "held_back",
    "interrupt_main",
    "leave_to_parent",
]

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
REPEAT_SECONDS = 1.0
"""One event may send several signals: a closed terminal, or ``timeout``, which signals a process
and its group."""

_received: list[tuple[signal.Signals, float]] = []
_on_first: list[Callable[[], None]] = []


class Interrupted(KeyboardInterrupt):
    """A signal asks the command to end.

    Attributes:
        number: the signal.
    """

    def __init__(self, number: signal.Signals) -> None:
        self.number = number
        super().__init__(number.name)


def arrived() -> bool:
    """Return whether a signal has asked this command to end."""
    return bool(_received)


def exit_code() -> int:
    """Return 128 + the number of the signal that came first; without one, of Ctrl-C."""
    return 128 + (_received[0][0] if _received else signal.SIGINT)


@contextmanager
def handled(on_first: Callable[[], None] | None = None) -> Iterator[None]:
    """Raise :class:`Interrupted` on a signal, inside this block.

    ``on_first`` is called when the first one arrives, in the signal handler: it must not raise.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread may set signal handlers.
        return
    _received.clear()
    _on_first[:] = [] if on_first is None else [on_first]
    before = _handlers()
    hook = sys.unraisablehook
    try:
        sys.unraisablehook = _raise_elsewhere(hook)
        for number in before:
            signal.signal(number, _interrupt)
        yield
    finally:
        _restore(before)
        sys.unraisablehook = hook


def _interrupt(number: int, frame: FrameType | None) -> None:
    now, name = time.monotonic(), signal.Signals(number)
    if _received:
        if now - _received[0][1] < REPEAT_SECONDS:
            return
        _kill_children()
    _received.append((name, now))
    while _on_first:
        _on_first.pop()()
    raise Interrupted(name)


def _kill_children() -> None:
    """End worker processes that the shutdown waits for; what they wrote can be resumed."""
    processes = sys.modules.get("multiprocessing")
    for child in processes.active_children() if processes is not None else ():
        child.kill()


def _raise_elsewhere(hook: Callable[[Any], object]) -> Callable[[Any], object]:
    """A finalizer cannot pass on an exception: then the signal is raised again, a moment later."""

    def unraisable(error: Any) -> None:
        if isinstance(error.exc_value, Interrupted) and _received:
            _received.pop()
            again = threading.Timer(0.01, _send_to_main, [error.exc_value.number])
            again.daemon = True
            again.start()
        else:
            hook(error)

    return unraisable


def interrupt_main() -> None:
    """From another thread: interrupt what the main thread does."""
    _send_to_main(signal.SIGINT)


def _send_to_main(number: signal.Signals) -> None:
    # A real signal where there are any: it also ends a wait for a lock.
    if hasattr(signal, "pthread_kill") and (ident := threading.main_thread().ident) is not None:
        signal.pthread_kill(ident, number)
    else:
        _thread.interrupt_main(number)


@contextmanager
def deferred() -> Iterator[threading.Event]:
    """Inside this block a signal sets an event instead, and is raised at its end.

    For a command that waits most of the time, and ends its processes in order. A second signal does
    not wait for that.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = _handlers()
    arrived: list[tuple[int, float]] = []

    def note(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if arrived and now - arrived[0][1] < REPEAT_SECONDS:
            return
        if arrived:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)
        arrived.append((number, now))
        stop.set()

    try:
        for number in before:
            signal.signal(number, note)
        yield stop
    finally:
        _restore(before)
        if arrived:
            signal.raise_signal(arrived[0][0])


@contextmanager
def held_back() -> Iterator[None]:
    """Hold signals back until the end of this block, also from processes started in it.

    These begin with the signals blocked, until they call :func:`leave_to_parent`: a signal to the
    whole group, such as Ctrl-C, must not end them before this process has handled it.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    arrived: list[int] = []
    before: dict[signal.Signals, Any] = {}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            # Other threads take the signals that this one blocks; Python calls the handler in this
            # one.
            if threading.current_thread() is threading.main_thread():
                for number, handler in _handlers().items():
                    before[number] = handler
                    signal.signal(number, lambda number, frame: arrived.append(number))
            yield
        finally:
            _restore(before)
    finally:
        # One that arrived meanwhile, by another thread, has raised: then this does the rest.
        _restore(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for each in dict.fromkeys(arrived):
            signal.raise_signal(each)


def _handlers() -> dict[signal.Signals, Any]:
    """The handlers that may be replaced: what is ignored stays so, None is not one of Python's."""
    current = {number: signal.getsignal(number) for number in SIGNALS}
    return {
        number: handler
        for number, handler in current.items()
        if handler not in (signal.SIG_IGN, None)
    }


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def exit_quickly(code: int) -> NoReturn:
    """End the process after what is registered with ``atexit``, without tearing modules down.

    With torch loaded that takes 0.6 s of processor time, for which nobody who pressed Ctrl-C on a
    busy machine wants to wait. Everything must be written by then, and no thread be needed.
    """
    for each in SIGNALS:
        signal.signal(each, _ignore)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # The terminal may be gone, and nothing can be said about it.
            stream.flush()
    os._exit(code)


def end_at_once() -> None:
    """While the interpreter ends, Ctrl-C ends it, without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing. With ``SIG_IGN``, Python complains of a signal that arrived just before."""


def leave_to_parent(stop: threading.Event | None = None) -> None:
    """In a worker process: ignore the signals, since the process that started it handles them.

    Once ``stop`` is set, a signal interrupts the work: :func:`interrupt_main` sends it.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if stop is not None and stop.is_set():
            # Once: a second Ctrl-C reaches the parent, which then does not wait.
            for each in SIGNALS:
                signal.signal(each, _ignore)
            raise Interrupted(signal.Signals(number))

    for number in SIGNALS:
        signal.signal(number, _ignore if stop is None else interrupt)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
