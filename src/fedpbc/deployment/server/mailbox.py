"""Messages to nodes, and their replies: in memory, shared by the round loop and the Fleet API.

A message stays until its node has replied or its time is over. A node that fetches again without
having replied gets the same message again, because the first may have been lost on the way; its
reply is the same to the bit, and the first counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from uuid import uuid4

from fedpbc.deployment.protocol.messages import Payload
from fedpbc.deployment.server.transport import ONLINE_SECONDS, Reply

__all__ = ["Mailbox", "PendingMessage", "UnexpectedReplyError"]

FIRST_REPEAT = 3.0
"""Seconds until a message may be fetched again; doubles each time."""


class UnexpectedReplyError(Exception):
    """A reply to no message, or of another node than the message was for."""


@dataclass(eq=False)
class PendingMessage:
    """A message to a node, on its way until it was replied to.

    Attributes:
        due: when it may be fetched next.
        pieces: of its content, if it is large and was fetched.
        reply_order: the ids of the pieces of a large reply, as announced.
        reply_pieces: those that have arrived.
    """

    name: str
    node: int
    payload: Payload
    expiry: float
    due: float
    repeat: float = FIRST_REPEAT
    is_answered: bool = False
    pieces: list[bytes] = field(default_factory=list)
    reply_order: list[str] = field(default_factory=list)
    reply_pieces: dict[str, bytes] = field(default_factory=dict)


class Mailbox:
    """A :class:`fedpbc.deployment.server.server_loop.Transport`; all methods are thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._lock = now, Lock()
        self._messages: dict[str, PendingMessage] = {}
        # The newest message of each node.
        self._newest: dict[int, PendingMessage] = {}
        self._heard: dict[int, float] = {}
        self._replies: list[Reply] = []
        self.on_send: Callable[[int], None] = lambda node: None

    def nodes(self) -> Iterable[int]:
        """The nodes that were heard of lately."""
        earliest = self._now() - ONLINE_SECONDS
        with self._lock:
            return [node for node, heard in self._heard.items() if heard > earliest]

    def send(self, node: int, payload: Payload, seconds: float) -> str | None:
        """Keep a message for a node; it replaces one that the node has not fetched."""
        now = self._now()
        message = PendingMessage(uuid4().hex, node, payload, now + seconds, now)
        with self._lock:
            self._messages[message.name] = self._newest[node] = message
        self.on_send(node)
        return message.name

    def collect(self, messages: Sequence[str]) -> list[Reply]:
        """The replies since the last call; forgets what expired and is not among ``messages``."""
        now, awaited = self._now(), set(messages)
        with self._lock:
            replies, self._replies = self._replies, []
            for name, message in list(self._messages.items()):
                if message.expiry < now and name not in awaited:
                    del self._messages[name]
                    if self._newest.get(message.node) is message:
                        del self._newest[message.node]
        return replies

    def mark_online(self, node: int) -> None:
        """Note that a node is there."""
        with self._lock:
            self._heard[node] = self._now()

    def leave(self, node: int) -> None:
        """Note that a node has said goodbye."""
        with self._lock:
            self._heard.pop(node, None)

    def fetch(self, node: int) -> PendingMessage | None:
        """The message that a node should handle next, if there is one."""
        now = self._now()
        with self._lock:
            message = self._newest.get(node)
            if message is None or message.is_answered or message.expiry <= now or message.due > now:
                return None
            message.due = now + message.repeat
            message.repeat *= 2
            return message

    def seconds_until_due(self, node: int) -> float:
        """How soon a message that was fetched may be fetched again; infinite if there is none."""
        with self._lock:
            message = self._newest.get(node)
        now = self._now()
        if message is None or message.is_answered or max(message.due, now) >= message.expiry:
            return float("inf")
        return max(message.due - now, 0.0)

    def message_for(self, name: str, node: int) -> PendingMessage:
        """The message of that name, if it was for this node; else an UnexpectedReplyError."""
        with self._lock:
            message = self._messages.get(name)
        if message is None:
            raise UnexpectedReplyError("replies to no message: late, or unsolicited")
        if message.node != node:
            raise UnexpectedReplyError(f"replies for node {message.node}")
        return message

    def reply(self, message: PendingMessage, payload: Payload | None, error: str = "") -> None:
        """Pass on the reply to a message; the first, if there are several."""
        with self._lock:
            if message.is_answered:
                return
            message.is_answered = True
            # Its vectors are not needed any more.
            message.payload, message.pieces, message.reply_pieces = Payload({}), [], {}
            self._replies.append(Reply(message.name, message.node, payload, error))

    def newest(self, node: int) -> PendingMessage | None:
        """The last message for a node, if it has not replied yet."""
        with self._lock:
            message = self._newest.get(node)
        return None if message is None or message.is_answered else message
