"""The Ray instance that engines work in: found, joined or started, and ended by who started it."""

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

SECONDS_TO_ANSWER = 5.0
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""What opens a connection of gRPC, which Ray speaks: HTTP/2's preface and empty settings."""
SETTINGS = 4
"""The type of the frame that answers it."""

# Nothing is reported to Ray's makers; and no advice on accelerators, which Ray before 2.60 gives.
QUIETLY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def need_ray() -> None:
    """Ray must be installed.

    Example:
        >>> try:
        ...     need_ray()
        ... except MissingExtraError as error:
        ...     assert "pip install 'fedpbc[ray]'" in str(error)
    """
    found = find_spec("ray")
    # A folder that happens to be called so has no origin: Ray leaves /tmp/ray behind.
    if found is None or found.origin is None:
        raise MissingExtraError("the engine 'ray'", "ray")


def is_local(address: str) -> bool:
    """Whether an address means an instance of one's own.

    Example:
        >>> is_local("local"), is_local("10.0.0.1:6379")
        (True, False)
    """
    return address in ("", "local")


def check_address(address: str) -> None:
    """Something that may be Ray must answer; Ray itself would try for minutes, and say little.

    Example:
        >>> try:
        ...     check_address("somewhere")
        ... except InputError as error:
        ...     print(error)
        ray_address is 'somewhere', but should be host:port, 'auto', or ray://host:port
    """
    if is_local(address) or address == "auto" or "://" in address:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError("ray_address", address, "host:port, 'auto', or ray://host:port")
    try:
        with socket.create_connection((host, int(port)), SECONDS_TO_ANSWER) as line:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                line.sendall(HELLO)
                answer = line.recv(9)
                if len(answer) < 4 or answer[3] != SETTINGS:
                    raise ConnectionError("what answers there is not Ray")
    except (OSError, OverflowError) as error:
        raise unreachable(address, error) from None


def unreachable(address: str, error: BaseException) -> InputError:
    """One line on an address that does not work."""
    while error.__cause__ is not None:
        error = error.__cause__
    reason = one_line(error)
    if "AuthenticationError" in str(error):
        # Which token is meant for which cluster is not ours to guess.
        reason = "it wants a token: Ray looks for one if RAY_AUTH_MODE=token is set"
    right = f"the address of a running Ray cluster ({reason})"
    return InputError("ray_address", address, right)


class Instance:
    """Ray as one engine uses it; at most one instance a process, so engines may share it.

    Example:
        >>> Instance(workers=2, address="").address
        ''
    """

    _users = 0
    """How many engines use the instance that one of them started."""

    def __init__(self, workers: int, address: str) -> None:
        """Nothing is started yet.

        Args:
            workers: CPUs of an instance of one's own; 0: as many as there are cores.
            address: of a cluster; empty: an instance of one's own.
        """
        self.workers, self.address = workers, address
        self._used = False

    def join(self) -> None:
        """Be part of the instance; a user's own is used as it is."""
        import ray

        if not ray.is_initialized():
            start(self.workers, self.address)
            Instance._users = 0
        else:
            self._check_here(ray.get_runtime_context().gcs_address)
            if not Instance._users:
                return
        Instance._users += 1
        self._used = True

    def leave(self) -> None:
        """End the instance, if it was started here and nobody else uses it."""
        if not self._used:
            return
        self._used = False
        Instance._users -= 1
        if not Instance._users:
            end()

    def limit(self) -> int:
        """How many segments may run at once, as far as Ray itself does not see to it."""
        cpus = self.cpus()
        return self.workers if 0 < self.workers < cpus else 0

    def cpus(self) -> int:
        """How many the instance has; a cluster that grows by need may begin without any."""
        import ray

        return max(1, int(ray.cluster_resources().get("CPU", 0)))

    def _check_here(self, here: str) -> None:
        """A process is in one Ray instance at a time."""
        if is_local(self.address) or self.address == "auto":
            return
        host, _, port = self.address.removeprefix("ray://").rpartition(":")
        try:
            place = socket.gethostbyname(host)
        except OSError:
            place = host
        # Ray itself calls this machine by its address in the network.
        if f"{place}:{port}" != here and not (
            place.startswith("127.") and port == here.rpartition(":")[2]
        ):
            right = f"left out: this process already uses the Ray instance {here}"
            raise InputError("ray_address", self.address, right)


def start(workers: int, address: str) -> None:
    """Start Ray here, or join a cluster; quietly."""
    import ray

    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if is_local(address):
        # «local»: whatever else runs on this machine, and whatever the environment says.
        settings |= {"address": "local", "num_cpus": workers or usable_cores()}
        settings |= {"include_dashboard": False}
    else:
        check_address(address)
        settings |= {"address": address}
    try:
        with own_handlers(), environment(QUIETLY):
            ray.init(**settings)
            hush(True)
    except BaseException as error:
        # Processes may have been started before it went wrong, or before Ctrl-C.
        end()
        if not isinstance(error, Exception):
            raise
        if is_local(address):
            raise FedpbcError(f"Ray did not start: {one_line(error)}") from error
        raise unreachable(address, error) from error


def end() -> None:
    """End what :func:`start` began; a cluster is only left."""
    import ray

    ray.shutdown()
    hush(False)


def hush(quiet: bool) -> None:
    """Whether Ray keeps to itself when a worker process dies; whoever waits for it hears anyway.

    It would say so on standard output, and there is no public way to tell it not to. Where it has
    got another way since, it is merely less quiet.
    """
    with suppress(ImportError):
        from ray._private import worker

        worker._worker_logs_enabled = not quiet


@contextmanager
def own_handlers() -> Iterator[None]:
    """Keep what the program does on SIGTERM; Ray puts its own in place, which ends it in order."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    own = callable(before) or before == signal.SIG_IGN
    if own and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


@contextmanager
def environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Environment variables that processes started meanwhile get."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
