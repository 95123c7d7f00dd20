"""The Fleet API on a Unix socket that only the server's user can open; the gateway connects to it.

It runs in a thread beside the round loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path

import h11

from fedpbc.deployment.server.fleet_api import FleetApi, RefusedCallError
from fedpbc.deployment.server.http1 import RejectedRequest
from fedpbc.deployment.server.http_stream import BUFFER_SIZE, HttpStream
from fedpbc.deployment.server.mailbox import Mailbox
from fedpbc.deployment.sockets import bound_socket, remove_socket
from fedpbc.errors import one_line

__all__ = ["FleetEndpoint"]

LOG = logging.getLogger("fedpbc.deployment")
LARGEST_BODY = 2**25
PROTOBUF = (b"content-type", b"application/protobuf")


class FleetEndpoint:
    """Serves a Fleet API until it is closed."""

    def __init__(self, path: Path, api: FleetApi, mailbox: Mailbox) -> None:
        self._path, self._api, self._mailbox = path, api, mailbox
        self._socket = bound_socket(path)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="fleet endpoint", daemon=True)

    def __enter__(self) -> FleetEndpoint:
        self._mailbox.on_send = self._wake
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._mailbox.on_send = lambda node: None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        remove_socket(self._path)

    def _wake(self, node: int) -> None:
        self._loop.call_soon_threadsafe(self._api.wake, node)

    def _run(self) -> None:
        try:
            server = self._loop.run_until_complete(
                asyncio.start_unix_server(self._serve, sock=self._socket, limit=BUFFER_SIZE)
            )
            self._loop.run_forever()
            server.close()
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.wait(tasks))
            # Streams close in later steps.
            self._loop.run_until_complete(asyncio.sleep(0.01))
            self._loop.close()
        except Exception:
            # Without it no device can connect: the supervisor starts the process again.
            LOG.exception("the fleet endpoint failed")
            os._exit(1)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        stream = HttpStream(h11.SERVER, reader, writer)
        try:
            while await self._serve_call(stream):
                pass
        except (OSError, h11.ProtocolError, RejectedRequest) as error:
            LOG.debug("connection closed: %s", one_line(error))
        except asyncio.CancelledError:
            # The endpoint is being closed; streams would log a task that was cancelled.
            return
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve_call(self, stream: HttpStream) -> bool:
        """Answer one call; returns whether another may follow."""
        request = await stream.next_event()
        if not isinstance(request, h11.Request):
            return False
        body = bytearray()
        while isinstance(event := await stream.next_event(), h11.Data):
            body += event.data
            if len(body) > LARGEST_BODY:
                return False
        try:
            status = 200
            content = await self._api.call(request.target, dict(request.headers), bytes(body))
        except RefusedCallError as error:
            status, content = error.status, error.reason.encode()
        length = (b"content-length", b"%d" % len(content))
        response = h11.Response(status_code=status, headers=[PROTOBUF, length])
        data = stream.http.send(response) + stream.http.send(h11.Data(data=content))
        stream.writer.write(data + stream.http.send(h11.EndOfMessage()))
        await stream.writer.drain()
        return stream.http.start_next_cycle()
