"""The TLS gateway: the only part of a server that the network can reach.

It terminates TLS, verifies the devices' signatures, forwards the requests that devices need and no
others to the server, limits what they may send, and logs what it rejects. It holds neither models
nor the job's state, and imports neither torch nor Flower.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import logging
import resource
import signal
import socket
import ssl
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import h11

from fedpbc.deployment.address import Address, parse_address
from fedpbc.deployment.log_lines import LineFormatter
from fedpbc.deployment.server.connection_slots import Connection, ConnectionLimits, ConnectionSlots
from fedpbc.deployment.server.handshake_queue import HANDSHAKE_SECONDS, HandshakeQueue
from fedpbc.deployment.server.http1 import RejectedRequest, forwarded_request
from fedpbc.deployment.server.http_stream import BUFFER_SIZE, IDLE_SECONDS, HttpStream
from fedpbc.deployment.server.listener import Listener, open_stream
from fedpbc.deployment.server.rejection_log import RejectionLog
from fedpbc.deployment.server.request_policy import Limits, RequestPolicy
from fedpbc.errors import one_line

__all__ = ["Gateway", "Limits"]

LOG = logging.getLogger("fedpbc.deployment")
SMALL_DRAIN = 2**16
"""Bytes of a stranger's request that are read after it was rejected."""
FEW = 100
"""Connections that wait when there is no flood."""
COLLECT_EVERY = 500
"""Dropped connections after which the memory of those before is collected."""


class Gateway:
    """Accepts connections of devices, and forwards the requests that are allowed."""

    def __init__(
        self,
        server: Address | Path,
        limits: Limits,
        *,
        certificates: Path | None,
        keys: Path | None,
    ) -> None:
        """Set up a gateway in front of a server, at an address or a Unix socket.

        Without ``certificates``, a folder, there is no TLS on either side; there is none on a Unix
        socket. Without ``keys``, the folder of the devices' public keys, any device may connect.
        """
        self.server = server
        self._policy = RequestPolicy(limits, keys)
        self._slots, self.log = ConnectionSlots(limits.connections), RejectionLog()
        self._queue = HandshakeQueue(self._slots, self._begin, self._expire)
        self._listener = Listener(self._accept)
        self._dropped = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self._server_tls: ssl.SSLContext | None = None
        self._device_tls: ssl.SSLContext | None = None
        if certificates is not None:
            self._server_tls = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
            self._device_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._device_tls.minimum_version = ssl.TLSVersion.TLSv1_2
            self._device_tls.load_cert_chain(
                certificates / "server.crt", certificates / "server.key"
            )

    async def open(self, listen: Address) -> None:
        """Listen, and serve connections from now on."""
        await self._listener.open(listen)

    def close(self) -> None:
        """Accept no more connections, and close those that are not served yet."""
        self._listener.close()
        self._queue.close()

    def _accept(self, accepted: socket.socket, peer: str) -> None:
        """Let a connection wait for its turn, and end another if there are too many."""
        dropped = self._queue.add(accepted, peer)
        if dropped is not None:
            self._drop(dropped, "too many connections that have shown no key")

    def _begin(self, accepted: socket.socket, connection: Connection) -> None:
        """Serve a connection in a task."""
        connection.close = partial(shut_down, accepted)
        task = asyncio.get_running_loop().create_task(self._serve(accepted, connection))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _expire(self, connection: Connection) -> None:
        self._log_rejection(connection, handshake_failure(TimeoutError()))

    def release_memory(self) -> None:
        """Return to the system what dropped connections have left; to be called now and then."""
        if self._dropped and self._slots.waiting < FEW:
            self._dropped = 0
            # Transports and their protocols refer to each other.
            gc.collect()
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)

    def _drop(self, dropped: Connection, reason: str) -> None:
        self._log_rejection(dropped, reason)
        dropped.is_dropped = True
        dropped.close()
        if dropped.began:
            self._dropped += 1
            if self._dropped % COLLECT_EVERY == 0:
                gc.collect()

    def _log_rejection(self, connection: Connection, reason: str) -> None:
        caller = self._policy.caller(connection)
        self.log.add(f"rejected {caller}:", reason, is_device=connection.key is not None)

    async def _serve(self, accepted: socket.socket, connection: Connection) -> None:
        try:
            try:
                streams = await open_stream(accepted, self._device_tls, HANDSHAKE_SECONDS)
            except OSError as error:
                if not connection.is_dropped:
                    self._log_rejection(connection, handshake_failure(error))
                return
            await self._serve_streams(*streams, connection)
        finally:
            self._slots.release(connection)

    async def _serve_streams(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: Connection
    ) -> None:
        try:
            await self._serve_requests(HttpStream(h11.SERVER, reader, writer), connection)
        except (OSError, h11.ProtocolError) as error:
            LOG.debug("connection of %s closed: %s", connection.address, error)
        finally:
            writer.close()
            with suppress(OSError):
                async with asyncio.timeout(5):
                    await writer.wait_closed()

    async def _serve_requests(self, device: HttpStream, connection: Connection) -> None:
        """Serve one request after another, until either side closes."""
        server: HttpStream | None = None
        # Short until a request was accepted: connection slots are limited.
        head_seconds = HANDSHAKE_SECONDS
        try:
            while (request := await self._request(device, connection, head_seconds)) is not None:
                head_seconds = IDLE_SECONDS
                try:
                    server = server or await self._connect_server()
                except OSError as error:
                    self.log.add("the server", f"cannot be reached: {connection_failure(error)}")
                    await device.reject(RejectedRequest(503, "the server is down"), length(request))
                    return
                if not await self._forward(request, device, server, connection):
                    return
        finally:
            if server is not None:
                server.writer.transport.abort()

    async def _request(
        self, device: HttpStream, connection: Connection, seconds: float
    ) -> h11.Request | None:
        """The next request that may pass; None if the connection is to be closed."""
        drain = 0
        try:
            async with asyncio.timeout(seconds):
                request = await device.next_event()
            if not isinstance(request, h11.Request):
                return None
            if (size := length(request)) <= SMALL_DRAIN:
                drain = size
            self._identify(connection, request)
            drain = size
            self._policy.check(request, size, connection)
        except RejectedRequest as rejection:
            self._log_rejection(connection, rejection.reason)
            await device.reject(rejection, drain)
            return None
        return request

    def _identify(self, connection: Connection, request: h11.Request) -> None:
        """Raise RejectedRequest unless the connection is a device's."""
        key = self._policy.key_of(connection, dict(request.headers))
        if key is None:
            # Without keys, who has sent a request counts as a device.
            self._slots.release(connection)
        elif connection.key is None:
            dropped = self._slots.verify(connection, key)
            if dropped is not None:
                self._drop(dropped, "too many connections with its key")

    async def _forward(
        self, request: h11.Request, device: HttpStream, server: HttpStream, connection: Connection
    ) -> bool:
        """Forward a request and its response; returns whether another may follow."""
        head = forwarded_request(request.target, dict(request.headers))
        await device.forward(head, server)
        response = await self._response(server, connection)
        if response is None:
            # It was stopped meanwhile; devices retry after this status.
            await device.reject(RejectedRequest(502, "the server is restarting"))
            return False
        size = await server.forward(response, device)
        if 200 <= response.status_code < 300:
            self._policy.count(connection, request.target, size)
        return server.http.start_next_cycle() and device.http.start_next_cycle()

    async def _connect_server(self) -> HttpStream:
        if isinstance(self.server, Path):
            streams = await asyncio.open_unix_connection(self.server, limit=BUFFER_SIZE)
        else:
            streams = await asyncio.open_connection(
                self.server.host, self.server.port, ssl=self._server_tls, limit=BUFFER_SIZE
            )
        return HttpStream(h11.CLIENT, *streams)

    async def _response(self, server: HttpStream, connection: Connection) -> h11.Response | None:
        """The head of the server's response; None if there is none."""
        response: object = None
        with suppress(OSError, RejectedRequest):
            response = await server.next_event()
            while isinstance(response, h11.InformationalResponse):
                response = await server.next_event()
        if not isinstance(response, h11.Response):
            return None
        status = response.status_code
        if 400 <= status < 500:
            what = "key or clock not" if status in (401, 403) else "not"
            self._log_rejection(connection, f"{what} accepted by the server (status {status})")
        return response


