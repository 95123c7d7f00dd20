"""Messages over Flower's grid.

Flower's own pull waits until a reply has arrived completely: one device whose link breaks during an
upload, or that announces a reply and never sends it, would delay the round for all. Here each reply
is fetched in its own thread, and its failure concerns that device alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
)
from flwr.superlink.grid.http_grid import HttpGrid

from fedpbc.deployment.protocol.messages import MessageError, Payload, sanitized
from fedpbc.deployment.protocol.records import from_records, to_records
from fedpbc.deployment.server.server_loop import Reply

__all__ = ["FlowerTransport"]

LIST_SECONDS = 1.0
"""How often the list of online nodes is refreshed."""
LOST = {
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
}
"""Codes with which the SuperLink reports a message that expired, or a node that seems offline.

It drops the message then, so the message must be sent again.
"""


class FlowerTransport:
    """A :class:`fedpbc.deployment.server.server_loop.Transport` over Flower."""

    def __init__(self, grid: Grid) -> None:
        self._grid: Any = grid
        self._online: list[int] = []
        self._listed_at = -LIST_SECONDS
        # The node and the expiry of each message that may still get a reply.
        self._sent: dict[str, tuple[int, float]] = {}
        self._fetching: set[str] = set()
        self._ready: SimpleQueue[Reply] = SimpleQueue()

    def nodes(self) -> Iterable[int]:
        """The nodes that are online, by Flower's heartbeats."""
        if time.monotonic() - self._listed_at >= LIST_SECONDS:
            self._online = list(self._grid.get_node_ids())
            self._listed_at = time.monotonic()
        return self._online

    def send(self, node: int, payload: Payload, seconds: float) -> str | None:
        """Push a message."""
        kind = "query" if payload.kind == "hello" else "train"
        message = Message(to_records(payload), node, kind, ttl=seconds)
        pushed = list(self._grid.push_messages([message]))
        if not pushed or not pushed[0]:
            return None
        self._sent[pushed[0]] = node, time.monotonic() + seconds
        return str(pushed[0])

    def collect(self, messages: Sequence[str]) -> list[Reply]:
        """Start fetching replies, and return those that have arrived since the last call."""
        # Polling a message of an offline node would make the SuperLink drop it.
        online = set(self.nodes())
        pending = [
            name
            for name in messages
            if name in self._sent and self._sent[name][0] in online and name not in self._fetching
        ]
        if pending:
            self._start_fetching(pending)
        replies = []
        while not self._ready.empty():
            replies.append(self._ready.get())
            self._fetching.discard(replies[-1].message)
        earliest = time.monotonic() - 2 * LIST_SECONDS
        expired = [name for name, (_, expiry) in self._sent.items() if expiry < earliest]
        for name in set(expired) - set(messages):
            del self._sent[name]
        return replies

    def _start_fetching(self, names: Sequence[str]) -> None:
        """Fetch the replies to these messages that have been announced."""
        if not isinstance(self._grid, HttpGrid):
            # Another grid returns complete replies.
            for message in self._grid.pull_messages(names):
                name = message.metadata.reply_to_message_id
                self._ready.put(self._reply(name, self._sent[name][0], message))
            return
        pulled = self._grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=names))
        for head, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
            # The SuperLink's metadata, not the reply's content, which is untrusted.
            name = str(head.metadata.reply_to_message_id)
            if name not in self._sent or name in self._fetching:
                continue
            self._fetching.add(name)
            arguments = (name, *self._sent[name], head, tree)
            Thread(target=self._fetch, args=arguments, daemon=True).start()

    def _fetch(self, name: str, node: int, expiry: float, head: Any, tree: Any) -> None:
        try:
            self._ready.put(self._reply(name, node, self._pull(head, tree, expiry)))
        except Exception as error:
            # Whatever a device sends must not stop the server.
            reason = f"unreadable reply ({sanitized(f'{type(error).__name__}: {error}')})"
            self._ready.put(Reply(name, node, None, reason))

    def _pull(self, head: Any, tree: Any, expiry: float) -> Any:
        client = self._grid._runtime_client
        node, run, message = self._grid.node, head.metadata.run_id, head.metadata.message_id
        try:
            contents = pull_objects(
                [part.object_id for part in iterate_object_tree(tree)],
                make_pull_object_fn_protobuf(client.PullObject, node, run),
                max_time=max(expiry - time.monotonic(), 1.0),
                initial_backoff=0.1,
                backoff_cap=1.0,
            )
        finally:
            # The SuperLink may delete it.
            client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=message)
            )
        return inflate_object_from_contents(message, contents)

    @staticmethod
    def _reply(name: str, node: int, message: Any) -> Reply:
        if not isinstance(message, Message):
            raise MessageError("not a message")
        if message.has_error():
            reason = f"{sanitized(message.error.reason or 'failed')} (code {message.error.code})"
            return Reply(name, node, None, reason, lost=message.error.code in LOST)
        try:
            return Reply(name, node, from_records(message.content))
        except MessageError as error:
            return Reply(name, node, None, sanitized(str(error)))
