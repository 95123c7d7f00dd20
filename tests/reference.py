"""The ten algorithms as literal, slow transcriptions of their pseudo-code.

This is the reference that the tests compare with. It shares no code with the package, keeps every
client's model, and visits every client in every round. Arithmetic: sums over clients run in
ascending order in float64, and are rounded to the dtype of x0 when a model is stored. The memory of
each client (MIFA's G_i, FedVARP's y_i, SCAFFOLD's c_i) is stored in that dtype too; SCAFFOLD's c
stays in float64.

Notation: m clients, rounds t, A the active clients, s local steps, η_t and η_g the local and global
learning rates, Δ_i = (model after the local steps) − (model before).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

# local(client, start, round, first_batch, correction) -> the model after the s local steps
Local = Callable[[int, Tensor, int, int, Tensor | None], Tensor]
Views = dict[str, Tensor]

EMA = 0.05  # the weight of a new model in the view 'averaged'


def reference(
    algorithm: str,
    x0: Tensor,
    uplink: np.ndarray,
    local: Local,
    *,
    local_steps: int,
    learning_rate: Callable[[int], float],
    global_lr: float = 1.0,
    downlink: np.ndarray | None = None,
    probabilities: np.ndarray | None = None,
    **options: Any,
) -> Views:
    """Run every round of `uplink` (bool [rounds, clients]) and return the views at the end."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}")
    if algorithm == "fedavg_known" and probabilities is None:
        raise ValueError("fedavg_known needs probabilities")
    up = np.asarray(uplink, dtype=bool)
    down = np.ones_like(up) if downlink is None else np.asarray(downlink, dtype=bool)
    if x0.ndim != 1 or up.ndim != 2 or down.shape != up.shape:
        raise ValueError("x0 must be flat, uplink and downlink both [rounds, clients]")
    run = Run(x0, up, down, local, local_steps, learning_rate, global_lr, probabilities)
    if algorithm in OWN_MODELS:
        return OWN_MODELS[algorithm](run, **options)
    return from_server(run, FROM_SERVER[algorithm](run, **options))


class Run(NamedTuple):
    """The arguments of a run."""

    x0: Tensor
    up: np.ndarray
    down: np.ndarray
    local: Local
    s: int
    eta: Callable[[int], float]
    eta_g: float
    p: np.ndarray | None

    @property
    def m(self) -> int:
        return self.up.shape[1]

    def active(self, t: int) -> list[int]:
        """A^t."""
        return [i for i in range(self.m) if self.up[t, i]]

    def rounded(self, model: Tensor) -> Tensor:
        return model.to(self.x0.dtype)


def total(vectors: Iterable[Tensor]) -> Tensor:
    return sum((v.double() for v in vectors), start=torch.zeros((), dtype=torch.float64))


def mean(vectors: Iterable[Tensor]) -> Tensor:
    vectors = list(vectors)
    return total(vectors) / len(vectors)


# --- Clients train from their own models ----------------------------------------------------------


def fedpbc(run: Run) -> Views:
    x0, m = run.x0, run.m
    x, x_i = x0, [x0] * m
    averaged, reported = x0.double(), {}
    for t in range(len(run.up)):
        A = run.active(t)

        # On the clients: every one trains, x_i* = x_i + η_g·Δ_i.
        x_star = []
        for i in range(m):
            end = run.local(i, x_i[i], t, t * run.s, None)
            if run.eta_g != 1:
                delta = end.double() - x_i[i].double()
                end = run.rounded(x_i[i].double() + run.eta_g * delta)
            x_star.append(end)

        # On the server: x ← mean over A of x_i*, unless A is empty.
        if A:
            x = run.rounded(mean(x_star[i] for i in A))
            averaged = averaged + EMA * (x.double() - averaged)

        # x_i ← x for i in A that receive the broadcast, x_i ← x_i* for all others.
        x_i = [x if i in A and run.down[t, i] else x_star[i] for i in range(m)]
        reported |= {i: x_star[i] for i in A}
    return own_model_views(run, x, averaged, x_i, reported)


