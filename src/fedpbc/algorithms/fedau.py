"""FedAU: weights estimated from how long each client has kept the server waiting.

Wang, Ji: A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging,
ICLR 2024.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge

from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Updates

__all__ = ["FedAU"]


class FedAU(Algorithm):
    """Each update is weighted by the mean interval between its client's contacts so far.

    x ← x + η_g · (1/m) Σ_A ω_i Δ_i

    ω_i is the mean of the intervals recorded so far, 1 if there are none. An interval is recorded
    after the client was weighted; one that reaches the cut-off K is recorded and begun anew.
    """

    name = "fedau"
    paper = "Wang and Ji, ICLR 2024"
    one_pass = True

    def __init__(self, fleet: ServerInit, *, cutoff: Annotated[int, Ge(1)] = 50) -> None:
        super().__init__(fleet)
        self.cutoff = cutoff
        self.waited = np.zeros(fleet.clients, dtype=np.int64)
        self.intervals = np.zeros(fleet.clients, dtype=np.int64)
        self.interval_total = np.zeros(fleet.clients, dtype=np.int64)

    def weights(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """ω_i for every client."""
        recorded = np.maximum(self.intervals, 1)
        return np.where(self.intervals > 0, self.interval_total / recorded, 1.0)

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Weigh the active clients by what is known so far, then record their intervals."""
        if updates:
            weights = self.weights()
            total = sum(float(weights[update.client]) * update.delta for update in updates)
            self.x = self.x + self.global_lr * (total / self.clients)

        waited = self.waited + 1
        active = np.zeros(self.clients, dtype=bool)
        active[round.active] = True
        record = active | (waited >= self.cutoff)
        self.interval_total = self.interval_total + np.where(record, waited, 0)
        self.intervals = self.intervals + record
        self.waited = np.where(record, 0, waited)
