"""Debiased FedAvg: updates are weighted by the inverse of how often their clients took part.

Sun, Zhang, Xu, Joshi, Sharma, Wei: Debiasing Federated Learning with Correlated Client
Participation, ICLR 2025.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge

from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Updates

__all__ = ["FedAvgDebiased"]


class FedAvgDebiased(Algorithm):
    """Divide each update by its client's share of the rounds so far, this one included.

    x ← x + η_g · (1/m) Σ_A Δ_i / π̂_i,   π̂_i = (participations of i)/(t + 1)

    1/π̂_i is at most ``cap``; 0 disables that.
    """

    name = "fedavg_debiased"
    paper = "Sun et al., ICLR 2025"
    one_pass = True
    tuned_options: ClassVar = {"cap": (5.0, 50.0)}

    def __init__(self, init: ServerInit, *, cap: Annotated[float, Ge(0)] = 0.0) -> None:
        super().__init__(init)
        self.cap = cap
        self.participations = np.zeros(init.clients, dtype=np.int64)
        # The round from which each client's share counts.
        self.since = np.zeros(init.clients, dtype=np.int64)

    def join(self, round: int) -> None:
        """A new client's share is that of the rounds from now on."""
        super().join(round)
        self.since[-1] = round

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Count this round, then weight by the counts."""
        self.participations[round.active] += 1
        if updates:
            rounds = round.number + 1 - self.since
            weights = rounds / np.maximum(self.participations, 1)
            if self.cap:
                weights = np.minimum(weights, self.cap)
            total = sum(float(weights[update.client]) * update.delta for update in updates)
            self.x = self.x + self.global_lr * (total / self.members)
