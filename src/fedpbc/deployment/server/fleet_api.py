"""Flower's Fleet API, as the server offers it to devices.

Only what a device needs: to connect, to fetch messages and to reply. There is no interface through
which anyone could start a run or name an app, and nothing that a device would unpack.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    DeactivateNodeRequest,
    DeactivateNodeResponse,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
    RegisterNodeFleetRequest,
    RegisterNodeFleetResponse,
    UnregisterNodeFleetRequest,
    UnregisterNodeFleetResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    Metadata,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from google.protobuf.message import DecodeError

from fedpbc.deployment.protocol.flower_messages import (
    joined,
    most_pieces,
    pack,
    piece_name,
    pieces_of,
    unpack,
)
from fedpbc.deployment.protocol.messages import MessageError, sanitized
from fedpbc.deployment.security.key_directory import KeyDirectory
from fedpbc.deployment.security.node_identity import PUBLIC_KEY, NodeSignatures, node_number
from fedpbc.deployment.server.mailbox import Mailbox, PendingMessage, UnexpectedReplyError

__all__ = ["WAIT", "FleetApi", "RefusedCallError"]

LOG = logging.getLogger("fedpbc.deployment")
WAIT = b"fedpbc-wait"
"""For how many seconds a device waits if there is no message for it yet."""
LONGEST_WAIT = 30.0
PREFIX = b"/v1/fleet/"
KEYS_SECONDS = 1.0
"""How often the folder of keys is read."""


class RefusedCallError(Exception):
    """A call that fails: the status and the reason to respond with."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class FleetApi:
    """Answers the calls of devices from a mailbox; to be used in one event loop."""

    def __init__(self, mailbox: Mailbox, keys: KeyDirectory | None, largest_reply: int) -> None:
        """Set up the interface; without ``keys``, any node may register with a key of its own."""
        self._mailbox, self._keys, self._largest_reply = mailbox, keys, largest_reply
        self._known: dict[str, str] = {}
        self._read_at = -KEYS_SECONDS
        self._signatures = NodeSignatures()
        # A node that fetches again has given up on its last call.
        self._waiting: dict[int, asyncio.Event] = {}
        self._calls: dict[bytes, tuple[type[Any], Callable[[int, Any, float], Awaitable[Any]]]] = {
            b"register-node": (RegisterNodeFleetRequest, self._register),
            b"unregister-node": (UnregisterNodeFleetRequest, self._unregister),
            b"activate-node": (ActivateNodeRequest, self._activate),
            b"deactivate-node": (DeactivateNodeRequest, self._deactivate),
            b"send-node-heartbeat": (SendNodeHeartbeatRequest, self._heartbeat),
            b"pull-messages": (PullMessagesRequest, self._pull_messages),
            b"push-messages": (PushMessagesRequest, self._push_messages),
            b"pull-object": (PullObjectRequest, self._pull_object),
            b"push-object": (PushObjectRequest, self._push_object),
            b"confirm-message-received": (ConfirmMessageReceivedRequest, self._confirm),
        }

    async def call(self, path: bytes, headers: Mapping[bytes, bytes], body: bytes) -> bytes:
        """Answer a call; a RefusedCallError if it is not allowed or not understood."""
        kind, handle = self._calls.get(path.removeprefix(PREFIX), (None, None))
        if not path.startswith(PREFIX) or kind is None or handle is None:
            # A stock SuperNode asks for the run and its app.
            raise RefusedCallError(404, "no such call: does the device run this version?")
        node = self._authenticate(headers)
        request = kind()
        try:
            request.ParseFromString(body)
            wait = min(max(float(headers.get(WAIT, b"0")), 0.0), LONGEST_WAIT)
        except (DecodeError, ValueError):
            raise RefusedCallError(400, "malformed call") from None
        claimed = request.node.node_id if hasattr(request, "node") else node
        if claimed != node:
            raise RefusedCallError(401, "the key is not that node's")
        self._mailbox.mark_online(node)
        try:
            response = await handle(node, request, wait)
        except UnexpectedReplyError as error:
            raise RefusedCallError(409, str(error)) from None
        content: bytes = response.SerializeToString()
        return content

    def wake(self, node: int) -> None:
        """Let a waiting node look for messages."""
        if (event := self._waiting.get(node)) is not None:
            event.set()

    def _authenticate(self, headers: Mapping[bytes, bytes]) -> int:
        if self._keys is not None:
            if time.monotonic() - self._read_at >= KEYS_SECONDS:
                self._known, self._read_at = self._keys.names_by_key(), time.monotonic()
            if headers.get(PUBLIC_KEY, b"").decode("latin-1") not in self._known:
                raise RefusedCallError(401, "unknown key")
        try:
            return node_number(self._signatures.signer(headers))
        except ValueError as error:
            raise RefusedCallError(401, str(error)) from None

    async def _register(self, node: int, request: Any, wait: float) -> Any:
        if self._keys is not None:
            raise RefusedCallError(403, "devices register by their file in the server's keys")
        return RegisterNodeFleetResponse(node_id=node)

    async def _unregister(self, node: int, request: Any, wait: float) -> Any:
        self._mailbox.leave(node)
        return UnregisterNodeFleetResponse()

    async def _activate(self, node: int, request: Any, wait: float) -> Any:
        return ActivateNodeResponse(node_id=node)

    async def _deactivate(self, node: int, request: Any, wait: float) -> Any:
        self._mailbox.leave(node)
        return DeactivateNodeResponse()

    async def _heartbeat(self, node: int, request: Any, wait: float) -> Any:
        return SendNodeHeartbeatResponse(success=True)

    async def _pull_messages(self, node: int, request: Any, wait: float) -> Any:
        """Return the node's message; if there is none, wait for one for a while."""
        self.wake(node)
        event = self._waiting[node] = asyncio.Event()
        deadline = time.monotonic() + wait
        try:
            while True:
                event.clear()
                if (pending := self._mailbox.fetch(node)) is not None:
                    return self._delivery(pending)
                left = deadline - time.monotonic()
                if left <= 0 or self._waiting.get(node) is not event:
                    return PullMessagesResponse()
                try:
                    async with asyncio.timeout(
                        min(left, self._mailbox.seconds_until_due(node) + 0.01)
                    ):
                        await event.wait()
                except TimeoutError:
                    continue
        finally:
            self._mailbox.mark_online(node)
            if self._waiting.get(node) is event:
                del self._waiting[node]

    @staticmethod
    def _delivery(pending: PendingMessage) -> Any:
        metadata = Metadata(
            message_id=pending.name,
            dst_node_id=pending.node,
            message_type="query" if pending.payload.kind == "hello" else "train",
            ttl=max(pending.expiry - time.monotonic(), 0.0),
            created_at=time.time(),
        )
        message, pending.pieces = pack(pending.payload, metadata)
        tree = pieces_of(pending.name, pending.pieces) if pending.pieces else ObjectTree()
        return PullMessagesResponse(messages_list=[message], message_object_trees=[tree])

    async def _push_messages(self, node: int, request: Any, wait: float) -> Any:
        """Take a reply that came whole, or note which pieces of it will follow."""
        if len(request.messages_list) != 1:
            raise RefusedCallError(400, "one reply is expected")
        [message], trees = request.messages_list, request.message_object_trees
        pending = self._mailbox.message_for(message.metadata.reply_to_message_id, node)
        names = [tree.object_id for tree in trees[0].children] if trees else []
        if pending.is_answered:
            return PushMessagesResponse()
        if not names:
            self._pass_on(pending, lambda: unpack(message))
            return PushMessagesResponse()
        if len(names) > most_pieces(self._largest_reply):
            raise RefusedCallError(413, f"a reply in {len(names):,} pieces is too large")
        if pending.reply_order != names:
            pending.reply_order, pending.reply_pieces = names, {}
        missing = [name for name in dict.fromkeys(names) if name not in pending.reply_pieces]
        return PushMessagesResponse(objects_to_push=missing, session_id=pending.name)

    async def _push_object(self, node: int, request: Any, wait: float) -> Any:
        pending = self._mailbox.message_for(request.session_id, node)
        piece, name = request.object_content, request.object_id
        if pending.is_answered:
            return PushObjectResponse(stored=True)
        if name not in pending.reply_order or piece_name(piece) != name:
            raise RefusedCallError(400, "no piece of this reply")
        pending.reply_pieces[name] = piece
        if sum(map(len, pending.reply_pieces.values())) > self._largest_reply:
            pending.reply_order, pending.reply_pieces = [], {}
            raise RefusedCallError(413, f"a reply of more than {self._largest_reply:,} bytes")
        if pending.reply_pieces.keys() >= set(pending.reply_order):
            pieces = [pending.reply_pieces[each] for each in pending.reply_order]
            self._pass_on(pending, lambda: joined(pieces))
        return PushObjectResponse(stored=True)

    def _pass_on(self, pending: PendingMessage, read: Callable[[], Any]) -> None:
        try:
            self._mailbox.reply(pending, read())
        except MessageError as error:
            self._mailbox.reply(pending, None, sanitized(str(error)))
        except Exception as error:
            # Whatever a device sends must not stop the server.
            reason = f"unreadable reply ({sanitized(type(error).__name__)})"
            self._mailbox.reply(pending, None, reason)

    async def _pull_object(self, node: int, request: Any, wait: float) -> Any:
        pending = self._mailbox.newest(node)
        for piece in [] if pending is None else pending.pieces:
            if piece_name(piece) == request.object_id:
                return PullObjectResponse(
                    object_found=True, object_available=True, object_content=piece
                )
        return PullObjectResponse()

    async def _confirm(self, node: int, request: Any, wait: float) -> Any:
        # Only a reply says that a message has arrived.
        return ConfirmMessageReceivedResponse()
