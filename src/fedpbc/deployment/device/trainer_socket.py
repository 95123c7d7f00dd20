"""The socket between a client app and the trainer on the same device; no torch here."""

from __future__ import annotations

import logging
import os
import socket
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

__all__ = ["TrainerSocket", "ask", "check_socket"]

LOG = logging.getLogger("fedpbc.deployment")
LONGEST_PATH = 100
"""Unix sockets have short names: 108 bytes on Linux, a little less elsewhere."""


class TrainerSocket:
    """Answers parcels that come in over a Unix socket, one at a time.

    Only processes of the same user can reach it. What an earlier process left is taken away.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     place = Path(folder, "s")
        ...     refusal = Payload({"kind": "refusal", "reason": "closed"})
        ...     with TrainerSocket(place, lambda request: refusal):
        ...         ask(place, Payload({"kind": "hello"})).header["reason"]
        'closed'
    """

    def __init__(self, path: Path, handle: Callable[[Payload], Payload]) -> None:
        check_socket(path)
        self._path, self._handle = path, handle
        self._one_at_a_time = threading.Lock()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(FileNotFoundError):
            path.unlink()
        # Nobody else may connect, not even in the moment before a chmod.
        before = os.umask(0o177)
        try:
            self._listening.bind(str(path))
        except OSError as error:
            self._listening.close()
            right = f"a place where a socket can be made ({error.strerror})"
            raise InputError("socket", str(path), right) from None
        finally:
            os.umask(before)
        self._listening.listen()
        self._thread = threading.Thread(target=self._accept, name="desk", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rwb") as stream:
                parcel = read_payload(stream)
                with self._one_at_a_time:
                    reply = self._answer(parcel)
                write_payload(stream, reply)
        except (OSError, MessageError) as error:
            # Whoever asked has gone, or is no client app; it may ask again. Closing fails too then.
            LOG.warning("a message was lost on its way: %s", one_line(error))

    def _answer(self, parcel: Payload) -> Payload:
        try:
            return self._handle(parcel)
        except FedpbcError as error:
            LOG.error("refused: %s", error)
            return refusal(str(error))
        except Exception as error:
            LOG.exception("a message could not be answered")
            return refusal(one_line(error))

    def close(self) -> None:
        """Take no more messages."""
        # Wakes the thread that waits for one.
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._path.unlink(missing_ok=True)
        self._thread.join(timeout=5)

    def __enter__(self) -> TrainerSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_socket(path: Path) -> None:
    """An InputError unless a socket can have this name.

    Example:
        >>> check_socket(Path("trainer"))
    """
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise InputError("socket", str(path), f"at most {LONGEST_PATH} bytes long")


def ask(path: Path, parcel: Payload, patience: float = 0.0) -> Payload:
    """The trainer's answer; a trainer that is not there, or dies, is asked again for a while.

    Asking twice changes nothing: an answer is a function of the question. Another user's process
    is asked nothing.
    """
    until = time.monotonic() + patience
    while True:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(max(patience, 1.0))
                connection.connect(str(path))
                if (user := peer_user(connection)) not in (None, 0, os.getuid()):
                    return refusal(f"it is user {user} who answers at {path}, not {os.getuid()}")
                with connection.makefile("rwb") as stream:
                    write_payload(stream, parcel)
                    return read_payload(stream)
        except (OSError, MessageError) as error:
            if time.monotonic() + 0.2 >= until:
                return refusal(f"no trainer answers at {path}: {one_line(error)}")
        time.sleep(0.2)


def peer_user(connection: socket.socket) -> int | None:
    """The user at the other end; None where the system does not say.

    Example:
        >>> here, there = socket.socketpair()
        >>> with here, there:
        ...     peer_user(here) in (None, os.getuid())
        True
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    # struct ucred: process, user, group; a user may be above 2^31.
    size = struct.calcsize("iII")
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("iII", found)[1])
