"""MIFA: the server stores every client's last update and applies all of them in every round.

Gu, Huang, Zhang, Huang: Fast Federated Learning in the Presence of Arbitrary Device Unavailability,
NeurIPS 2021.
"""

from __future__ import annotations

from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Updates, Vector

__all__ = ["MIFA"]


class MIFA(Algorithm):
    """Store every client's last update and apply all of them in every round.

    G_i ← Δ_i for i in A^t
    x ← x + η_g · (1/m) Σ_all G_i            (also if A^t is empty)

    With ``rescale``, G_i is Δ_i/η_t and the sum is multiplied by the current η_t, as in the
    original.
    """

    name = "mifa"
    paper = "Gu et al., NeurIPS 2021"
    one_pass = True
    memory_aided = True

    def __init__(self, init: ServerInit, *, rescale: bool = False) -> None:
        super().__init__(init)
        self.rescale = rescale
        self.memory: dict[int, Vector] = {}  # G_i
        # Σ_all G_i, updated incrementally: summing m·d numbers in every round would be slow.
        self.memory_total = self.x.double() * 0

    @classmethod
    def models_on_server(cls, clients: int) -> int:
        """The model and every G_i."""
        return 1 + clients

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Store the new updates, then apply the whole memory."""
        scale = round.learning_rate if self.rescale else 1.0
        total = self.memory_total.clone()
        for update in updates:
            stored = (update.delta / scale).to(self.x.dtype)
            total += stored.double()
            if update.client in self.memory:
                total -= self.memory[update.client].double()
            self.memory[update.client] = stored
        self.memory_total = total
        self.x = self.x + self.global_lr * (scale * (total / self.clients))
