"""Messages over Flower's grid, pushed and pulled by ourselves.

Flower's own way to pull waits until all of a reply is there: one device whose link is cut while it
sends, or that announces a reply and never sends it, would hold up everybody's round. Here every
reply is fetched in a thread of its own; what is wrong with it is said of that device alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from queue import Empty, SimpleQueue
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

from fedpbc.deployment.protocol.messages import MessageError, Payload, folded
from fedpbc.deployment.protocol.records import from_records, to_records
from fedpbc.deployment.server.server_loop import Reply

__all__ = ["FlowerTransport"]

LIST_SECONDS = 1.0
"""How often the SuperLink is asked who is there."""
GUESSES = {
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
}
"""What the SuperLink says where nothing came: it has expired, or a node seems to be offline.

It forgets the message then, so that it has to be sent again.
"""


class FlowerTransport:
    """A :class:`fedpbc.deployment.server.server_loop.Transport` over Flower."""

    def __init__(self, grid: Grid) -> None:
        self._grid: Any = grid
        self._online: list[int] = []
        self._listed = -LIST_SECONDS
        # The node and the end of each message that may still be answered.
        self._sent: dict[str, tuple[int, float]] = {}
        self._fetching: set[str] = set()
        self._ready: SimpleQueue[Reply] = SimpleQueue()

    def nodes(self) -> Iterable[int]:
        """Who is online, by Flower's own heartbeats."""
        if time.monotonic() - self._listed >= LIST_SECONDS:
            self._online = list(self._grid.get_node_ids())
            self._listed = time.monotonic()
        return self._online

    def send(self, node: int, parcel: Payload, seconds: float) -> str | None:
        """Push one message."""
        kind = "query" if parcel.kind == "hello" else "train"
        message = Message(to_records(parcel), node, kind, ttl=seconds)
        pushed = list(self._grid.push_messages([message]))
        if not pushed or not pushed[0]:
            return None
        self._sent[pushed[0]] = node, time.monotonic() + seconds
        return str(pushed[0])

    def collect(self, messages: Sequence[str]) -> list[Reply]:
        """Ask for what is there, and give what has come in the meantime."""
        # To ask after a message of a node that is offline would make the SuperLink forget it.
        online = set(self.nodes())
        wanted = [
            name
            for name in messages
            if name in self._sent and self._sent[name][0] in online and name not in self._fetching
        ]
        if wanted:
            self._begin(wanted)
        found = []
        while True:
            try:
                found.append(self._ready.get_nowait())
            except Empty:
                break
            self._fetching.discard(found[-1].message)
        over = time.monotonic() - 2 * LIST_SECONDS
        late = [name for name, (_, end) in self._sent.items() if end < over]
        for name in set(late) - set(messages):
            del self._sent[name]
        return found

    def _begin(self, wanted: Sequence[str]) -> None:
        """Fetch all replies that have been announced."""
        if not isinstance(self._grid, HttpGrid):
            # Some other grid, which has its replies at hand.
            for message in self._grid.pull_messages(wanted):
                name = message.metadata.reply_to_message_id
                self._ready.put(self._reply(name, self._sent[name][0], message))
            return
        asked = PullAppMessagesRequest(message_ids=wanted)
        pulled = self._grid._runtime_client.PullMessages(asked)
        for head, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
            # By what the SuperLink says, not by what is in the reply: that is its sender's.
            name = str(head.metadata.reply_to_message_id)
            if name not in self._sent or name in self._fetching:
                continue
            self._fetching.add(name)
            own = (name, *self._sent[name], head, tree)
            Thread(target=self._fetch, args=own, daemon=True).start()

    def _fetch(self, name: str, node: int, end: float, head: Any, tree: Any) -> None:
        try:
            self._ready.put(self._reply(name, node, self._whole(head, tree, end)))
        except Exception as error:
            # Whatever a device sends, it must not end the server.
            reason = f"its reply cannot be read ({folded(f'{type(error).__name__}: {error}')})"
            self._ready.put(Reply(name, node, None, reason))

    def _whole(self, head: Any, tree: Any, end: float) -> Any:
        client = self._grid._runtime_client
        here, run, own = self._grid.node, head.metadata.run_id, head.metadata.message_id
        try:
            contents = pull_objects(
                [part.object_id for part in iterate_object_tree(tree)],
                make_pull_object_fn_protobuf(client.PullObject, here, run),
                max_time=max(end - time.monotonic(), 1.0),
                initial_backoff=0.1,
                backoff_cap=1.0,
            )
        finally:
            # The SuperLink need not keep it any longer.
            received = ConfirmMessageReceivedRequest(node=here, run_id=run, message_object_id=own)
            client.ConfirmMessageReceived(received)
        return inflate_object_from_contents(own, contents)

    @staticmethod
    def _reply(name: str, node: int, message: Any) -> Reply:
        if not isinstance(message, Message):
            raise MessageError("it is no message")
        if message.has_error():
            reason = f"{folded(message.error.reason or 'it failed')} (code {message.error.code})"
            return Reply(name, node, None, reason, lost=message.error.code in GUESSES)
        try:
            return Reply(name, node, from_records(message.content))
        except MessageError as error:
            return Reply(name, node, None, folded(str(error)))
