"""Accept connections, and begin TLS on them later.

asyncio's own servers would prepare each for TLS at once, with buffers of half a megabyte that a
flood leaves in the heap.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable

from fedpbc.deployment.address import Address

__all__ = ["BUFFER_SIZE", "Listener", "open_stream"]

BUFFER_SIZE = 2**15
BACKLOG = 1024
ACCEPTED_AT_ONCE = 64
"""Connections that are accepted before others are served."""
# Of each TLS connection; asyncio's 256 kB are for few connections, the gateway has thousands.
sslproto.SSLProtocol.max_size = BUFFER_SIZE


class Listener:
    """Listens at an address, and passes on the sockets of connections."""

    def __init__(self, on_connection: Callable[[socket.socket, str], None]) -> None:
        """Create a listener; ``on_connection`` receives each socket and where it comes from."""
        self._on_connection = on_connection
        self._sockets: list[socket.socket] = []

    async def open(self, address: Address) -> None:
        """Accept connections from now on; an OSError if that is impossible."""
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, name in dict.fromkeys(addresses):
            listening = socket.socket(family, socket.SOCK_STREAM)
            self._sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.setblocking(False)
            listening.bind(name)
            listening.listen(BACKLOG)
            loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, name = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # Out of files or memory: not again before some were closed.
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(1.0, self._resume, listening)
                return
            connection.setblocking(False)
            self._on_connection(connection, str(name[0]) if name else "?")

    def _resume(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Accept no more connections."""
        for listening in self._sockets:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()


async def open_stream(
    connection: socket.socket, tls: ssl.SSLContext | None, handshake_seconds: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Begin TLS, unless it is None; an OSError if the handshake fails."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=BUFFER_SIZE, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol,
        connection,
        ssl=tls,
        ssl_handshake_timeout=None if tls is None else handshake_seconds,
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