def shut_down(connection: socket.socket) -> None:
    """End a connection; whoever waits for it notices, and cleans up."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def length(request: h11.Request) -> int:
    """The size of a request's body."""
    return int(dict(request.headers).get(b"content-length", 0))


def handshake_failure(error: Exception) -> str:
    """Why a TLS handshake failed, for the log."""
    reason = getattr(error, "reason", None) or ""
    if reason == "HTTP_REQUEST":
        return "plain HTTP without TLS"
    if "CERTIFICATE_EXPIRED" in reason:
        return "the device reports that the server's certificate has expired"
    if "ALERT" in reason:
        alert = reason.replace("_", " ").lower()
        return f"the device does not trust the server's certificate ({alert})"
    if isinstance(error, TimeoutError):
        return f"no TLS handshake within {HANDSHAKE_SECONDS:g} seconds"
    return f"TLS handshake failed ({reason or one_line(error)})"


def connection_failure(error: OSError) -> str:
    """Why the server behind the gateway could not be connected to, for the log."""
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return "it is not running, or is still starting; devices try again"
    return one_line(error)


def connection_limits() -> ConnectionLimits:
    """How many connections this process may have: each takes two files, one to the server."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = ConnectionLimits()
    files = 2 * limits.total + 100
    if hard_limit != resource.RLIM_INFINITY:
        files = min(hard_limit, files)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard_limit))
    total = max((files - 100) // 2, 10)
    return replace(limits, total=total, waiting=min(limits.waiting, total // 2))


async def serve_until_signal(gateway: Gateway, listen: Address) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await gateway.open(listen)
    LOG.info("the gateway listens at %s", listen)
    while not stop.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(10.0):
                await stop.wait()
        gateway.log.flush()
        gateway.release_memory()
    gateway.close()


def upstream(text: str) -> Address | Path:
    """Parse where requests go to: an address, or a Unix socket as ``unix:/path``."""
    if text.startswith("unix:"):
        return Path(text.removeprefix("unix:"))
    return parse_address(text, "server")


def main() -> None:
    """Run as a process, which the server's launcher starts."""
    parser = argparse.ArgumentParser(prog="python -m fedpbc.deployment.server.gateway")
    parser.add_argument("--listen", required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--largest-answer", type=int, required=True)
    parser.add_argument("--certificates", type=Path)
    parser.add_argument("--keys", type=Path)
    options = parser.parse_args()
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    gateway = Gateway(
        upstream(options.server),
        Limits(options.largest_answer, connections=connection_limits()),
        certificates=options.certificates,
        keys=options.keys,
    )
    asyncio.run(serve_until_signal(gateway, parse_address(options.listen, "listen")))


if __name__ == "__main__":
    main()
