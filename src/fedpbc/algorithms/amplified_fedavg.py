"""Amplified FedAvg: the progress of every few rounds is amplified.

Wang, Ji: A Unified Analysis of Federated Learning with Arbitrary Client Participation, NeurIPS
2022.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from annotated_types import Ge

from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Updates, advanced

__all__ = ["AmplifiedFedAvg"]


class AmplifiedFedAvg(Algorithm):
    """FedAvg; at the end of every window of P rounds, go γ times as far as the window went.

    x ← mean over A^t of x + η_g·Δ_i
    if (t + 1) mod P = 0:   x ← y + γ·(x − y), y ← x

    y is the model at the start of the window, x^0 at first. Rounds without clients count, too.
    """

    name = "amplified_fedavg"
    paper = "Wang and Ji, NeurIPS 2022"
    robust_means = True
    tuned_options: ClassVar = {"window": (5, 50), "gamma": (1.0, 3.0)}

    def __init__(
        self,
        init: ServerInit,
        *,
        window: Annotated[int, Ge(1)] = 20,
        gamma: Annotated[float, Ge(1)] = 1.5,
    ) -> None:
        super().__init__(init)
        self.window, self.gamma = window, gamma
        self.window_start = self.x.clone()  # y

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Average the updates; at the end of a window, amplify."""
        if updates:
            self.x = self.mean_of(advanced(self.x, updates, self.global_lr))
        if (round.number + 1) % self.window == 0:
            self.end_window()

    def end_window(self) -> None:
        """Amplify what the window has brought."""
        start = self.window_start.double()
        self.x = start + self.gamma * (self.x.double() - start)
        # A vector of its own, also where a run ends here: the server needs both in the next round.
        self.window_start = self.x.clone()
