"""A TCP proxy that simulates link failures, to test a fleet on one machine."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Literal

from fedpbc.deployment.address import LOOPBACK, Address

__all__ = ["FaultProxy"]


class FaultProxy:
    """Forwards connections to an address while its link is up, and drops them when it is cut.

    Attributes:
        bytes_up: forwarded to the address.
        bytes_down: forwarded from it.
    """

    def __init__(self, target: Address) -> None:
        self._target = target
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server((LOOPBACK, 0))
        self.address = Address(LOOPBACK, int(self._listener.getsockname()[1]))
        self.is_up = True
        self.bytes_up = self.bytes_down = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection((self._target.host, self._target.port), timeout=10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        with self._lock:
            if not self.is_up:
                client.close()
                server.close()
                return
            self._sockets |= {client, server}
        threading.Thread(target=self._copy, args=(client, server, "up"), daemon=True).start()
        self._copy(server, client, "down")

    def _copy(self, source: socket.socket, sink: socket.socket, way: Literal["up", "down"]) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                sink.sendall(data)
                with self._lock:
                    if way == "up":
                        self.bytes_up += len(data)
                    else:
                        self.bytes_down += len(data)
        with self._lock:
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            self._sockets -= {source, sink}
        source.close()

    def cut(self) -> None:
        """Drop all connections and refuse new ones; data in transit is lost."""
        with self._lock:
            self.is_up = False
            for end in self._sockets:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        """Accept connections again."""
        self.is_up = True

    def close(self) -> None:
        """Cut the link and stop listening."""
        self.cut()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
