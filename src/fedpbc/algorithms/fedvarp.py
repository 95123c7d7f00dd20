"""FedVARP: variance reduction with the server's memory of every client's last update.

Jhunjhunwala, Sharma, Nagarkatti, Joshi: FedVARP: Tackling the Variance Due to Partial Client
Participation in Federated Learning, UAI 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Updates, mean

if TYPE_CHECKING:
    from fedpbc.algorithms.algorithm import Vector

__all__ = ["FedVARP"]


class FedVARP(Algorithm):
    """The remembered updates of all clients, corrected by what the active ones changed.

    x ← x + η_g [ mean over A^t of (Δ_i − y_i) + (1/m) Σ_all y_i ]
    y_i ← Δ_i for i in A^t
    """

    name = "fedvarp"
    paper = "Jhunjhunwala et al., UAI 2022"
    memory_aided = True

    def __init__(self, fleet: ServerInit) -> None:
        super().__init__(fleet)
        self.memory: dict[int, Vector] = {}
        # Σ_all y_i, kept up to date rather than added up anew over m·d numbers in every round.
        self.memory_total = self.x.double() * 0

    @classmethod
    def models_on_server(cls, clients: int) -> int:
        """The model and every client's memory."""
        return 1 + clients

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Correct the memory's mean by what is new, then remember it."""
        if not updates:
            return
        total = self.memory_total.clone()
        changes = []
        for update in updates:
            change = update.delta
            remembered = change.to(self.x.dtype)
            total += remembered.double()
            if update.client in self.memory:
                change = change - self.memory[update.client].double()
                total -= self.memory[update.client].double()
            self.memory[update.client] = remembered
            changes.append(change)
        step = mean(changes) + self.memory_total / self.clients
        self.x = self.x + self.global_lr * step
        self.memory_total = total
