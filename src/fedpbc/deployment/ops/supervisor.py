"""A supervisor: keeps the processes of a machine running, and leaves none behind."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fedpbc.deployment.ops import sessions
from fedpbc.deployment.ops.sessions import end_sessions
from fedpbc.errors import FedpbcError, one_line

__all__ = ["Supervisor", "to_files", "to_output"]

LOG = logging.getLogger("fedpbc.deployment")
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
    quick_deaths: int = 0
    last_words: list[str] = field(default_factory=list)
    ending: int | None = None
    """The session of the one that has ended, while others are left in it."""

    def sessions(self) -> list[int]:
        """Where there may be processes of it."""
        now = None if self.process is None else self.process.pid
        return [session for session in (now, self.ending) if session is not None]

    def reap(self) -> None:
        """Take note of its end; nobody waits for ever for one that cannot be ended."""
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=1.0)


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
        self._say = say
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

    def say(self, name: str, line: bytes) -> None:
        """Pass a line on. One that cannot be, as on a full disk, is lost, and nothing else is."""
        with suppress(Exception):
            self._say(name, line)

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Run a command, and keep it running; in this process's environment, if none is given."""
        self.stop(name)
        with self._lock:
            if self._closed.is_set():
                return
            kept = _Kept(command, environment)
            self._begin(name, kept)
            self._kept[name] = kept

    def _begin(self, name: str, kept: _Kept) -> None:
        try:
            process = subprocess.Popen(
                list(kept.command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=None if kept.environment is None else dict(kept.environment),
                start_new_session=True,
            )
        except OSError as error:
            raise FedpbcError(f"{kept.command[0]} cannot be started: {error.strerror}") from None
        self._tell_guard("+", process.pid)
        assert process.stdout is not None
        arguments = (name, kept, process.stdout)
        try:
            threading.Thread(target=self._listen, args=arguments, daemon=True).start()
        except RuntimeError:
            # Nobody would read what it says, and it would stand still some day.
            process.kill()
            process.stdout.close()
            process.wait()
            self._tell_guard("-", process.pid)
            raise FedpbcError(f"{kept.command[0]} cannot be started: too many threads") from None
        kept.process, kept.began = process, time.monotonic()

    def _listen(self, name: str, kept: _Kept, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self.say(name, line)
                kept.last_words = [*kept.last_words[-9:], line.decode(errors="replace").rstrip()]

    def _tell_guard(self, sign: str, session: int) -> None:
        assert self._guard.stdin is not None
        # It is gone, or was told to end: ValueError.
        with suppress(OSError, ValueError):
            self._guard.stdin.write(f"{sign}{session}\n".encode())
            self._guard.stdin.flush()

    def _watch(self) -> None:
        while not self._closed.wait(0.1):
            with self._lock:
                kept = list(self._kept.items())
            for name, one in kept:
                try:
                    self._look_after(name, one)
                except Exception as error:
                    # A full process table, say, is no reason to leave the others alone.
                    said = error if isinstance(error, FedpbcError) else one_line(error)
                    one.due = time.monotonic() + one.delay
                    one.delay = min(2 * one.delay, LONGEST_DELAY)
                    self.say(name, f"{name}: {said}; again in a while\n".encode())

    def _look_after(self, name: str, kept: _Kept) -> None:
        now = time.monotonic()
        if now < kept.due:
            return
        with self._lock:
            if kept.process is not None and kept.process.poll() is not None:
                self._note_end(name, kept, kept.process)
        # Not in the lock: it may take a while.
        if kept.ending is not None:
            self._end_session(name, kept.ending)
            kept.ending = None
        with self._lock:
            wanted = self._kept.get(name) is kept and not self._closed.is_set()
            if wanted and kept.process is None and time.monotonic() >= kept.due:
                self._begin(name, kept)

    def _note_end(self, name: str, kept: _Kept, process: subprocess.Popen[bytes]) -> None:
        steady = time.monotonic() - kept.began > STEADY_SECONDS
        kept.delay = FIRST_DELAY if steady else min(2 * kept.delay, LONGEST_DELAY)
        kept.due = time.monotonic() + kept.delay
        kept.deaths += 1
        kept.quick_deaths = 0 if steady else kept.quick_deaths + 1
        # What it started itself is of no more use, and may hold a port.
        kept.process, kept.ending = None, process.pid
        how = f"{name} has ended ({process.returncode}); again in {kept.delay:.0f} s\n"
        self.say(name, how.encode())

    def _end_session(self, name: str, session: int, patience: float = 2.0) -> None:
        if end_sessions([session], patience):
            self._tell_guard("-", session)
        else:
            # The guard tries once more, at the end.
            self.say(name, f"{name}: a process of session {session} cannot be ended\n".encode())

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], patience: float
    ) -> tuple[bool, str]:
        """Run a command to its end, once; gives whether it went well in time, and what it said."""
        try:
            # Not into a pipe: what it starts may hold that open for longer than it lives.
            with tempfile.TemporaryFile() as output:
                process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                    start_new_session=True,
                )
                in_time = self._wait_for(process, Path(command[0]).name, patience)
                output.seek(0)
                said = output.read().decode(errors="replace")
        except OSError as error:
            return False, f"{command[0]} cannot be run: {error.strerror}"
        if not in_time:
            said += f"\nit was ended after {patience:g} s"
        return in_time and process.returncode == 0, said

    def _wait_for(self, process: subprocess.Popen[bytes], name: str, patience: float) -> bool:
        """Until its end, or the end of patience, which is its end, too; gives if it was in time."""
        self._tell_guard("+", process.pid)
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            return False
        finally:
            self._end_session(name, process.pid)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1.0)
        return True

    def stop(self, name: str) -> None:
        """End one, for good."""
        with self._lock:
            kept = self._kept.pop(name, None)
        if kept is not None:
            for session in kept.sessions():
                self._end_session(name, session, patience=10.0)
            kept.reap()

    def process(self, name: str) -> int | None:
        """The number of a process; None while it is being started again."""
        with self._lock:
            kept = self._kept.get(name)
            return None if kept is None or kept.process is None else kept.process.pid

    def deaths(self, name: str) -> int:
        """How often it has ended by itself."""
        with self._lock:
            return self._kept[name].deaths if name in self._kept else 0

    def quick_deaths(self, name: str) -> int:
        """How often in a row it has ended soon after its start."""
        with self._lock:
            return self._kept[name].quick_deaths if name in self._kept else 0

    def last_words(self, name: str) -> list[str]:
        """The last lines of its output."""
        with self._lock:
            return list(self._kept[name].last_words) if name in self._kept else []

    def close(self) -> None:
        """End everything, and wait until it has."""
        self._closed.set()
        self._thread.join()
        with self._lock:
            kept = list(self._kept.values())
            self._kept.clear()
        try:
            end_sessions([session for one in kept for session in one.sessions()])
            for one in kept:
                one.reap()
        finally:
            assert self._guard.stdin is not None
            with suppress(OSError):
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
