"""Many devices of a fleet in one process, without training: they reply with the model they get.

Each has a key and a TLS connection of its own, signs every request, waits for messages and replies
as a real device does.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
)
from flwr.proto.message_pb2 import Metadata
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedpbc.deployment.protocol.flower_messages import SERVER, pack, unpack
from fedpbc.deployment.protocol.messages import TrainReply, TrainRequest

__all__ = ["SimulatedDevice", "run_devices"]


class SimulatedDevice:
    """One device: connects, waits for a message, replies, and so on until it is cancelled."""

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None, key: Path) -> None:
        self._address, self._tls = address, tls
        self._key: Any = load_ssh_private_key(key.read_bytes(), None)
        self._public = public_key_to_bytes(self._key.public_key())
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.replies = self.failures = 0

    async def run(self) -> None:
        """Take part until cancelled; after a failure, connect again."""
        await asyncio.sleep(random.uniform(0, 1))
        while True:
            try:
                await self._take_part()
            except (OSError, asyncio.IncompleteReadError, ValueError):
                self.failures += 1
                self._close()
                await asyncio.sleep(random.uniform(0.5, 1.5))

    async def _take_part(self) -> None:
        activate = ActivateNodeRequest(public_key=self._public, heartbeat_interval=30.0)
        answer = ActivateNodeResponse.FromString(await self._call("activate-node", activate))
        node = Node(node_id=answer.node_id)
        while True:
            body = await self._call("pull-messages", PullMessagesRequest(node=node))
            for message in PullMessagesResponse.FromString(body).messages_list:
                request = TrainRequest.unpack(unpack(message))
                upload = {"model": request.start}
                reply = TrainReply(request.job, request.round, request.client, upload).pack()
                metadata = Metadata(
                    src_node_id=node.node_id,
                    dst_node_id=SERVER,
                    reply_to_message_id=message.metadata.message_id,
                )
                push = PushMessagesRequest(node=node, messages_list=[pack(reply, metadata)[0]])
                await self._call("push-messages", push)
                self.replies += 1

    async def _call(self, path: str, message: Any) -> bytes:
        if self._streams is None:
            host, port = self._address
            self._streams = await asyncio.open_connection(host, port, ssl=self._tls, limit=2**16)
        reader, writer = self._streams
        body = message.SerializeToString()
        head = (
            f"POST /v1/fleet/{path} HTTP/1.1\r\nHost: server\r\n{self._signature()}"
            f"fedpbc-wait: 10\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        async with asyncio.timeout(60):
            answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(answer.partition("content-length: ")[2].split("\r\n")[0])
            content = await reader.readexactly(length)
        if " 200 " not in answer.split("\r\n")[0] + " ":
            raise ValueError(content.decode(errors="replace"))
        return content

    def _signature(self) -> str:
        """The headers with which Flower's nodes sign: the time, anew for every request."""
        now = datetime.now(UTC).isoformat()
        signature = b64encode(self._key.sign(now.encode(), ECDSA(SHA256()))).decode()
        public = b64encode(self._public).decode()
        return (
            f"flwr-public-key: {public}\r\nflwr-timestamp: {now}\r\nflwr-signature: {signature}\r\n"
        )

    def _close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._streams = None


async def run_devices(devices: list[SimulatedDevice]) -> None:
    """Run devices until cancelled."""
    async with asyncio.TaskGroup() as group:
        for device in devices:
            group.create_task(device.run())
