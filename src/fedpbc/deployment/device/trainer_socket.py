"""The socket between the node and the trainer on the same device. Imports no torch."""

from __future__ import annotations

import logging
import os
import socket
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
from fedpbc.deployment.sockets import bound_socket, peer_user, remove_socket
from fedpbc.errors import FedpbcError, explained, one_line

__all__ = ["TrainerSocket", "request"]

LOG = logging.getLogger("fedpbc.deployment")


class TrainerSocket:
    """Handles payloads that arrive over a Unix socket, one at a time.

    Only processes of the same user can connect; with ``for_group``, also those of its group. A
    socket that an earlier process left is replaced.
    """

    def __init__(
        self, path: Path, handle: Callable[[Payload], Payload], *, for_group: bool = False
    ) -> None:
        self._path, self._handle, self._problem = path, handle, ""
        self._handling = threading.Lock()
        self._socket = bound_socket(path, for_group=for_group)
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
            # The peer has gone, or is no node. Closing the connection fails as well then.
            LOG.warning("connection lost: %s", one_line(error))

    def _reply(self, payload: Payload) -> Payload:
        try:
            reply = self._handle(payload)
            self._problem = ""
            return reply
        except (FedpbcError, OSError, MemoryError) as error:
            line = explained(error) or one_line(error)
            if line != self._problem:
                # A full disk, for example, would be a line in every round.
                LOG.error("refused a message: %s", line)
            self._problem = line
            return refusal(line)
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


def request(
    path: Path, payload: Payload, timeout: float = 0.0, *, user: int | None = None
) -> Payload:
    """Send a payload to the trainer and return its reply; retry until the timeout.

    Retries are safe: a reply depends on the request alone. Nothing is sent to a process of another
    user than root, this process's and ``user``, as whom the trainer may run.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(max(timeout, 1.0))
                connection.connect(str(path))
                peer, expected = peer_user(connection), os.getuid() if user is None else user
                if peer not in (None, 0, os.getuid(), expected):
                    return refusal(f"{path} belongs to user {peer}, not to user {expected}")
                with connection.makefile("rwb") as stream:
                    write_payload(stream, payload)
                    return read_payload(stream)
        except (OSError, MessageError) as error:
            if time.monotonic() + 0.2 >= deadline:
                return refusal(f"no trainer responds at {path}: {one_line(error)}")
        time.sleep(0.2)
