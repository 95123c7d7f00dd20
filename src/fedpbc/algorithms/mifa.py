"""MIFA: the server remembers every client's last update and uses all of them in every round.

Gu, Huang, Zhang, Huang: Fast Federated Learning in the Presence of Arbitrary Device Unavailability,
NeurIPS 2021.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Updates

if TYPE_CHECKING:
    from fedpbc.algorithms.algorithm import Vector

__all__ = ["MIFA"]


class MIFA(Algorithm):
    """A memory of every client's last update, all of it used in every round.

    G_i ← Δ_i for i in A^t
    x ← x + η_g · (1/m) Σ_all G_i            (also where A^t is empty)

    With ``rescale`` the memory holds Δ_i/η_t and is multiplied by the current η_t, as in the
    original.
    """

    name = "mifa"
    paper = "Gu et al., NeurIPS 2021"
    one_pass = True
    memory_aided = True

    def __init__(self, fleet: ServerInit, *, rescale: bool = False) -> None:
        super().__init__(fleet)
        self.rescale = rescale
        self.memory: dict[int, Vector] = {}
        # Σ_all G_i, kept up to date rather than added up anew over m·d numbers in every round.
        self.memory_total = self.x.double() * 0

    @classmethod
    def models_on_server(cls, clients: int) -> int:
        """The model and every client's memory."""
        return 1 + clients

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Remember what came, then move by the whole memory."""
        scale = round.learning_rate if self.rescale else 1.0
        total = self.memory_total.clone()
        for update in updates:
            remembered = (update.delta / scale).to(self.x.dtype)
            total += remembered.double()
            if update.client in self.memory:
                total -= self.memory[update.client].double()
            self.memory[update.client] = remembered
        self.memory_total = total
        self.x = self.x + self.global_lr * (scale * (total / self.clients))
