"""A link that can be cut: for trying out a fleet on one machine."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from fedpbc.deployment.address import HERE, Address

__all__ = ["FaultProxy"]


class FaultProxy:
    """Forwards connections to an address while it is open, and drops all of them when it is cut.

    Example:
        >>> with socket.create_server((HERE, 0)) as server:
        ...     gate = FaultProxy(Address(HERE, server.getsockname()[1]))
        ...     gate.cut()
        ...     gate.is_open
        False
        >>> gate.close()
    """

    def __init__(self, target: Address) -> None:
        self._target = target
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listening = socket.create_server((HERE, 0))
        self.address = Address(HERE, int(self._listening.getsockname()[1]))
        self.is_open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection((self._target.host, self._target.port), timeout=10)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        with self._lock:
            if not self.is_open:
                near.close()
                far.close()
                return
            self._ends |= {near, far}
        threading.Thread(target=self._pump, args=(near, far), daemon=True).start()
        self._pump(far, near)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(2**16):
                sink.sendall(piece)
        with self._lock:
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                if end in self._ends:
                    self._ends.discard(end)
        source.close()

    def cut(self) -> None:
        """From now on nothing comes through; what is under way is lost."""
        with self._lock:
            self.is_open = False
            for end in self._ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """From now on connections come through."""
        self.is_open = True

    def close(self) -> None:
        """Cut it, and listen no more."""
        self.cut()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
