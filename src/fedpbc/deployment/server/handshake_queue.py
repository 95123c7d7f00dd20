"""Connections that were accepted and have not begun TLS.

Most of a flood ends here, so a connection costs a socket and an entry, no task. It is queued when
its first bytes have arrived. A handshake takes a millisecond of the processor, so only a few begin
at a time, of each address in turn: see :mod:`connection_slots`.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

from fedpbc.deployment.server.connection_slots import Connection, ConnectionSlots

__all__ = ["HANDSHAKE_SECONDS", "HandshakeQueue"]

HANDSHAKE_SECONDS = 20.0
"""How long a connection may wait for its turn, and then for the end of its handshake."""
RATE, AT_ONCE = 250.0, 25
"""How many handshakes begin per second, and at once if none began for a while."""
PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two looks at the queue while it is not empty."""
SWEEP_SECONDS = 1.0


class HandshakeQueue:
    """Waits for the first bytes of connections, and paces the handshakes that begin then."""

    def __init__(
        self,
        slots: ConnectionSlots,
        begin: Callable[[socket.socket, Connection], object],
        expire: Callable[[Connection], object],
    ) -> None:
        """Set up an empty queue.

        Args:
            slots: which connections are kept.
            begin: called with each connection that has its turn; the socket is its own then.
            expire: called with each that was closed because it waited for too long.
        """
        self._slots, self._begin, self._expire = slots, begin, expire
        self._sockets: dict[Connection, socket.socket] = {}
        self._due, self._counted_at = float(AT_ONCE), time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._pause = PAUSE
        self._sweep: asyncio.TimerHandle | None = None

    def add(self, accepted: socket.socket, address: str) -> Connection | None:
        """Add a connection; returns the one that must be closed for it, maybe this one."""
        connection = Connection(address, lambda: self._close(connection))
        # Usually the first bytes come with the connection.
        first = peek(accepted)
        if first == b"":
            accepted.close()
            return None
        self._sockets[connection] = accepted
        dropped = self._slots.admit(connection, has_sent=first is not None)
        if dropped is not connection:
            self._await_turn(accepted, connection, has_sent=first is not None)
        return dropped

    def close(self) -> None:
        """Close what waits here."""
        for connection in list(self._sockets):
            self._slots.release(connection)
            self._close(connection)
        for timer in (self._timer, self._sweep):
            if timer is not None:
                timer.cancel()

    def _await_turn(
        self, accepted: socket.socket, connection: Connection, *, has_sent: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        if has_sent:
            self._begin_due()
        else:
            loop.add_reader(accepted, self._receive, connection)
        if self._sweep is None:
            self._sweep = loop.call_later(SWEEP_SECONDS, self._close_expired)

    def _receive(self, connection: Connection) -> None:
        accepted = self._sockets[connection]
        asyncio.get_running_loop().remove_reader(accepted)
        if peek(accepted):
            self._slots.queue(connection)
            self._begin_due()
        else:
            self._slots.release(connection)
            self._close(connection)

    def _begin_due(self) -> None:
        """Begin the handshakes that are due; if more wait, look again after a pause."""
        if self._timer is not None:
            return
        now = time.monotonic()
        self._due = min(self._due + (now - self._counted_at) * RATE, AT_ONCE)
        self._counted_at = now
        while self._due >= 1 and (connection := self._slots.next_turn()) is not None:
            self._due -= 1
            self._begin(self._sockets.pop(connection), connection)
        if self._slots.has_turns:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._pause, self._begin_later, now + self._pause)

    def _begin_later(self, planned: float) -> None:
        # If the processor is scarce, handshakes get half of it: what is served already the rest.
        lateness = time.monotonic() - planned
        self._pause = min(max(PAUSE, lateness), LONGEST_PAUSE)
        self._timer = None
        self._begin_due()

    def _close_expired(self) -> None:
        self._sweep = None
        for connection in self._slots.expired(HANDSHAKE_SECONDS):
            self._slots.release(connection)
            self._close(connection)
            self._expire(connection)
        if self._sockets:
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_later(SWEEP_SECONDS, self._close_expired)

    def _close(self, connection: Connection) -> None:
        accepted = self._sockets.pop(connection)
        asyncio.get_running_loop().remove_reader(accepted)
        accepted.close()


def peek(connection: socket.socket) -> bytes | None:
    """The first byte that a peer sent: none if it has closed, None if it has sent nothing yet."""
    try:
        return connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return None
    except OSError:
        return b""
