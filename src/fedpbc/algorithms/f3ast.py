"""F3AST: select active clients with the lowest participation rates, and weight by those rates.

Ribero, Vikalo, de Veciana: Federated Learning Under Intermittent Client Availability and
Time-Varying Communication Constraints, IEEE J. Sel. Top. Signal Process. 2022.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Gt, Lt
from numpy.typing import NDArray

from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Updates

__all__ = ["F3AST"]


class F3AST(Algorithm):
    """Select at most `cap` active clients, lowest rates first; divide each by its rate.

    sel ← the up to `cap` clients of A^t with the largest 1/r_i² (ties by client number)
    r ← (1−β) r + β·1{i ∈ sel}
    x ← x + η_g · (1/m) Σ_sel Δ_i / r_i
    """

    name = "f3ast"
    paper = "Ribero et al., IEEE JSTSP 2022"
    tuned_options: ClassVar = {"beta": (0.001, 0.1), "cap": (30,)}

    def __init__(
        self,
        init: ServerInit,
        *,
        beta: Annotated[float, Gt(0), Lt(1)] = 0.01,
        cap: Annotated[int, Ge(1)] = 10,
    ) -> None:
        super().__init__(init)
        self.beta = beta
        self.cap = cap
        self.rates = np.ones(init.clients)

    def select(self, round: Round) -> NDArray[np.int64]:
        """The up to `cap` active clients with the lowest rates."""
        # A stable sort of ascending client numbers keeps ties in client order.
        by_rate = np.argsort(self.rates[round.active], kind="stable")
        return np.sort(round.active[by_rate[: self.cap]])

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Update the rates, in empty rounds too, then divide by the new ones."""
        selected = np.zeros(self.clients)
        selected[[update.client for update in updates]] = 1
        self.rates = (1 - self.beta) * self.rates + self.beta * selected
        if updates:
            total = sum(update.delta / float(self.rates[update.client]) for update in updates)
            self.x = self.x + self.global_lr * (total / self.members)
