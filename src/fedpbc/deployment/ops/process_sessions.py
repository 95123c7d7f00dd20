"""Find and end all processes of some sessions, so that a fleet leaves none behind.

Run as a program, this is the guard of a supervisor: it reads session numbers from its standard
input. When the input closes, because the supervisor has ended or was killed, it ends these
sessions. It imports nothing else of the package, to start fast and stay small.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

__all__ = ["end_sessions", "processes_in"]

KILL_SECONDS = 5.0
"""How long a killed process may take to disappear."""


def processes_in(sessions: Collection[int]) -> list[int]:
    """Return the live processes of these sessions."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            # The fields after the name, which may contain anything: state, parent, group, session.
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) in sessions and state not in "ZX":
                processes.append(int(entry.name))
    return processes


def end_sessions(sessions: Collection[int], timeout: float = 10.0) -> bool:
    """Terminate all processes of these sessions, and kill those that outlive the timeout.

    Returns whether all have ended: a process that hangs in the kernel, or belongs to another user,
    may not.
    """
    if not Path("/proc").is_dir():
        for session in sessions:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(session, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    signalled: set[int] = set()
    while remaining := processes_in(sessions):
        now = time.monotonic()
        if now > deadline + KILL_SECONDS:
            return False
        # Includes processes that were started meanwhile.
        new = [process for process in remaining if process not in signalled]
        signalled.update(new)
        _signal(new, signal.SIGTERM)
        # A stopped process would not handle the signal.
        _signal(new, signal.SIGCONT)
        if now > deadline:
            _signal(remaining, signal.SIGKILL)
        time.sleep(0.05)
    return True


def _signal(processes: Collection[int], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def guard() -> None:
    """Wait until the supervisor has ended, then end its sessions."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A signal to the whole terminal must not end the guard first.
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
