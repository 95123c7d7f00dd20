"""The socket between a client app and the trainer on the same device. Imports no torch."""

from __future__ import annotations

import logging
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedpbc.deployment.protocol.messages import (
    MessageError,
    Payload,
    read_payload,
    refusal,
    write_payload,
)
from fedpbc.errors import FedpbcError, InputError, one_line

__all__ = ["TrainerSocket", "check_socket", "request"]

LOG = logging.getLogger("fedpbc.deployment")
LONGEST_PATH = 100
"""Bytes of a Unix socket's path: at most 108 on Linux, a little less elsewhere."""


class TrainerSocket:
    """Handles payloads that arrive over a Unix socket, one at a time.

    Only processes of the same user can connect. A socket that an earlier process left is replaced.
    """

    def __init__(self, path: Path, handle: Callable[[Payload], Payload]) -> None:
        check_socket(path)
        self._path, self._handle = path, handle
        self._handling = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        remove_socket(path)
        # Not chmod afterwards: another user could connect in between.
        before = os.umask(0o177)
        try:
            self._socket.bind(str(path))
        except OSError as error:
            self._socket.close()
            expected = f"a path where a socket can be created ({error.strerror})"
            raise InputError("socket", str(path), expected) from None
        finally:
            os.umask(before)
        self._socket.listen()
        self._thread = threading.Thread(target=self._accept, name="trainer socket", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rwb") as stream:
                payload = read_payload(stream)
                with self._handling:
                    reply = self._reply(payload)
                write_payload(stream, reply)
        except (OSError, MessageError) as error:
            # The peer has gone, or is no client app. Closing the connection fails as well then.
            LOG.warning("connection lost: %s", one_line(error))

    def _reply(self, payload: Payload) -> Payload:
        try:
            return self._handle(payload)
        except FedpbcError as error:
            LOG.error("refused a message: %s", error)
            return refusal(str(error))
        except Exception as error:
            LOG.exception("failed to handle a message")
            return refusal(one_line(error))

    def __enter__(self) -> TrainerSocket:
        return self

    def __exit__(self, *_: object) -> None:
        # Wakes the accepting thread.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        remove_socket(self._path)
        self._thread.join(timeout=5)


def check_socket(path: Path) -> None:
    """Raise an InputError if no socket can be at this path, or something else is there."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise InputError("socket", str(path), f"at most {LONGEST_PATH} bytes long")
    try:
        mode = path.lstat().st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISSOCK(mode):
        raise InputError("socket", str(path), "a path where nothing is but an earlier socket")


def remove_socket(path: Path) -> None:
    """Remove a socket that an earlier process left, and nothing else."""
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()


def request(path: Path, payload: Payload, timeout: float = 0.0) -> Payload:
    """Send a payload to the trainer and return its reply; retry until the timeout.

    Retries are safe: a reply depends on the request alone. Nothing is sent to a process of another
    user.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(max(timeout, 1.0))
                connection.connect(str(path))
                if (user := peer_user(connection)) not in (None, 0, os.getuid()):
                    return refusal(f"{path} belongs to user {user}, not to user {os.getuid()}")
                with connection.makefile("rwb") as stream:
                    write_payload(stream, payload)
                    return read_payload(stream)
        except (OSError, MessageError) as error:
            if time.monotonic() + 0.2 >= deadline:
                return refusal(f"no trainer responds at {path}: {one_line(error)}")
        time.sleep(0.2)


def peer_user(connection: socket.socket) -> int | None:
    """The user id of the peer; None if the system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    # struct ucred: process, user, group; user ids may exceed 2^31.
    size = struct.calcsize("iII")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("iII", credentials)[1])
