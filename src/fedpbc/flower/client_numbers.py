"""Which of Flower's nodes is which client of the algorithm."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fedpbc.flower.messages import Identity

__all__ = ["ClientNumbers"]


class ClientNumbers:
    """The number of each client, from 0 to m − 1.

    A client is known by its partition, where the node's configuration has one: without keys,
    Flower gives a node another id whenever it, or the run, is started again. Its number is that of
    its partition. Other nodes are known by their ids, and numbered in the order of their coming.

    Example:
        >>> numbers = ClientNumbers(3)
        >>> numbers.bind(80, Identity(partition=2), online={80})
        >>> numbers.bind(91, Identity(), online={80, 91})
        >>> numbers.of
        {80: 2, 91: 0}
    """

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.of: dict[int, int] = {}
        # The partition of each client, or None for one that is known by its node.
        self._partitions: dict[int, int | None] = {}

    def bind(self, node: int, identity: Identity, online: Collection[int]) -> str | None:
        """Give a node its number; returns the reason if it gets none."""
        partition = identity.partition
        if partition < 0:
            free = [i for i in range(self.clients) if i not in self._partitions]
            if not free:
                return f"there are {self.clients} clients already; the option clients= allows more"
            number = free[0]
        elif partition >= self.clients:
            return f"its partition-id is {partition}, but the job has {self.clients} clients"
        else:
            number = partition
            if self._partitions.get(number, number) is None:
                return f"its partition-id is {partition}, but that number is another node's"
            holder = next((n for n, c in self.of.items() if c == number and n != node), None)
            if holder is not None:
                if holder in online:
                    return f"its partition-id is {partition}, which is that of node {holder}"
                del self.of[holder]
        self.of[node] = number
        self._partitions[number] = partition if partition >= 0 else None
        return None

    def changed(self, node: int, identity: Identity) -> bool:
        """Whether a node now says that it is another client; then it must be bound again."""
        number = self.of.get(node)
        partition = None if identity.partition < 0 else identity.partition
        if number is None or self._partitions[number] == partition:
            return False
        del self.of[node]
        return True

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        partitions = {i: -1 if p is None else p for i, p in self._partitions.items()}
        return {"clients": self.clients, "nodes": dict(self.of), "partitions": partitions}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> ClientNumbers:
        """Continue from :meth:`state`."""
        numbers = cls(int(state["clients"]))
        numbers.of = {int(n): int(c) for n, c in state["nodes"].items()}
        numbers._partitions = {
            int(i): None if p < 0 else int(p) for i, p in state["partitions"].items()
        }
        return numbers
