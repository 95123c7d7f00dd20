"""How the round loop reaches nodes: messages out, replies in. Independent of Flower."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedpbc.deployment.protocol.messages import Payload

__all__ = ["ONLINE_SECONDS", "Reply", "Transport"]

ONLINE_SECONDS = 45.0
"""A node that was silent for this long counts as offline: devices send something every 20 s."""


@dataclass(frozen=True, eq=False)
class Reply:
    """The reply to a message, or the error instead of one.

    ``lost``: the message was probably never delivered, and may be sent again.
    """

    message: str
    node: int
    payload: Payload | None
    error: str = ""
    lost: bool = False


class Transport(Protocol):
    """Sends messages to nodes and collects their replies."""

    def nodes(self) -> Iterable[int]:
        """The nodes that seem to be online."""

    def send(self, node: int, payload: Payload, seconds: float) -> str | None:
        """Send a message that expires after so long; returns its id, or None if that failed."""

    def collect(self, messages: Sequence[str]) -> list[Reply]:
        """The replies to these messages that arrived since the last call."""
