"""Keep a set of processes running, and leave none behind."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fedpbc.deployment.log_lines import LONGEST_LINE, cleaned
from fedpbc.deployment.ops import process_sessions
from fedpbc.deployment.ops.process_sessions import end_sessions
from fedpbc.errors import FedpbcError, one_line

__all__ = ["Service", "Supervisor", "User", "end_of_output", "log_to_files", "log_to_stdout"]

OnLine = Callable[[str, bytes], None]
"""Receives a process's name and a line of its output."""
FIRST_DELAY = 1.0
LONGEST_DELAY = 15.0
STEADY_SECONDS = 30.0
"""The delay before a restart is reset for a process that ran this long."""


@dataclass(frozen=True)
class User:
    """As whom a process runs: the ids of a user and a group; it also has the user's other groups.

    Example:
        >>> User(0, 0).account().pw_name
        'root'
    """

    number: int
    group: int

    def account(self) -> pwd.struct_passwd:
        """The user's entry in the system's table."""
        return pwd.getpwuid(self.number)


@dataclass
class Service:
    """A command that is kept running.

    Attributes:
        user: as whom it runs, if not as this process's user.
        exits: how often it has ended by itself.
        exit_code: that of its last end.
        quick_exits: how often in a row it has ended soon after its start.
        last_output: its last lines.
        old_session: that of a process that has ended, while others may be left in it.
    """

    command: Sequence[str]
    environment: Mapping[str, str] | None = None
    user: User | None = None
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    delay: float = FIRST_DELAY
    due: float = 0.0
    exits: int = 0
    exit_code: int | None = None
    quick_exits: int = 0
    last_output: list[str] = field(default_factory=list)
    old_session: int | None = None

    @property
    def pid(self) -> int | None:
        """The process's id; None while it is waiting to be restarted."""
        process = self.process
        return None if process is None else process.pid

    def sessions(self) -> list[int]:
        """Return the sessions in which it may have processes."""
        return [session for session in (self.pid, self.old_session) if session is not None]

    def back_off(self) -> None:
        """Double the delay before the next start."""
        self.delay = min(2 * self.delay, LONGEST_DELAY)


