"""FedVARP: variance reduction with a server-side memory of every client's last update.

Jhunjhunwala, Sharma, Nagarkatti, Joshi: FedVARP: Tackling the Variance Due to Partial Client
Participation in Federated Learning, UAI 2022.
"""

from __future__ import annotations

from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Updates, Vector, mean

__all__ = ["FedVARP"]


class FedVARP(Algorithm):
    """Add the mean of all remembered updates, corrected by how the active clients' changed.

    x ← x + η_g [ mean over A^t of (Δ_i − y_i) + (1/m) Σ_all y_i ]
    y_i ← Δ_i for i in A^t
    """

    name = "fedvarp"
    paper = "Jhunjhunwala et al., UAI 2022"
    memory_aided = True

    def __init__(self, init: ServerInit) -> None:
        super().__init__(init)
        self.memory: dict[int, Vector] = {}  # y_i
        # Σ_all y_i, updated incrementally: summing m·d numbers in every round would be slow.
        self.memory_total = self.x.double() * 0

    def leave(self, client: int) -> None:
        """Forget what the client has sent."""
        super().leave(client)
        if (stored := self.memory.pop(client, None)) is not None:
            self.memory_total = self.memory_total - stored.double()

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Correct the mean of the memory by the changes, then store the new updates."""
        if not updates:
            return
        total = self.memory_total.clone()
        changes = []
        for update in updates:
            change = update.delta
            stored = change.to(self.x.dtype)
            total += stored.double()
            if update.client in self.memory:
                change = change - self.memory[update.client].double()
                total -= self.memory[update.client].double()
            self.memory[update.client] = stored
            changes.append(change)
        self.x = self.x + self.global_lr * (mean(changes) + self.memory_total / self.members)
        self.memory_total = total
