"""FedAWE: weight each client's innovation by the number of rounds since it was last active.

Xiang, Ioannidis, Yeh, Joe-Wong, Su: Efficient Federated Learning against Heterogeneous and
Non-stationary Client Unavailability, NeurIPS 2024.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge

from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Update, Updates, Vector

__all__ = ["FedAWE"]


class FedAWE(Algorithm):
    """Active clients train from their own models; innovations are scaled by the rounds missed.

    x ← mean over A^t of x_i, plus η_g times the mean of (t − τ_i)·Δ_i
    x_i ← x, τ_i ← t for i in A^t

    τ_i is the last round in which i was active, −1 at first. As in the authors' code, the server
    clips the mean innovation to the norm ``clip``, before η_g; 0 disables clipping, which is their
    Algorithm 1. What a client reports, x_i + η_g·(t − τ_i)·Δ_i, is not clipped.
    """

    name = "fedawe"
    paper = "Xiang et al., NeurIPS 2024"
    one_pass = True
    client_models = True
    robust_means = True
    tuned_options: ClassVar = {"clip": (0.1, 2.0, 0.0)}

    def __init__(self, init: ServerInit, *, clip: Annotated[float, Ge(0)] = 0.5) -> None:
        super().__init__(init)
        self.clip = clip
        self.last_active = np.full(init.clients, -1, dtype=np.int64)

    def join(self, round: int) -> None:
        """A new client has missed nothing."""
        super().join(round)
        self.last_active[-1] = round - 1

    def innovation(self, round: Round, update: Update) -> Vector:
        """(t − τ_i)·Δ_i."""
        return (round.number - int(self.last_active[update.client])) * update.delta

    def report(self, round: Round, update: Update) -> Vector:
        """The client's start plus η_g times its innovation, unclipped."""
        start = update.shared_start
        return (start + self.global_lr * self.innovation(round, update)).to(start.dtype)

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Add the clipped mean innovation to the mean of the starts."""
        if not updates:
            return
        start = self.x.double() * 0

        def innovations() -> Iterator[Vector]:
            for update in updates:
                start.add_(update.shared_start)
                yield self.innovation(round, update)

        # The starts are the server's own: only the innovations come from clients.
        innovation = self.mean_of(innovations())
        start = start / len(updates)
        norm = float(innovation.norm())
        if self.clip and norm > self.clip:
            innovation = innovation * (self.clip / norm)
        self.x = start + self.global_lr * innovation
        self.last_active[round.active] = round.number
