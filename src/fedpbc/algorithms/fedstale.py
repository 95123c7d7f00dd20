"""FedStale: between FedAvg and FedVARP, with weights from estimated participation.

Rodio, Neglia: FedStale: Leveraging Stale Client Updates in Federated Learning, ECAI 2024.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from fedpbc.algorithms.algorithm import Round, ServerInit, Updates, Vector
from fedpbc.algorithms.fedau import FedAU

__all__ = ["FedStale"]

NO_CUTOFF = 10**8
"""As in the authors' code: an interval ends with a participation only."""


class FedStale(FedAU):
    """Mix fresh updates with remembered ones: β = 0 is FedAvg, β = 1 FedVARP, both with weights ω.

    x ← x + η_g · (1/m) [ Σ_A ω_i Δ_i + β ( Σ_all h_i − Σ_A ω_i h_i ) ]
    h_i ← Δ_i for i in A^t

    ω_i = 1/p̂_i is FedAU's: the mean interval between the client's participations before this
    round, 1 if there are none.
    """

    name = "fedstale"
    paper = "Rodio and Neglia, ECAI 2024"
    memory_aided = True
    tuned_options: ClassVar = {"beta": (0.2, 0.8)}

    def __init__(self, init: ServerInit, *, beta: Annotated[float, Ge(0), Le(1)] = 0.5) -> None:
        super().__init__(init, cutoff=NO_CUTOFF)
        self.beta = beta
        self.stored: dict[int, Vector] = {}  # h_i
        # Σ_all h_i, updated incrementally: summing m·d numbers in every round would be slow.
        self.stored_total = self.x.double() * 0

    def leave(self, client: int) -> None:
        """Forget what the client has sent."""
        super().leave(client)
        if (stored := self.stored.pop(client, None)) is not None:
            self.stored_total = self.stored_total - stored.double()

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Weight the updates and correct the memory, then store the updates."""
        if updates:
            weights, total = self.weights(), self.stored_total.clone()
            step = self.beta * self.stored_total
            for update in updates:
                fresh, before = update.delta, self.stored.get(update.client)
                stored = fresh.to(self.x.dtype)
                total += stored
                if before is not None:
                    fresh = fresh - self.beta * before.double()
                    total -= before
                step = step + float(weights[update.client]) * fresh
                self.stored[update.client] = stored
            self.x = self.x + self.global_lr * (step / self.members)
            self.stored_total = total
        self.record(round)