def fedawe(run: Run, clip: float = 0.5) -> Views:
    x0, m = run.x0, run.m
    x, x_i = x0, [x0] * m
    tau = [-1] * m  # the last round in which i was in A
    batches = [0] * m
    averaged, reported = x0.double(), {}
    for t in range(len(run.up)):
        A = run.active(t)
        if not A:
            continue

        # On the clients: A trains; the innovation of i is η_g·(t − τ_i)·Δ_i.
        innovation = {}
        for i in A:
            end = run.local(i, x_i[i], t, batches[i], None)
            batches[i] += run.s
            innovation[i] = run.eta_g * (t - tau[i]) * (end.double() - x_i[i].double())
            reported[i] = run.rounded(x_i[i].double() + innovation[i])

        # On the server: x ← mean of the starts + mean innovation, clipped to norm `clip` (0: not).
        step = mean(innovation[i] for i in A)
        norm = float(torch.linalg.vector_norm(step))
        if clip > 0 and norm > clip:
            step = step * (clip / norm)
        x = run.rounded(mean(x_i[i] for i in A) + step)
        averaged = averaged + EMA * (x.double() - averaged)

        # x_i ← x, or what i reported if the broadcast is lost; τ_i ← t either way.
        for i in A:
            x_i[i] = x if run.down[t, i] else reported[i]
            tau[i] = t
    return own_model_views(run, x, averaged, x_i, reported)


def own_model_views(
    run: Run, x: Tensor, averaged: Tensor, x_i: list[Tensor], reported: dict[int, Tensor]
) -> Views:
    last_reports = [reported[i] for i in sorted(reported)] or [run.x0]
    return {
        "server": x,
        "averaged": run.rounded(averaged),
        "mean": run.rounded(mean(x_i)),
        "reported": run.rounded(mean(last_reports)),
    }


# --- Clients train from the server's model --------------------------------------------------------


def from_server(run: Run, rule: Rule) -> Views:
    x = run.x0
    held = [x] * run.m  # the model that client i received last, or trained since
    batches = [0] * run.m
    averaged = x.double()
    for t in range(len(run.up)):
        A = rule.select(run.active(t))

        # On the clients: the selected ones train from the model they hold.
        start, end, delta = {}, {}, {}
        for i in A:
            start[i] = held[i]
            end[i] = run.local(i, start[i], t, batches[i], rule.correction(i))
            batches[i] += run.s
            delta[i] = end[i].double() - start[i].double()

        # On the server.
        x = run.rounded(rule.server(t, x, A, start, end, delta))
        if A:
            averaged = averaged + EMA * (x.double() - averaged)

        # The broadcast. A client that does not receive it keeps its model, trained or not.
        for i in range(run.m):
            if run.down[t, i]:
                held[i] = x
            elif i in end:
                held[i] = end[i]
    return {"server": x, "averaged": run.rounded(averaged)}


class Rule:
    """A server rule; by default all of A train, without a correction."""

    def __init__(self, run: Run) -> None:
        self.run, self.m, self.eta_g = run, run.m, run.eta_g
        self.zeros = torch.zeros_like(run.x0)

    def select(self, A: list[int]) -> list[int]:
        return A

    def correction(self, i: int) -> Tensor | None:
        return None

    def server(
        self,
        t: int,
        x: Tensor,
        A: list[int],
        start: dict[int, Tensor],
        end: dict[int, Tensor],
        delta: dict[int, Tensor],
    ) -> Tensor:
        """The new x, before rounding; called for empty A too."""
        raise NotImplementedError


class FedAvg(Rule):
    def server(self, t, x, A, start, end, delta):
        if not A:
            return x
        # x ← x + η_g·mean over A of Δ_i, as the mean of x + η_g·Δ_i: the models themselves if they
        # started from x, so that it equals FedPBC to the bit.
        return mean(
            end[i]
            if self.eta_g == 1 and torch.equal(start[i], x)
            else x.double() + self.eta_g * delta[i]
            for i in A
        )


