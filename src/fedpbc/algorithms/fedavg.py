"""FedAvg: average the active clients.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data, AISTATS 2017.
"""

from __future__ import annotations

from fedpbc.algorithms.algorithm import Algorithm, Round, Updates, advanced

__all__ = ["FedAvg"]


class FedAvg(Algorithm):
    """Average the active clients; biased towards clients whose uplinks are up more often.

    x ← x + η_g · (1/|A^t|) Σ_A Δ_i
    """

    name = "fedavg"
    paper = "McMahan et al., AISTATS 2017"
    one_pass = True
    robust_means = True

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Average the active clients."""
        if updates:
            # The mean of x + η_g·Δ_i: with every link up these are the models FedPBC averages.
            self.x = self.mean_of(advanced(self.x, updates, self.global_lr))
