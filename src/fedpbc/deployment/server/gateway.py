"""The door: all of a server that the network can reach.

Flower's SuperLink has one port for everything: whoever reaches it may register keys, and submit
apps that then run on all devices. So it listens on loopback only, and this stands before it: it
speaks TLS, lets through what devices need and nothing else, knows their keys, bounds what they may
send, and writes a line for everybody it turns away. No torch and no Flower here.
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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedpbc.deployment.address import Address, parse_address
from fedpbc.deployment.security.key_directory import KeyDirectory
from fedpbc.deployment.server.http1 import (
    IDLE_SECONDS,
    LARGEST_HEAD,
    RejectedRequest,
    RequestHead,
    answer_of,
    copy,
    copy_chunks,
    read_head,
)
from fedpbc.errors import one_line

__all__ = ["Gateway", "Limits"]

LOG = logging.getLogger("fedpbc.deployment")
OPEN = "/v1/fleet/"
"""Where the SuperLink takes messages of devices."""
REQUEST = re.compile(r"POST (/v1/fleet/[a-z]+(?:-[a-z]+)*) HTTP/1\.1")
ASKED = re.compile(r"([A-Z]+) (\S+) HTTP/[0-9.]+")
DRAINED = 2**26
"""What is still read of a request that is refused, so that its sender reads why."""
HANDSHAKE_SECONDS = 20.0
AGAIN_SECONDS = 60.0
"""The same line is not written again before."""


@dataclass(frozen=True)
class Limits:
    """How much a device may send.

    Attributes:
        answer: bytes of one answer, over all requests that bring it.
        request: bytes of one request.
        connections: that are open at a time, of all devices together.
    """

    answer: int
    request: int = 2**25
    connections: int = 5000


class Gateway:
    """Takes connections of devices, and passes on what may pass."""

    def __init__(
        self,
        superlink: Address,
        limits: Limits,
        *,
        certificates: Path | None,
        keys: Path | None,
    ) -> None:
        """Set up a door.

        Args:
            superlink: where the SuperLink listens.
            limits: how much a device may send.
            certificates: the folder with ``ca.crt``, ``server.crt`` and ``server.key``; None:
                neither side is encrypted.
            keys: the folder with devices' public keys; None: anybody may come.
        """
        self.superlink, self.limits = superlink, limits
        self._keys = None if keys is None else KeyDirectory(keys)
        self._known: dict[str, str] = {} if self._keys is None else self._keys.names_by_key()
        self._looked = time.monotonic()
        self._sent: dict[str, int] = {}
        self._said: dict[tuple[str, str], float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._inside: ssl.SSLContext | None = None
        self._outside: ssl.SSLContext | None = None
        if certificates is not None:
            self._inside = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
            self._outside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._outside.minimum_version = ssl.TLSVersion.TLSv1_2
            self._outside.load_cert_chain(certificates / "server.crt", certificates / "server.key")

    async def open(self, listen: Address) -> asyncio.Server:
        """Listen; connections are served from now on."""
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: _Arrival(self), listen.host, listen.port)

    def arrived(self, transport: asyncio.Transport) -> None:
        """Serve a connection, in a task of its own."""
        if len(self._tasks) >= self.limits.connections:
            self.say("everybody else", f"{len(self._tasks):,} connections are open")
            transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._welcome(transport))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _welcome(self, transport: asyncio.Transport) -> None:
        peer = (transport.get_extra_info("peername") or ("?",))[0]
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=2 * LARGEST_HEAD, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            if self._outside is not None:
                secured = await loop.start_tls(
                    transport,
                    protocol,
                    self._outside,
                    server_side=True,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS,
                )
                assert secured is not None
                transport = secured
            else:
                transport.set_protocol(protocol)
        except (OSError, TimeoutError) as error:
            transport.abort()
            self.say(peer, handshake_failure(error))
            return
        protocol.connection_made(transport)
        if not transport.is_reading():
            transport.resume_reading()
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._serve(reader, writer, peer)
        except (OSError, EOFError, TimeoutError) as error:
            LOG.debug("%s is gone: %s", peer, error)
        finally:
            writer.close()
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(5):
                    await writer.wait_closed()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str
    ) -> None:
        """One request after the other, until either side has had enough."""
        inside: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        # Who has shown no key yet must be quick: places are few.
        patience = HANDSHAKE_SECONDS
        try:
            while True:
                who, left = peer, 0
                try:
                    request = await read_head(reader, patience)
                    if request is None:
                        return
                    left = request.length()
                    who = self._who(request, peer)
                    path = self._check(request, left, who)
                    patience = IDLE_SECONDS
                except RejectedRequest as turned:
                    self.say(who, turned.reason)
                    await self._refuse(reader, writer, turned, left)
                    return
                try:
                    if inside is None:
                        where = self.superlink.host, self.superlink.port
                        inside = await asyncio.open_connection(
                            *where, ssl=self._inside, limit=2 * LARGEST_HEAD
                        )
                    inside[1].write(request.passed_on(path))
                except OSError as error:
                    self.say("the SuperLink", f"it cannot be reached: {one_line(error)}", "")
                    await self._refuse(reader, writer, RejectedRequest(503, "not now"), left)
                    return
                await copy(reader, inside[1], left)
                status, goes_on = await self._pass_back(inside[0], writer, who)
                self._count(who, path, left, status)
                if not goes_on:
                    return
        finally:
            if inside is not None:
                inside[1].transport.abort()

    async def _pass_back(
        self, inside: asyncio.StreamReader, writer: asyncio.StreamWriter, who: str
    ) -> tuple[int, bool]:
        """The SuperLink's answer; gives its status, and whether the connection goes on."""
        try:
            answer = await read_head(inside)
        except (OSError, EOFError, RejectedRequest):
            answer = None
        if answer is None:
            # It was ended in between; Flower's nodes ask again after these.
            writer.write(answer_of(RejectedRequest(502, "the server is being started again")))
            await writer.drain()
            return 502, False
        status = int(answer.first.split(" ")[1])
        if status in (401, 403):
            self.say(who, f"its key, or its clock, is not accepted (status {status})")
        elif 400 <= status < 500:
            self.say(who, f"the SuperLink does not accept it (status {status})")
        writer.write(answer.raw)
        if "transfer-encoding" in answer.fields:
            await copy_chunks(inside, writer)
        else:
            await copy(inside, writer, answer.length())
        return status, answer.fields.get("connection", "").lower() != "close"

    def _who(self, request: RequestHead, peer: str) -> str:
        if self._keys is None:
            return peer
        key = request.fields.get("flwr-public-key", "")
        # Also for a key that is known: its file may be gone.
        if time.monotonic() - self._looked > 1:
            self._known, self._looked = self._keys.names_by_key(), time.monotonic()
        name = self._known.get(key)
        return peer if name is None else f"{name} ({peer})"

    def _check(self, request: RequestHead, length: int, who: str) -> str:
        """Where the request goes, if it may."""
        match = REQUEST.fullmatch(request.first)
        if match is None:
            asked = ASKED.fullmatch(request.first)
            if asked is None:
                raise RejectedRequest(400, "its request is not HTTP")
            what = f"{asked[1][:10]} {asked[2][:60]!r}"
            raise RejectedRequest(404, f"it asked for {what}, which is not for devices")
        if {"expect", "upgrade"} & request.fields.keys():
            raise RejectedRequest(400, "its request wants another protocol")
        key = request.fields.get("flwr-public-key", "")
        if self._keys is not None and key not in self._known:
            raise RejectedRequest(401, "its key is not known" if key else "it brings no key")
        if length > self.limits.request:
            right = f"at most {self.limits.request:,} are taken"
            raise RejectedRequest(413, f"it sends {length:,} bytes at once; {right}")
        path = match[1]
        if path.startswith(OPEN + "push-"):
            sent = self._sent_before(who, path) + length
            if sent > self.limits.answer:
                right = f"at most {self.limits.answer:,} are taken"
                raise RejectedRequest(413, f"its answer has {sent:,} bytes or more; {right}")
        return path

    def _sent_before(self, who: str, path: str) -> int:
        # An answer is announced by push-messages, and brought by any number of push-object.
        return 0 if path == OPEN + "push-messages" else self._sent.get(who, 0)

    def _count(self, who: str, path: str, length: int, status: int) -> None:
        """What has come in of an answer. What did not is sent again, and counts then."""
        if path.startswith(OPEN + "push-") and 200 <= status < 300:
            if len(self._sent) > 100_000:
                self._sent.clear()
            self._sent[who] = self._sent_before(who, path) + length

    async def _refuse(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        turned: RejectedRequest,
        left: int,
    ) -> None:
        writer.write(answer_of(turned))
        await writer.drain()
        async with asyncio.timeout(IDLE_SECONDS / 10):
            while left > 0 and left <= DRAINED and (piece := await reader.read(2**16)):
                left -= len(piece)

    def say(self, who: str, reason: str, what: str = " is turned away") -> None:
        """A line in the log, but not the same again and again."""
        now = time.monotonic()
        if now - self._said.get((who, reason), -AGAIN_SECONDS) < AGAIN_SECONDS:
            return
        if len(self._said) > 10_000:
            self._said.clear()
        self._said[who, reason] = now
        LOG.warning("%s%s: %s", who, what, reason)


