"""FedAvg over all clients: those that did not get through count as zero updates.

The paper's baseline «FedAvg all» (McMahan et al., AISTATS 2017, with the sum over all clients).
"""

from __future__ import annotations

from fedpbc.algorithms.algorithm import Algorithm, Round, Updates

__all__ = ["FedAvgAll"]


class FedAvgAll(Algorithm):
    """The sum over the active clients divided by all m: silence counts as a zero update.

    x ← x + η_g · (1/m) Σ_A Δ_i
    """

    name = "fedavg_all"
    paper = "McMahan et al., AISTATS 2017; the paper's «FedAvg all»"
    one_pass = True

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Add the active clients' share."""
        if updates:
            total = sum(update.delta for update in updates)
            self.x = self.x + self.global_lr * (total / self.clients)
