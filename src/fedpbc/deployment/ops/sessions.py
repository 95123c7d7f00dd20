"""All processes of some sessions, and their end: nothing that a fleet started may stay behind.

Run as a program this is the guard of a supervisor: it reads session numbers from its input, and
when that ends, because the supervisor has ended in whatever way, it ends those sessions. It
imports nothing of the package, so that it starts at once and stays small.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

__all__ = ["end_sessions", "members"]

KILL_SECONDS = 5.0
"""How long a killed process may take."""


def members(sessions: Collection[int]) -> list[int]:
    """The processes of these sessions that are still there.

    Example:
        >>> os.getpid() in members([os.getsid(0)])
        True
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            # After the name, which may hold anything: state, parent, group, session.
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) in sessions and state not in "ZX":
                found.append(int(entry.name))
    return found


def end_sessions(sessions: Collection[int], patience: float = 10.0) -> bool:
    """Ask all processes of these sessions to end; kill those that do not in time.

    Gives whether all have ended: one that hangs in the kernel, or is another user's, may not.
    """
    _signal_groups(sessions, signal.SIGTERM)
    until = time.monotonic() + patience
    asked: set[int] = set()
    while left := members(sessions):
        now = time.monotonic()
        if now > until + KILL_SECONDS:
            return False
        # Those, too, that were started while others were asked.
        new = [process for process in left if process not in asked]
        asked.update(new)
        _signal(new, signal.SIGTERM)
        # One that was stopped would hear nothing.
        _signal(new, signal.SIGCONT)
        if now > until:
            _signal(left, signal.SIGKILL)
        time.sleep(0.05)
    return True


def _signal(processes: Collection[int], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def _signal_groups(sessions: Collection[int], number: int) -> None:
    """All that can be done where there is no /proc."""
    if not Path("/proc").is_dir():
        for session in sessions:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(session, number)


def guard() -> None:
    """Wait for the supervisor's end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Whatever ends a whole terminal must not end this one first.
        signal.signal(number, signal.SIG_IGN)
    sessions: set[int] = set()
    for line in sys.stdin:
        sign, session = line[0], int(line[1:])
        if sign == "+":
            sessions.add(session)
        else:
            sessions.discard(session)
    end_sessions(sessions)


if __name__ == "__main__":
    guard()