class _Arrival(asyncio.Protocol):
    """A connection before anything is read of it: the first bytes are the handshake's."""

    def __init__(self, door: Gateway) -> None:
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self._door.arrived(transport)


def handshake_failure(error: Exception) -> str:
    """Why there is no encrypted connection, in words.

    Example:
        >>> handshake_failure(TimeoutError())
        'it began no encrypted connection in time'
    """
    reason = getattr(error, "reason", None) or ""
    if reason == "HTTP_REQUEST":
        return "it speaks plain HTTP, without TLS"
    if "CERTIFICATE_EXPIRED" in reason:
        return "it says that the server's certificate has expired"
    if "ALERT" in reason:
        said = reason.replace("_", " ").lower()
        return f"it does not trust the server's certificate ({said})"
    if isinstance(error, TimeoutError):
        return "it began no encrypted connection in time"
    return f"it speaks no TLS ({reason or one_line(error) or 'it hung up'})"


def most_connections() -> int:
    """As many as this process may have: each takes two files, here and to the SuperLink."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * Limits.connections + 100
    files = wanted if most == resource.RLIM_INFINITY else min(most, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    return max((files - 100) // 2, 10)


async def keep(door: Gateway, listen: Address) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    server = await door.open(listen)
    LOG.info("the door is open at %s", listen)
    await ended.wait()
    server.close()


def main() -> None:
    """As a process of its own; started by the server's launcher."""
    parser = argparse.ArgumentParser(prog="python -m fedpbc.deployment.server.gateway")
    parser.add_argument("--listen", required=True)
    parser.add_argument("--superlink", required=True)
    parser.add_argument("--largest-answer", type=int, required=True)
    parser.add_argument("--certificates", type=Path)
    parser.add_argument("--keys", type=Path)
    given = parser.parse_args()
    logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s", level=logging.INFO)
    door = Gateway(
        parse_address(given.superlink, "superlink"),
        Limits(given.largest_answer, connections=most_connections()),
        certificates=given.certificates,
        keys=given.keys,
    )
    asyncio.run(keep(door, parse_address(given.listen, "listen")))


if __name__ == "__main__":
    main()
