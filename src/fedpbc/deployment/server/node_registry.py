"""Which of Flower's nodes is which client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["NodeRegistry"]


class NodeRegistry:
    """The client of each node. A node is bound when it first connects, and stays bound."""

    def __init__(self, clients: int, *, rebind: bool = False) -> None:
        """Set up an empty registry; with ``rebind``, a client may return as another node."""
        self.clients, self.rebind = clients, rebind
        self.client_of: dict[int, int] = {}

    def bind(self, node: int, client: int) -> str | None:
        """Bind a node to the client that it claims to be; returns the reason if that fails."""
        if not 0 <= client < self.clients:
            return f"claims to be client {client}; there are 0 to {self.clients - 1}"
        if self.client_of.get(node, client) != client:
            return f"claims to be client {client}, but was client {self.client_of[node]}"
        other = next((n for n, c in self.client_of.items() if c == client), node)
        if other != node:
            if not self.rebind:
                return f"claims to be client {client}, which is node {other}"
            del self.client_of[other]
        self.client_of[node] = client
        return None

    def pin(self, pinned: Mapping[int, int], online: Iterable[int]) -> list[int]:
        """Bind nodes by their keys; returns the nodes that are new.

        A node counts from when it is first online: no round waits for one that never was.
        """
        self.client_of = {n: c for n, c in self.client_of.items() if pinned.get(n) == c}
        new = [n for n in online if n in pinned and n not in self.client_of]
        self.client_of |= {node: pinned[node] for node in new}
        return new
