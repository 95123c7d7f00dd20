"""An HTTP connection over asyncio streams: the I/O around :mod:`http1`'s state machine."""

from __future__ import annotations

import asyncio

import h11

from fedpbc.deployment.server.http1 import HttpConnection, RejectedRequest, rejection_response

__all__ = ["BUFFER_SIZE", "IDLE_SECONDS", "HttpStream"]

BUFFER_SIZE = 2**15
IDLE_SECONDS = 300.0
LARGEST_DRAIN = 2**26
"""Bytes of a rejected request that are still read, so that its sender gets to read the reason."""


class HttpStream:
    """One side of the gateway, with its socket."""

    def __init__(
        self,
        role: type[h11.CLIENT | h11.SERVER],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.http, self.reader, self.writer = HttpConnection(role), reader, writer

    async def next_event(self) -> object:
        """The next event of the peer; reads as much as that takes."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(IDLE_SECONDS):
                self.http.receive_data(await self.reader.read(2 * BUFFER_SIZE))
        return event

    async def forward(self, head: h11.Request | h11.Response, target: HttpStream) -> int:
        """Pass on a message with this head, body piece by piece; returns the body's size."""
        data, event, size = target.http.send(head), None, 0
        while not isinstance(event, h11.EndOfMessage):
            event = await self.next_event()
            assert isinstance(event, h11.Data | h11.EndOfMessage)
            size += len(event.data) if isinstance(event, h11.Data) else 0
            if data := data + target.http.send(event):
                target.writer.write(data)
                await target.writer.drain()
            data = b""
        return size

    async def reject(self, rejection: RejectedRequest, body: int = 0) -> None:
        """Respond with the reason, and read the rest of the request, of so many bytes."""
        self.writer.write(rejection_response(rejection))
        await self.writer.drain()
        if 0 < body <= LARGEST_DRAIN:
            async with asyncio.timeout(IDLE_SECONDS / 10):
                while isinstance(await self.next_event(), h11.Data):
                    pass
