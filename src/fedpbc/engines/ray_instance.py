"""The Ray instance that engines use: joined or started, and stopped only if started here."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

from fedpbc.errors import FedpbcError, InputError, MissingExtraError, one_line
from fedpbc.parallel import usable_cores

__all__ = ["Instance", "check_address", "need_ray"]

CONNECT_TIMEOUT = 5.0
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""Opens a gRPC connection, which Ray uses: the HTTP/2 preface and empty settings."""
SETTINGS = 4
"""The type of the frame that a gRPC server answers with."""

# No usage statistics, and no warning about accelerators, which Ray before 2.60 prints.
QUIET_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


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
    """Raise if nothing answers there; Ray itself would retry for minutes and explain little."""
    if is_local(address) or address == "auto" or "://" in address:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError("ray_address", address, "host:port, 'auto', or ray://host:port")
    try:
        with socket.create_connection((host, int(port)), CONNECT_TIMEOUT) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                connection.sendall(HELLO)
                answer = connection.recv(9)
                if len(answer) < 4 or answer[3] != SETTINGS:
                    raise ConnectionError("the server there is not Ray")
    except (OSError, OverflowError) as error:
        raise unreachable(address, error) from None


def unreachable(address: str, error: BaseException) -> InputError:
    """Return the error for an address that does not work."""
    while error.__cause__ is not None:
        error = error.__cause__
    reason = one_line(error)
    if "AuthenticationError" in str(error):
        reason = "it requires a token: set RAY_AUTH_MODE=token, so that Ray looks for one"
    return InputError("ray_address", address, f"the address of a running Ray cluster ({reason})")


class Instance:
    """Ray as one engine uses it; a process has at most one instance, which engines share."""

    _users = 0
    """Number of engines that use the instance that one of them started."""

    def __init__(self, workers: int, address: str) -> None:
        # Starts nothing yet. 0 workers: one per core; no address: a new instance on this machine.
        self.workers, self.address = workers, address
        self._used = False

    def join(self) -> None:
        """Join the instance, or start one; an instance that the user started is used as it is."""
        import ray

        if not ray.is_initialized():
            start(self.workers, self.address)
            Instance._users = 0
        else:
            self._check_same(ray.get_runtime_context().gcs_address)
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

    def limit(self) -> int:
        """Return how many segments may run at once; 0 if Ray's CPUs are the limit."""
        cpus = self.cpus()
        return self.workers if 0 < self.workers < cpus else 0

    def cpus(self) -> int:
        """Return the number of CPUs, at least 1: an autoscaling cluster may start without."""
        import ray

        return max(1, int(ray.cluster_resources().get("CPU", 0)))

    def _check_same(self, current: str) -> None:
        """Raise if this process already uses another Ray instance."""
        if is_local(self.address) or self.address == "auto":
            return
        host, _, port = self.address.removeprefix("ray://").rpartition(":")
        try:
            ip = socket.gethostbyname(host)
        except OSError:
            ip = host
        # Ray names this machine by its network address, not by 127.0.0.1.
        if f"{ip}:{port}" != current and not (
            ip.startswith("127.") and port == current.rpartition(":")[2]
        ):
            expected = f"left out: this process already uses the Ray instance {current}"
            raise InputError("ray_address", self.address, expected)


def start(workers: int, address: str) -> None:
    """Start Ray on this machine, or join a cluster, without output."""
    import ray

    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if is_local(address):
        # "local": a new instance, whatever else runs here or the environment says.
        settings |= {"num_cpus": workers or usable_cores(), "include_dashboard": False}
        address = "local"
    else:
        check_address(address)
    try:
        with keep_sigterm_handler(), environment(QUIET_ENVIRONMENT):
            ray.init(address, **settings)
            silence(True)
    except BaseException as error:
        # Processes may have been started before the error, or before Ctrl-C.
        stop()
        if not isinstance(error, Exception):
            raise
        if is_local(address):
            raise FedpbcError(f"Ray did not start: {one_line(error)}") from error
        raise unreachable(address, error) from error


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
