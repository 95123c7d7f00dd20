"""FedAvg over all clients: inactive clients count as zero updates.

The paper's baseline FedAvg-all: McMahan et al., AISTATS 2017, with the sum divided by m.
"""

from __future__ import annotations

from fedpbc.algorithms.algorithm import Algorithm, Round, Updates

__all__ = ["FedAvgAll"]


class FedAvgAll(Algorithm):
    """Sum the active clients' updates and divide by all m: inactive clients count as zero.

    x ← x + η_g · (1/m) Σ_A Δ_i
    """

    name = "fedavg_all"
    paper = "McMahan et al., AISTATS 2017; the paper's baseline FedAvg-all"
    one_pass = True
    robust_means = True

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Add the sum over the active clients, divided by m."""
        if updates:
            if self.aggregation.is_mean:
                total = sum(update.delta for update in updates)
            else:
                # The sum is |A^t| times the mean, which something else replaces.
                total = len(updates) * self.mean_of(update.delta for update in updates)
            self.x = self.x + self.global_lr * (total / self.members)
