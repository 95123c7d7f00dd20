"""The TLS gateway: the only part of a server that the network can reach.

Flower's SuperLink has one port for everything: whoever reaches it may register keys, and submit
apps that then run on all devices. It therefore listens on loopback only, behind this gateway, which
terminates TLS, checks the devices' keys, forwards the requests that devices need and no others,
limits what they may send, and logs everything that it rejects. Imports neither torch nor Flower.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import resource
import signal
import ssl
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import h11

from fedpbc.deployment.address import Address, parse_address
from fedpbc.deployment.log_lines import LineFormatter
from fedpbc.deployment.security.key_directory import KeyDirectory
from fedpbc.deployment.server.http1 import RejectedRequest, forwarded_request
from fedpbc.deployment.server.http_stream import BUFFER_SIZE, IDLE_SECONDS, HttpStream
from fedpbc.errors import one_line

__all__ = ["Gateway", "Limits"]

LOG = logging.getLogger("fedpbc.deployment")
FLEET_PATH = re.compile(rb"/v1/fleet/[a-z]+(?:-[a-z]+)*")
"""Where the SuperLink takes requests of devices."""
PUBLIC_KEY = b"flwr-public-key"
PUSH_MESSAGES, PUSH = b"/v1/fleet/push-messages", b"/v1/fleet/push-"
HANDSHAKE_SECONDS = 20.0
REPEAT_SECONDS = 60.0
"""The same line is not logged again before."""


@dataclass(frozen=True)
class Limits:
    """How much devices may send.

    Attributes:
        reply: bytes of one reply, over all requests that upload it.
        request: bytes of one request.
        connections: open at a time, of all devices together.
    """

    reply: int
    request: int = 2**25
    connections: int = 5000


class Gateway:
    """Accepts connections of devices, and forwards the requests that are allowed."""

    def __init__(
        self,
        superlink: Address,
        limits: Limits,
        *,
        certificates: Path | None,
        keys: Path | None,
    ) -> None:
        """Set up a gateway in front of a SuperLink.

        Without ``certificates``, a folder, there is no TLS on either side. Without ``keys``, the
        folder of the devices' public keys, any device may connect.
        """
        self.superlink, self.limits = superlink, limits
        self._keys = None if keys is None else KeyDirectory(keys)
        self._name_of: dict[str, str] = {} if self._keys is None else self._keys.names_by_key()
        self._keys_read_at = time.monotonic()
        self._reply_bytes: dict[str, int] = {}
        self._logged_at: dict[tuple[str, str], float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._superlink_tls: ssl.SSLContext | None = None
        self._device_tls: ssl.SSLContext | None = None
        if certificates is not None:
            self._superlink_tls = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
            self._device_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._device_tls.minimum_version = ssl.TLSVersion.TLSv1_2
            self._device_tls.load_cert_chain(
                certificates / "server.crt", certificates / "server.key"
            )

    async def open(self, listen: Address) -> asyncio.Server:
        """Listen, and serve connections from now on."""
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: _Accepted(self), listen.host, listen.port)

    def accept(self, transport: asyncio.Transport) -> None:
        """Serve a connection in a task."""
        if len(self._tasks) >= self.limits.connections:
            self.log_rejection("a connection", f"{len(self._tasks):,} are open, which is the limit")
            transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(transport))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, transport: asyncio.Transport) -> None:
        peer = (transport.get_extra_info("peername") or ("?",))[0]
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=BUFFER_SIZE, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            if self._device_tls is not None:
                encrypted = await loop.start_tls(
                    transport,
                    protocol,
                    self._device_tls,
                    server_side=True,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS,
                )
                assert encrypted is not None
                transport = encrypted
            else:
                transport.set_protocol(protocol)
        except OSError as error:
            transport.abort()
            self.log_rejection(peer, handshake_failure(error))
            return
        protocol.connection_made(transport)
        if not transport.is_reading():
            transport.resume_reading()
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._serve_requests(HttpStream(h11.SERVER, reader, writer), peer)
        except (OSError, h11.ProtocolError) as error:
            LOG.debug("connection of %s closed: %s", peer, error)
        finally:
            writer.close()
            with suppress(OSError):
                async with asyncio.timeout(5):
                    await writer.wait_closed()

    async def _serve_requests(self, device: HttpStream, peer: str) -> None:
        """Serve one request after another, until either side closes."""
        superlink: HttpStream | None = None
        # Short until a request was accepted: connection slots are limited.
        head_seconds = HANDSHAKE_SECONDS
        try:
            while True:
                who, length = peer, 0
                try:
                    async with asyncio.timeout(head_seconds):
                        request = await device.next_event()
                    if not isinstance(request, h11.Request):
                        return
                    headers = dict(request.headers)
                    length = int(headers.get(b"content-length", 0))
                    who = self._identify(headers, peer)
                    self._check(request, headers, length, who)
                except RejectedRequest as rejection:
                    self.log_rejection(who, rejection.reason)
                    await device.reject(rejection, length)
                    return
                head_seconds = IDLE_SECONDS
                try:
                    superlink = superlink or await self._connect_superlink()
                except OSError as error:
                    self.log_once("the SuperLink", f"cannot be reached: {one_line(error)}")
                    await device.reject(RejectedRequest(503, "the server is down"), length)
                    return
                await device.forward(forwarded_request(request.target, headers), superlink)
                status = await self._forward_response(superlink, device, who)
                self._count_reply(who, request.target, length, status)
                if not (superlink.http.start_next_cycle() and device.http.start_next_cycle()):
                    return
        finally:
            if superlink is not None:
                superlink.writer.transport.abort()

    async def _connect_superlink(self) -> HttpStream:
        streams = await asyncio.open_connection(
            self.superlink.host, self.superlink.port, ssl=self._superlink_tls, limit=BUFFER_SIZE
        )
        return HttpStream(h11.CLIENT, *streams)

    async def _forward_response(self, superlink: HttpStream, device: HttpStream, who: str) -> int:
        """Forward the SuperLink's response; returns its status."""
        response: object = None
        with suppress(OSError, RejectedRequest):
            response = await superlink.next_event()
            while isinstance(response, h11.InformationalResponse):
                response = await superlink.next_event()
        if not isinstance(response, h11.Response):
            # It was stopped meanwhile; Flower's nodes retry after this status.
            await device.reject(RejectedRequest(502, "the server is restarting"))
            return 502
        status = response.status_code
        if status in (401, 403):
            self.log_rejection(who, f"key or clock not accepted by the SuperLink (status {status})")
        elif 400 <= status < 500:
            self.log_rejection(who, f"not accepted by the SuperLink (status {status})")
        await superlink.forward(response, device)
        return status

    def _identify(self, headers: Mapping[bytes, bytes], peer: str) -> str:
        """How a device is called in the log."""
        # Known keys are looked up again as well: their files may have been deleted.
        if self._keys is not None and time.monotonic() - self._keys_read_at > 1:
            self._name_of, self._keys_read_at = self._keys.names_by_key(), time.monotonic()
        name = self._name_of.get(headers.get(PUBLIC_KEY, b"").decode("latin-1"))
        return peer if name is None else f"{name} ({peer})"

    def _check(
        self, request: h11.Request, headers: Mapping[bytes, bytes], length: int, who: str
    ) -> None:
        """Raise RejectedRequest unless the request may pass."""
        method, path = request.method, request.target
        if (method, request.http_version) != (b"POST", b"1.1") or not FLEET_PATH.fullmatch(path):
            what = f"{method[:10].decode('latin-1')} {path[:60].decode('latin-1')!r}"
            raise RejectedRequest(404, f"{what} is not open to devices")
        if {b"expect", b"upgrade"} & headers.keys():
            raise RejectedRequest(400, "Expect and Upgrade are not supported")
        key = headers.get(PUBLIC_KEY, b"").decode("latin-1")
        if self._keys is not None and key not in self._name_of:
            raise RejectedRequest(401, "unknown key" if key else "no key")
        if length > (limit := self.limits.request):
            raise RejectedRequest(413, f"request of {length:,} bytes, but at most {limit:,} pass")
        if path.startswith(PUSH):
            uploaded = self._uploaded_before(who, path) + length
            if uploaded > (limit := self.limits.reply):
                reason = f"reply of {uploaded:,} bytes or more, but at most {limit:,} pass"
                raise RejectedRequest(413, reason)

    def _uploaded_before(self, who: str, path: bytes) -> int:
        # A reply is announced by push-messages, and uploaded by any number of push-object.
        return 0 if path == PUSH_MESSAGES else self._reply_bytes.get(who, 0)

    def _count_reply(self, who: str, path: bytes, length: int, status: int) -> None:
        """Count an accepted part of a reply. What was not accepted is sent and counted again."""
        if path.startswith(PUSH) and 200 <= status < 300:
            if len(self._reply_bytes) > 100_000:
                self._reply_bytes.clear()
            self._reply_bytes[who] = self._uploaded_before(who, path) + length

    def log_rejection(self, who: str, reason: str) -> None:
        """Log whom the gateway rejects, and why."""
        self.log_once(f"rejected {who}:", reason)

    def log_once(self, subject: str, text: str) -> None:
        """Log a line, but not the same again within a minute."""
        now = time.monotonic()
        if now - self._logged_at.get((subject, text), -REPEAT_SECONDS) < REPEAT_SECONDS:
            return
        if len(self._logged_at) > 10_000:
            self._logged_at.clear()
        self._logged_at[subject, text] = now
        LOG.warning("%s %s", subject, text)


