"""The Ray instance that engines use: joined or started, and stopped only if started here."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedpbc.engines import ray_probe
from fedpbc.errors import FedpbcError, InputError, MissingExtraError, one_line
from fedpbc.parallel import usable_cores

__all__ = ["Instance", "check_address", "need_ray"]

PROBE_SECONDS = 120.0
"""At most, for a process that joins a cluster: on a busy machine, importing Ray takes a while."""

# No usage statistics, and no warning about accelerators, which Ray before 2.60 prints.
QUIET_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
# Of a process that joins a cluster: otherwise Ray writes to its terminal when a node is lost.
QUIET_DRIVER = {"RAY_BACKEND_LOG_LEVEL": "fatal"}


def need_ray() -> None:
    """Raise if Ray is not installed."""
    spec = find_spec("ray")
    # A plain folder of that name has no origin: Ray leaves /tmp/ray behind.
    if spec is None or spec.origin is None:
        raise MissingExtraError("the engine 'ray'", "ray")


def is_local(address: str) -> bool:
    """Return whether an address means a new instance on this machine."""
    return address in ("", "local")


def check_address(address: str) -> None:
    """Raise unless a cluster can be joined there, within seconds, before a run writes anything.

    An address that worked once is not tried again by this process.
    """
    if is_local(address):
        return
    host, _, port = address.removeprefix(ray_probe.CLIENT).rpartition(":")
    named = host and port.isdecimal() and "://" not in host
    if address != "auto" and not named and not re.fullmatch(r"ray://[^:/]+", address):
        raise InputError("ray_address", address, "host:port, 'auto', or ray://host:port")
    current = current_instance()
    if current is None:
        try_to_join(address)
    else:
        check_same(address, current)


def current_instance() -> str | None:
    """Return the address of the Ray instance that this process uses already, if any."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    return str(ray.get_runtime_context().gcs_address)


@cache
def try_to_join(address: str) -> None:
    """Join and leave the cluster in another process: Ray itself would retry for minutes."""
    # Not below its folder, where "ray" is another module.
    command = [sys.executable, "-P", ray_probe.__file__, address]
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **QUIET_ENVIRONMENT},
            timeout=PROBE_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise unreachable(address, one_line(error)) from None
    if ended.returncode == 0:
        return
    lines = ended.stdout.decode(errors="replace").strip().splitlines()
    raise unreachable(address, lines[-1] if lines else "it does not answer in time")


def unreachable(address: str, reason: str) -> InputError:
    """Return the error for an address that does not work."""
    if "AuthenticationError" in reason:
        reason = "it requires a token: set RAY_AUTH_MODE=token, so that Ray looks for one"
    return InputError("ray_address", address, f"the address of a running Ray cluster ({reason})")


class Instance:
    """Ray as one engine uses it; a process has at most one instance, which engines share."""

    _users = 0
    """Number of engines that use the instance that one of them started."""

    def __init__(self, workers: int, address: str, *, most: int) -> None:
        # Starts nothing yet. 0 workers: one per core; no address: a new instance on this machine,
        # with at most so many CPUs.
        self.workers, self.address, self.most = workers, address, most
        self._used = False

    def join(self) -> None:
        """Join the instance, or start one; an instance that the user started is used as it is."""
        current = current_instance()
        if current is None:
            # Ray starts a process per CPU: no more than can be busy.
            start(min(self.workers or usable_cores(), self.most), self.address)
            Instance._users = 0
        else:
            check_same(self.address, current)
            if not Instance._users:
                return
        Instance._users += 1
        self._used = True

    def leave(self) -> None:
        """Stop the instance if it was started here and no other engine uses it."""
        if not self._used:
            return
        self._used = False
        Instance._users -= 1
        if not Instance._users:
            stop()

    def limit(self, cpus: int) -> int:
        """Return how many segments may run at once; 0 if Ray's CPUs are the limit."""
        # A cluster may grow; an instance that was started for this engine does not.
        fixed = self._used and is_local(self.address)
        return 0 if fixed and self.workers >= cpus else self.workers


def check_same(address: str, current: str) -> None:
    """Raise if this process already uses another Ray instance."""
    if is_local(address) or address == "auto":
        return
    host, _, port = address.removeprefix(ray_probe.CLIENT).rpartition(":")
    try:
        ip = socket.gethostbyname(host)
    except (OSError, UnicodeError):
        ip = host
    # Ray names this machine by its network address, not by 127.0.0.1.
    if f"{ip}:{port}" != current and not (
        ip.startswith("127.") and port == current.rpartition(":")[2]
    ):
        expected = f"left out: this process already uses the Ray instance {current}"
        raise InputError("ray_address", address, expected)


def start(cpus: int, address: str) -> None:
    """Start Ray on this machine with so many CPUs, or join a cluster, without output."""
    import ray

    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    quiet = QUIET_ENVIRONMENT | QUIET_DRIVER
    terminal: AbstractContextManager[None] = no_standard_error()
    if is_local(address):
        # "local": a new instance, whatever else runs here or the environment says.
        settings |= {"num_cpus": cpus, "include_dashboard": False}
        address, quiet, terminal = "local", QUIET_ENVIRONMENT, nullcontext()
    try:
        with keep_sigterm_handler(), environment(quiet), terminal:
            ray.init(address, **settings)
            silence(True)
    except BaseException as error:
        # Processes may have been started before the error, or before Ctrl-C.
        stop()
        if not isinstance(error, Exception):
            raise
        if is_local(address):
            raise FedpbcError(f"Ray did not start: {one_line(error)}") from error
        raise unreachable(address, one_line(root_cause(error))) from error


def root_cause(error: BaseException) -> BaseException:
    """Return the error that an error was raised from."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def stop() -> None:
    """Stop the instance that :func:`start` started, or leave the cluster."""
    import ray

    ray.shutdown()
    silence(False)


def silence(quiet: bool) -> None:
    """Set whether Ray prints to standard output when a worker process dies.

    The engine handles these errors itself. Ray has no public option for this; if a later version
    lacks the private one, the messages are printed.
    """
    with suppress(ImportError):
        from ray._private import worker

        worker._worker_logs_enabled = not quiet


@contextmanager
def keep_sigterm_handler() -> Iterator[None]:
    """Restore the program's SIGTERM handler, which Ray replaces."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    custom = callable(before) or before == signal.SIG_IGN
    if custom and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


@contextmanager
def no_standard_error() -> Iterator[None]:
    """Discard what native code writes: Ray reports that its log level was set, at any level."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes started meanwhile, and restore them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
