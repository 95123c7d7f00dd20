"""One round at the server: who was asked, whose answer counts, and why another does not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from fedpbc.deployment.protocol.messages import MessageError, Payload, TrainReply
from fedpbc.engines.segment import all_finite

__all__ = ["Nodes", "RoundState"]


class Nodes:
    """Which node is which client. A node is bound when it is first heard, and stays so.

    Example:
        >>> nodes = Nodes(clients=2)
        >>> nodes.bind(901, 0)
        >>> nodes.bind(902, 0)
        'it says that it is client 0, which is node 901'
    """

    def __init__(self, clients: int, *, rebind: bool = False) -> None:
        self.clients, self.rebind = clients, rebind
        self.client_of: dict[int, int] = {}

    def bind(self, node: int, client: int) -> str | None:
        """Take a node's word for who it is; gives the reason if it cannot be."""
        if not 0 <= client < self.clients:
            return f"it says that it is client {client}; there are 0 to {self.clients - 1}"
        if self.client_of.get(node, client) != client:
            return f"it says that it is client {client}, but it was client {self.client_of[node]}"
        other = self.node_of(client)
        if other not in (None, node):
            if not self.rebind:
                return f"it says that it is client {client}, which is node {other}"
            del self.client_of[other]
        self.client_of[node] = client
        return None

    def pin(self, pinned: Mapping[int, int], online: Iterable[int]) -> list[int]:
        """Which node is which client is settled, by their keys; gives the nodes that are new.

        A node becomes known when it is first online: nobody waits for one that never was.
        """
        self.client_of = {n: c for n, c in self.client_of.items() if pinned.get(n) == c}
        new = [n for n in online if n in pinned and n not in self.client_of]
        self.client_of |= {node: pinned[node] for node in new}
        return new

    def node_of(self, client: int) -> int | None:
        """The node that a client is, if it was heard."""
        return next((n for n, c in self.client_of.items() if c == client), None)


class RoundState:
    """The answers of one round, keyed by message and client: each counts once, or not at all.

    Example:
        >>> from fedpbc.deployment.protocol.messages import Vector
        >>> under_way = RoundState("job", 3, dtype="float32", dimension=2)
        >>> under_way.ask("m1", node=901, client=0)
        >>> answer = TrainReply("job", 2, 0, Vector("float32", bytes(8)))
        >>> under_way.take("m1", 901, answer.pack())
        'its answer is of round 2; this is round 3'
    """

    def __init__(self, job: str, number: int, *, dtype: str, dimension: int) -> None:
        self.job, self.number = job, number
        self._dtype, self._dimension = dtype, dimension
        self._asked: dict[str, tuple[int, int]] = {}
        self.answers: dict[int, Tensor] = {}
        # Whose answer was refused: none will come that counts.
        self.refused: set[int] = set()

    def ask(self, message: str, node: int, client: int) -> None:
        """A message went out."""
        self._asked[message] = node, client

    def forget(self, message: str) -> None:
        """A message was lost: its client may be asked again."""
        self._asked.pop(message, None)

    def give_up(self, message: str) -> None:
        """No answer to this message will count."""
        if message in self._asked and (client := self._asked[message][1]) not in self.answers:
            self.refused.add(client)

    @property
    def messages(self) -> list[str]:
        """Those that have not been answered."""
        done = self.answers.keys() | self.refused
        return [message for message, (_, client) in self._asked.items() if client not in done]

    @property
    def asked(self) -> set[int]:
        """The clients that were asked."""
        return {client for _, client in self._asked.values()}

    def is_over(self, known: Collection[int]) -> bool:
        """Whether everybody known has answered, one way or the other."""
        return bool(known) and set(known) <= self.answers.keys() | self.refused

    def take(self, message: str, node: int, parcel: Payload) -> str | None:
        """Take an answer, or give the reason why it changes nothing."""
        if message not in self._asked:
            return f"it answers no message of round {self.number}: it is late, or not asked for"
        asked_node, client = self._asked[message]
        if node != asked_node:
            return f"it answers for node {asked_node}"
        if client in self.answers:
            return f"client {client} has answered in round {self.number} already"
        try:
            self.answers[client] = self._checked(client, parcel)
        except MessageError as error:
            self.refused.add(client)
            return str(error)
        self.refused.discard(client)
        return None

    def _checked(self, client: int, parcel: Payload) -> Tensor:
        answer = TrainReply.unpack(parcel)
        if answer.job != self.job:
            raise MessageError(f"its answer is of another job, {answer.job[:50]!r}")
        if answer.round != self.number:
            raise MessageError(
                f"its answer is of round {answer.round}; this is round {self.number}"
            )
        if answer.client != client:
            raise MessageError(f"it answers as client {answer.client}, but is client {client}")
        end = torch.from_numpy(answer.end.array(self._dtype, self._dimension))
        if not all_finite(end):
            raise MessageError("its model is not finite")
        return end