class _Accepted(asyncio.Protocol):
    """A connection of which nothing has been read: the first bytes belong to the handshake."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self._gateway.accept(transport)


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


def most_connections() -> int:
    """How many connections this process may have: each takes two files, one to the SuperLink."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 2 * Limits.connections + 100
    if hard_limit != resource.RLIM_INFINITY:
        files = min(hard_limit, files)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard_limit))
    return max((files - 100) // 2, 10)


async def serve_until_signal(gateway: Gateway, listen: Address) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = await gateway.open(listen)
    LOG.info("the gateway listens at %s", listen)
    await stop.wait()
    server.close()


def main() -> None:
    """Run as a process, which the server's launcher starts."""
    parser = argparse.ArgumentParser(prog="python -m fedpbc.deployment.server.gateway")
    parser.add_argument("--listen", required=True)
    parser.add_argument("--superlink", required=True)
    parser.add_argument("--largest-answer", type=int, required=True)
    parser.add_argument("--certificates", type=Path)
    parser.add_argument("--keys", type=Path)
    options = parser.parse_args()
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    gateway = Gateway(
        parse_address(options.superlink, "superlink"),
        Limits(options.largest_answer, connections=most_connections()),
        certificates=options.certificates,
        keys=options.keys,
    )
    asyncio.run(serve_until_signal(gateway, parse_address(options.listen, "listen")))


if __name__ == "__main__":
    main()
