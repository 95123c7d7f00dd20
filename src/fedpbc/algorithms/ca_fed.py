"""CA-Fed: clients that are rarely available, or in long spells, are left out where that pays.

Rodio, Faticanti, Marfoq, Neglia, Leonardi: Federated Learning under Heterogeneous and Correlated
Client Availability, INFOCOM 2023.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Lt
from numpy.typing import NDArray

from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Updates, Vector
from fedpbc.algorithms.client import ClientResult, ClientRule, ClientWork

__all__ = ["CAFed"]


class CAFedClient(ClientRule):
    """Upload the loss of the received model on the client's samples, besides the trained model."""

    uploads = ("model", "loss")

    def finish(self, work: ClientWork, end: Vector) -> ClientResult:
        """F_i(x)."""
        return ClientResult(upload={"loss": end.new_tensor([work.loss(work.start)])})


class CAFed(Algorithm):
    """Divide updates by estimated availability; leave out clients that cost more than they give.

    F̂_i ← b·F̂_i + (1−b)·F_i(x) for i in A^t;   π̂_i, λ̂_i ← availability and its correlation
    K ← all clients; then for i by |λ̂_i| descending, and again by π̂_i ascending:
        leave i out of K if ε(K) falls by at least τ
    x ← x + η_g · (1/m) Σ_{A∩K} Δ_i / π̂_i

    ε(K) = mean over K of F̂_i + κ·max F̂·(1 − |K|/m)²: the error of optimising for K only, and the
    bias that it costs.
    """

    name = "ca_fed"
    paper = "Rodio et al., INFOCOM 2023"
    tuned_options: ClassVar = {"smoothing": (0.5,), "bias": (4.0,)}

    def __init__(
        self,
        init: ServerInit,
        *,
        smoothing: Annotated[float, Ge(0), Lt(1)] = 0.0,
        threshold: Annotated[float, Ge(0)] = 0.0,
        bias: Annotated[float, Ge(0)] = 1.0,
    ) -> None:
        super().__init__(init)
        self.smoothing, self.threshold, self.bias = smoothing, threshold, bias  # b, τ, κ
        m = init.clients
        self.gone = np.zeros(m, dtype=bool)
        self.losses = np.full(m, np.nan)  # F̂_i
        self.was_active = np.zeros(m, dtype=bool)
        self.rounds_active = np.zeros(m, dtype=np.int64)
        # The round from which each client's availability counts.
        self.since = np.zeros(m, dtype=np.int64)
        # From one round to the next, [was down, was up] × clients: how often, and stayed so.
        self.spells = np.zeros((2, m), dtype=np.int64)
        self.spells_kept = np.zeros((2, m), dtype=np.int64)

    def join(self, round: int) -> None:
        """A new client's availability is that of the rounds from now on; its loss the others'."""
        super().join(round)
        self.since[-1] = round
        others = self.losses[:-1][~self.gone[:-1]]
        if not np.isnan(others).all():
            self.losses[-1] = others.mean()

    def leave(self, client: int) -> None:
        """Neither the client's loss nor its absence counts from now on."""
        super().leave(client)
        self.gone = self.gone | (np.arange(self.clients) == client)

    def client_rule(self) -> ClientRule:
        """The client's loss."""
        return CAFedClient()

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Update the estimates, choose the clients, and weight their updates."""
        availability, correlation = self._observe(round)
        if not updates:
            return
        self._note_losses({update.client: float(update["loss"]) for update in updates})
        kept = ~self.gone
        self._leave_out(kept, np.argsort(-np.abs(correlation), kind="stable"))
        self._leave_out(kept, np.argsort(availability, kind="stable"))
        total = self.x.double() * 0
        for update in updates:
            if kept[update.client]:
                total += update.delta / float(availability[update.client])
        self.x = self.x + self.global_lr * (total / self.members)

    def _observe(self, round: Round) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """π̂_i and λ̂_i with this round, both with Laplace's rule: no client is never there."""
        active = np.zeros(self.clients, dtype=bool)
        active[round.active] = True
        if round.number:
            for before in (0, 1):
                same = (self.was_active == bool(before)) & (self.since < round.number)
                self.spells[before] += same
                self.spells_kept[before] += same & (active == bool(before))
        self.was_active = active
        self.rounds_active += active
        stayed = (self.spells_kept + 1) / (self.spells + 2)
        rounds = round.number - self.since
        return (self.rounds_active + 1) / (rounds + 3), stayed.sum(axis=0) - 1

    def _note_losses(self, reported: dict[int, float]) -> None:
        clients, losses = list(reported), np.array(list(reported.values()))
        if np.isnan(self.losses[~self.gone]).all():
            # Clients that were not heard yet count as the mean of the first that were.
            self.losses = np.full(self.clients, losses.mean())
            self.losses[clients] = losses
        else:
            new = self.smoothing * self.losses[clients] + (1 - self.smoothing) * losses
            self.losses[clients] = new

    def _leave_out(self, kept: NDArray[np.bool_], order: Iterable[int]) -> None:
        """Leave clients out of ``kept``, in this order, where the error falls; never the last."""
        losses = np.where(self.gone, 0.0, np.maximum(self.losses, 0.0))
        highest, total, count = float(losses.max()), float(losses[kept].sum()), int(kept.sum())
        if not highest > 0:
            return

        def error(total: float, count: int) -> float:
            return total / count + self.bias * highest * (1 - count / self.members) ** 2

        for i in order:
            if kept[i] and count > 1:
                without = total - float(losses[i])
                gain = error(total, count) - error(without, count - 1)
                if gain > 0 and gain >= self.threshold:
                    kept[i], total, count = False, without, count - 1
