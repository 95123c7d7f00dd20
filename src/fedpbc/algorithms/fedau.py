"""FedAU: weights estimated from the intervals between each client's participations.

Wang, Ji: A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging,
ICLR 2024.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Updates

__all__ = ["FedAU"]


class FedAU(Algorithm):
    """Weight each update by the mean interval between its client's participations so far.

    x ← x + η_g · (1/m) Σ_A ω_i Δ_i

    ω_i is the mean of the recorded intervals, 1 if there are none. An interval is recorded after
    the client is weighted. One that reaches the cutoff K is recorded, and a new one starts. With
    ``over="heard"`` the sum is divided by the number of clients heard from so far instead of m.
    """

    name = "fedau"
    paper = "Wang and Ji, ICLR 2024"
    one_pass = True
    later_options = ("over",)
    tuned_options: ClassVar = {"cutoff": (5, 20, 200), "over": ("heard",)}

    def __init__(
        self,
        init: ServerInit,
        *,
        cutoff: Annotated[int, Ge(1)] = 50,
        over: Literal["all", "heard"] = "all",
    ) -> None:
        super().__init__(init)
        self.cutoff, self.over = cutoff, over
        self.heard = np.zeros(init.clients, dtype=bool)
        self.waited = np.zeros(init.clients, dtype=np.int64)
        self.intervals = np.zeros(init.clients, dtype=np.int64)
        self.interval_total = np.zeros(init.clients, dtype=np.int64)

    def leave(self, client: int) -> None:
        """The client is no longer one of those heard."""
        super().leave(client)
        self.heard = self.heard & (np.arange(self.clients) != client)

    def weights(self) -> NDArray[np.float64]:
        """ω_i for every client."""
        mean_interval = self.interval_total / np.maximum(self.intervals, 1)
        return np.where(self.intervals > 0, mean_interval, 1.0)

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Weight the active clients by the intervals so far, then record their new intervals."""
        self.heard[round.active] = True
        if updates:
            weights = self.weights()
            total = sum(float(weights[update.client]) * update.delta for update in updates)
            count = int(self.heard.sum()) if self.over == "heard" else self.members
            self.x = self.x + self.global_lr * (total / count)
        self.record(round)

    def record(self, round: Round) -> None:
        """Record the intervals that end with a round."""
        waited = self.waited + 1
        active = np.zeros(self.clients, dtype=bool)
        active[round.active] = True
        ended = active | (waited >= self.cutoff)
        self.interval_total = self.interval_total + np.where(ended, waited, 0)
        self.intervals = self.intervals + ended
        self.waited = np.where(ended, 0, waited)
