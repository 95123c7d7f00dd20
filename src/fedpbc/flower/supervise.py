"""A supervisor: keeps the processes of a machine running, and leaves none behind."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fedpbc.errors import FedpbcError
from fedpbc.flower import sessions
from fedpbc.flower.sessions import end_sessions

__all__ = ["Supervisor", "to_files", "to_output"]

LOG = logging.getLogger("fedpbc.flower")
Say = Callable[[str, bytes], None]
FIRST_DELAY = 1.0
LONGEST_DELAY = 15.0
STEADY_SECONDS = 30.0
"""What ran for so long is started again at once, when it dies."""


@dataclass
class _Kept:
    """A process that is to run."""

    command: Sequence[str]
    environment: Mapping[str, str] | None
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    delay: float = FIRST_DELAY
    due: float = 0.0
    deaths: int = 0
    last_words: list[str] = field(default_factory=list)


class Supervisor:
    """Starts processes, each in a session of its own, and starts again what ends.

    However this process ends, killed included, a guard ends everything that it started.

    Example:
        >>> said = []
        >>> with Supervisor(lambda name, line: said.append(line)) as supervisor:
        ...     supervisor.start("echo", ["echo", "hello"])
        ...     while not said:
        ...         time.sleep(0.01)
        >>> said[0]
        b'hello\\n'
    """

    def __init__(self, say: Say) -> None:
        """Set up a supervisor of nothing; ``say`` takes a process's name and a line it wrote."""
        self.say = say
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.RLock()
        self._closed = threading.Event()
        # By its path, and isolated: it imports nothing, and nothing can be put in its way.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", sessions.__file__],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        self._thread.start()

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Run a command, and keep it running; in this process's environment, if none is given."""
        with self._lock:
            if self._closed.is_set():
                return
            self.stop(name)
            kept = self._kept[name] = _Kept(command, environment)
            self._begin(name, kept)

    def _begin(self, name: str, kept: _Kept) -> None:
        try:
            kept.process = subprocess.Popen(
                list(kept.command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=None if kept.environment is None else dict(kept.environment),
                start_new_session=True,
            )
        except OSError as error:
            raise FedpbcError(f"{kept.command[0]} cannot be started: {error.strerror}") from None
        kept.began = time.monotonic()
        self._tell_guard("+", kept.process.pid)
        stream = kept.process.stdout
        assert stream is not None
        threading.Thread(target=self._listen, args=(name, kept, stream), daemon=True).start()

    def _listen(self, name: str, kept: _Kept, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self.say(name, line)
                kept.last_words = [*kept.last_words[-9:], line.decode(errors="replace").rstrip()]

    def _tell_guard(self, sign: str, session: int) -> None:
        assert self._guard.stdin is not None
        with suppress(BrokenPipeError):
            self._guard.stdin.write(f"{sign}{session}\n".encode())
            self._guard.stdin.flush()

    def _watch(self) -> None:
        while not self._closed.wait(0.1):
            with self._lock:
                for name, kept in self._kept.items():
                    self._look_after(name, kept)

    def _look_after(self, name: str, kept: _Kept) -> None:
        now = time.monotonic()
        if kept.process is not None and kept.process.poll() is not None:
            code, session = kept.process.returncode, kept.process.pid
            kept.process = None
            kept.deaths += 1
            kept.delay = (
                FIRST_DELAY
                if now - kept.began > STEADY_SECONDS
                else min(2 * kept.delay, LONGEST_DELAY)
            )
            kept.due = now + kept.delay
            self.say(name, f"{name} has ended ({code}); again in {kept.delay:.0f} s\n".encode())
            # What it started itself is of no more use, and may hold a port.
            end_sessions([session], patience=2.0)
            self._tell_guard("-", session)
        if kept.process is None and now >= kept.due:
            self._begin(name, kept)

    def stop(self, name: str) -> None:
        """End one, for good."""
        with self._lock:
            kept = self._kept.pop(name, None)
        if kept is not None and kept.process is not None:
            end_sessions([kept.process.pid])
            kept.process.wait()
            self._tell_guard("-", kept.process.pid)

    def process(self, name: str) -> int | None:
        """The number of a process; None while it is being started again."""
        with self._lock:
            kept = self._kept.get(name)
            return None if kept is None or kept.process is None else kept.process.pid

    def deaths(self, name: str) -> int:
        """How often it has ended by itself."""
        with self._lock:
            return self._kept[name].deaths if name in self._kept else 0

    def last_words(self, name: str) -> list[str]:
        """The last lines of its output."""
        with self._lock:
            return list(self._kept[name].last_words) if name in self._kept else []

    def close(self) -> None:
        """End everything, and wait until it has."""
        self._closed.set()
        self._thread.join()
        with self._lock:
            running = [k.process for k in self._kept.values() if k.process is not None]
            self._kept.clear()
        end_sessions([process.pid for process in running])
        for process in running:
            process.wait()
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def to_output(name: str, line: bytes) -> None:
    """Onto our own output, for a journal: each line with whose it is."""
    os.write(1, f"[{name}] ".encode() + line)


def to_files(folder: Path) -> Say:
    """Into a folder: ``NAME.log``."""
    folder.mkdir(parents=True, exist_ok=True)

    def say(name: str, line: bytes) -> None:
        with (folder / f"{name}.log").open("ab") as file:
            file.write(line)

    return say