class FedAvgAll(Rule):
    def server(self, t, x, A, start, end, delta):
        return x.double() + self.eta_g * (total(delta[i] for i in A) / self.m)


class FedAvgKnown(Rule):
    def server(self, t, x, A, start, end, delta):
        p = self.run.p[t]
        return x.double() + self.eta_g * (total(delta[i] / float(p[i]) for i in A) / self.m)


class FedAU(Rule):
    def __init__(self, run: Run, cutoff: int = 50) -> None:
        super().__init__(run)
        self.cutoff = cutoff
        self.counter = [0] * self.m
        self.intervals: list[list[int]] = [[] for _ in range(self.m)]

    def server(self, t, x, A, start, end, delta):
        omega = [sum(seen) / len(seen) if seen else 1.0 for seen in self.intervals]
        for i in range(self.m):
            self.counter[i] += 1
            if i in A or self.counter[i] >= self.cutoff:
                self.intervals[i].append(self.counter[i])
                self.counter[i] = 0
        return x.double() + self.eta_g * (total(omega[i] * delta[i] for i in A) / self.m)


class F3AST(Rule):
    def __init__(self, run: Run, beta: float = 0.01, cap: int = 10) -> None:
        super().__init__(run)
        self.beta, self.cap = beta, cap
        self.r = [1.0] * self.m

    def select(self, A):
        ranked = sorted(A, key=lambda i: (-1 / self.r[i] ** 2, i))
        selected = sorted(ranked[: self.cap])
        for i in range(self.m):
            self.r[i] = (1 - self.beta) * self.r[i] + self.beta * (1.0 if i in selected else 0.0)
        return selected

    def server(self, t, x, A, start, end, delta):
        return x.double() + self.eta_g * (total(delta[i] / self.r[i] for i in A) / self.m)


class MIFA(Rule):
    def __init__(self, run: Run, rescale: bool = False) -> None:
        super().__init__(run)
        self.rescale = rescale
        self.G = [self.zeros] * self.m

    def server(self, t, x, A, start, end, delta):
        scale = self.run.eta(t) if self.rescale else 1.0
        for i in A:
            self.G[i] = self.run.rounded(delta[i] / scale)
        return x.double() + self.eta_g * (scale * (total(self.G) / self.m))


class FedVARP(Rule):
    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.y = [self.zeros] * self.m

    def server(self, t, x, A, start, end, delta):
        if not A:
            return x
        change = mean(delta[i] - self.y[i] for i in A)
        x = x.double() + self.eta_g * (change + total(self.y) / self.m)
        for i in A:
            self.y[i] = self.run.rounded(delta[i])
        return x


class Scaffold(Rule):
    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.c = self.zeros.double()
        self.c_i = [self.zeros] * self.m

    def correction(self, i):
        return self.run.rounded(self.c - self.c_i[i])

    def server(self, t, x, A, start, end, delta):
        if not A:
            return x
        s_eta = self.run.s * self.run.eta(t)
        c_plus = {i: self.run.rounded(self.c_i[i] - self.c - delta[i] / s_eta) for i in A}
        self.c = self.c + total(c_plus[i].double() - self.c_i[i].double() for i in A) / self.m
        for i in A:
            self.c_i[i] = c_plus[i]
        return x.double() + self.eta_g * mean(delta[i] for i in A)


OWN_MODELS: dict[str, Callable[..., Views]] = {"fedpbc": fedpbc, "fedawe": fedawe}
FROM_SERVER: dict[str, type[Rule]] = {
    "fedavg": FedAvg,
    "fedavg_all": FedAvgAll,
    "fedavg_known": FedAvgKnown,
    "fedau": FedAU,
    "f3ast": F3AST,
    "mifa": MIFA,
    "fedvarp": FedVARP,
    "scaffold": Scaffold,
}
ALGORITHMS = (*OWN_MODELS, *FROM_SERVER)