class Supervisor:
    """Starts processes, each in its own session, and restarts those that end.

    However this process ends, even if it is killed, a guard process ends everything it started.
    """

    def __init__(self, on_line: OnLine, stopped: threading.Event | None = None) -> None:
        """Create a supervisor without processes; ``on_line`` receives their output.

        Once ``stopped`` is set, no command is waited for.
        """
        self._on_line = on_line
        self._stopped = stopped or threading.Event()
        self._services: dict[str, Service] = {}
        self._lock = threading.RLock()
        self._closed = threading.Event()
        # By its path and isolated, so that it imports nothing and nothing can shadow it.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", process_sessions.__file__],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        self._thread.start()

    def log(self, name: str, line: bytes) -> None:
        """Pass on a line of output; it is dropped if that fails, as on a full disk."""
        with suppress(Exception):
            self._on_line(name, line)

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        user: User | None = None,
    ) -> None:
        """Run a command and keep it running, by default in this process's environment.

        ``user``: as whom it runs, which only root may choose.
        """
        self.stop(name)
        with self._lock:
            if self._closed.is_set():
                return
            service = Service(command, environment, user)
            self._spawn(name, service)
            self._services[name] = service

    def _spawn(self, name: str, service: Service) -> None:
        program = service.command[0]
        try:
            process = _popen(service.command, service.environment, subprocess.PIPE, service.user)
        except OSError as error:
            raise FedpbcError(f"{program} cannot be started: {error.strerror}") from None
        self._tell_guard("+", process.pid)
        assert process.stdout is not None
        arguments = (name, service, process.stdout)
        try:
            threading.Thread(target=self._read_output, args=arguments, daemon=True).start()
        except RuntimeError:
            # With nobody to read its output, it would block on a full pipe.
            process.kill()
            process.stdout.close()
            process.wait()
            self._tell_guard("-", process.pid)
            raise FedpbcError(f"{program} cannot be started: too many threads") from None
        service.process, service.started_at = process, time.monotonic()

    def _read_output(self, name: str, service: Service, stream: IO[bytes]) -> None:
        with stream:
            while line := stream.readline(LONGEST_LINE):
                line = cleaned(line)
                self.log(name, line)
                service.last_output = [*service.last_output[-9:], line.decode().rstrip()]

    def _tell_guard(self, sign: str, session: int) -> None:
        assert self._guard.stdin is not None
        # OSError: the guard has ended. ValueError: its input is closed.
        with suppress(OSError, ValueError):
            self._guard.stdin.write(f"{sign}{session}\n".encode())
            self._guard.stdin.flush()

    def _watch(self) -> None:
        while not self._closed.wait(0.1):
            with self._lock:
                services = list(self._services.items())
            for name, service in services:
                try:
                    self._check(name, service)
                except Exception as error:
                    # For example a full process table; the other processes are still supervised.
                    reason = error if isinstance(error, FedpbcError) else one_line(error)
                    service.due = time.monotonic() + service.delay
                    service.back_off()
                    self.log(name, f"{name}: {reason}; retrying\n".encode())

    def _check(self, name: str, service: Service) -> None:
        if time.monotonic() < service.due:
            return
        with self._lock:
            if service.process is not None and service.process.poll() is not None:
                self._record_exit(name, service, service.process)
        # Not in the lock: this may take a while.
        if service.old_session is not None:
            self._end_session(name, service.old_session)
            service.old_session = None
        with self._lock:
            is_active = self._services.get(name) is service and not self._closed.is_set()
            if is_active and service.process is None and time.monotonic() >= service.due:
                self._spawn(name, service)

    def _record_exit(self, name: str, service: Service, process: subprocess.Popen[bytes]) -> None:
        now = time.monotonic()
        service.exit_code = process.returncode
        service.exits += 1
        if now - service.started_at > STEADY_SECONDS:
            service.quick_exits, service.delay = 0, FIRST_DELAY
        else:
            service.quick_exits += 1
            service.back_off()
        service.due = now + service.delay
        # What it started itself is useless now, and may hold a port.
        service.process, service.old_session = None, process.pid
        text = f"{name} exited with code {process.returncode}; restart in {service.delay:.0f} s\n"
        self.log(name, text.encode())

    def _end_session(self, name: str, session: int, timeout: float = 2.0) -> None:
        if end_sessions([session], timeout):
            self._tell_guard("-", session)
        else:
            # The guard tries again at the end.
            self.log(name, f"{name}: a process of session {session} cannot be ended\n".encode())

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], timeout: float
    ) -> tuple[bool, str]:
        """Run a command once; returns whether it succeeded in time, and its output."""
        try:
            # Not a pipe: processes that the command starts may hold it open after the command.
            with tempfile.TemporaryFile() as file:
                process = _popen(command, environment, file)
                in_time = self._wait_for(process, Path(command[0]).name, timeout)
                file.seek(0)
                output = file.read().decode(errors="replace")
        except OSError as error:
            return False, f"{command[0]} cannot be run: {error.strerror}"
        if not in_time:
            output += f"\ntimed out after {timeout:g} s"
        return in_time and process.returncode == 0, output

    def _wait_for(self, process: subprocess.Popen[bytes], name: str, timeout: float) -> bool:
        """Wait for a process, or end it after the timeout; returns whether it was in time."""
        self._tell_guard("+", process.pid)
        deadline = time.monotonic() + timeout
        try:
            while process.poll() is None:
                if time.monotonic() > deadline or self._stopped.wait(0.05):
                    return False
        finally:
            self._end_session(name, process.pid)
            _reap(process)
        return True

    def stop(self, name: str) -> None:
        """End a process and do not restart it."""
        with self._lock:
            service = self._services.pop(name, None)
        if service is not None:
            for session in service.sessions():
                self._end_session(name, session, timeout=10.0)
            _reap(service.process)

    def service(self, name: str) -> Service:
        """Return a process's state; that of one that was never started if the name is unknown."""
        with self._lock:
            return self._services.get(name) or Service([])

    def close(self) -> None:
        """End all processes and wait until they are gone."""
        self._closed.set()
        self._thread.join()
        with self._lock:
            services = list(self._services.values())
            self._services.clear()
        try:
            end_sessions([session for service in services for session in service.sessions()])
            for service in services:
                _reap(service.process)
        finally:
            assert self._guard.stdin is not None
            with suppress(OSError):
                self._guard.stdin.close()
            self._guard.wait()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _popen(
    command: Sequence[str],
    environment: Mapping[str, str] | None,
    output: int | IO[bytes],
    user: User | None = None,
) -> subprocess.Popen[bytes]:
    identity: dict[str, Any] = {}
    if user is not None:
        account = user.account()
        # Caches and settings are looked for in the user's own home.
        user_environment = {
            "HOME": account.pw_dir,
            "USER": account.pw_name,
            "LOGNAME": account.pw_name,
        }
        environment = {**(os.environ if environment is None else environment), **user_environment}
        groups = os.getgrouplist(account.pw_name, account.pw_gid)
        identity = {"user": user.number, "group": user.group, "extra_groups": groups}
    return subprocess.Popen(
        list(command),
        **identity,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=None if environment is None else dict(environment),
        start_new_session=True,
        # Models, states and databases are nobody else's business.
        umask=0o077,
    )


def _reap(process: subprocess.Popen[bytes] | None) -> None:
    """Collect its exit status; without waiting long for a process that cannot be ended."""
    if process is not None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1.0)


def end_of_output(text: str) -> str:
    """Return the end of a process's output on one line.

    Example:
        >>> end_of_output("a\\nb"), end_of_output("")
        ('a b', 'no output')
    """
    return " ".join(text.split())[-300:] or "no output"


def log_to_stdout(name: str, line: bytes) -> None:
    """Write a line to standard output, prefixed with the process's name."""
    os.write(1, f"[{name}] ".encode() + line)


def log_to_files(folder: Path) -> OnLine:
    """Return a function that appends each process's output to ``NAME.log``."""
    folder.mkdir(parents=True, exist_ok=True)

    def append(name: str, line: bytes) -> None:
        with (folder / f"{name}.log").open("ab") as file:
            file.write(line)

    return append
