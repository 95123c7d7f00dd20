"""The algorithms as literal, slow transcriptions of their pseudo-code.

This is the reference that the tests compare with. It shares no code with the package, keeps every
client's model, and visits every client in every round. Arithmetic: sums over clients run in
ascending order in float64, and are rounded to the dtype of x0 when a model is stored.

Rounded to the dtype of x0 too, as in the package, is everything that is kept or sent per client:
MIFA's G_i, FedVARP's y_i, FedStale's and AREA's h_i, MimiC's c_i, FOCUS's g_i and local models,
SCAFFOLD's c_i, the differences in the view `corrected`, and all uploads: a change of G_i, h_i or
c_i, FOCUS's y_i, CA-Fed's loss. SCAFFOLD's c is, since it is sent; sums that stay on the server
(FedLaAvg's S, FOCUS's Y) are in float64. FedAvg's step is rounded before it is amplified. Amplified
SCAFFOLD's clients send how the mean of their gradients in the window changed; the server adds that
up and renews c, and all c_i, at the window's end.

A client that does not receive the broadcast continues from the model that it trained, with what
came along with the last broadcast that it did receive. FOCUS throws the trained model away, so such
a client continues from the model it started from.

Notation: m clients, rounds t, A the active clients, s local steps, η_t and η_g the local and global
learning rates, Δ_i = (model after the local steps) − (model before).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

# local(client, start, round, first_batch, correction) -> the model after the s local steps
Local = Callable[[int, Tensor, int, int, Tensor | None], Tensor]
# gradient(client, model, batch) -> the gradient of the client's loss at a model, on one batch
Gradient = Callable[[int, Tensor, int], Tensor]
# loss(client, model) -> the mean loss over the client's samples
Loss = Callable[[int, Tensor], float]
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
    gradient: Gradient | None = None,
    loss: Loss | None = None,
    aggregation: dict[str, Any] | None = None,
    **options: Any,
) -> Views:
    """Run every round of `uplink` (bool [rounds, clients]) and return the views at the end."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}")
    if algorithm == "fedavg_known" and probabilities is None:
        raise ValueError("fedavg_known needs probabilities")
    if algorithm == "focus" and gradient is None:
        raise ValueError("focus needs gradient")
    if algorithm == "ca_fed" and loss is None:
        raise ValueError("ca_fed needs loss")
    up = np.asarray(uplink, dtype=bool)
    down = np.ones_like(up) if downlink is None else np.asarray(downlink, dtype=bool)
    if x0.ndim != 1 or up.ndim != 2 or down.shape != up.shape:
        raise ValueError("x0 must be flat, uplink and downlink both [rounds, clients]")
    run = Run(
        x0,
        up,
        down,
        local,
        gradient,
        loss,
        local_steps,
        learning_rate,
        global_lr,
        probabilities,
        **(aggregation or {}),
    )
    if algorithm in OWN_MODELS:
        return OWN_MODELS[algorithm](run, **options)
    return from_server(run, FROM_SERVER[algorithm](run, **options))


class Run(NamedTuple):
    """The arguments of a run."""

    x0: Tensor
    up: np.ndarray
    down: np.ndarray
    local: Local
    gradient: Gradient | None
    loss: Loss | None
    s: int
    eta: Callable[[int], float]
    eta_g: float
    p: np.ndarray | None
    name: str = "mean"  # what stands in the place of a mean over clients
    trim: float = 0.2
    clip: float = 0.0

    def average(self, vectors: Iterable[Tensor]) -> Tensor:
        """The mean, or in every coordinate the trimmed mean or the median, in float64."""
        vectors = [v.double() for v in vectors]
        if self.name == "mean":
            return mean(vectors)
        result = torch.zeros_like(vectors[0])
        for k in range(len(result)):
            values = sorted(float(v[k]) for v in vectors)
            n = len(values)
            if self.name == "median":
                middle = [values[n // 2]] if n % 2 else [values[n // 2 - 1], values[n // 2]]
            else:
                cut = int(self.trim * n)
                middle = values[cut : n - cut]
            result[k] = sum(middle[1:], start=middle[0]) / len(middle)
        return result

    def clipped(self, start: Tensor, end: Tensor, rounds: int) -> Tensor:
        """The model as the server counts it: an update of norm at most clip·rounds."""
        delta = end.double() - start.double()
        norm = float(torch.linalg.vector_norm(delta))
        if self.clip == 0 or norm <= self.clip * rounds:
            return end
        return self.rounded(start.double() + delta * (self.clip * rounds / norm))

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
    start, since = [x0] * m, [0] * m  # each client's model after its last contact, and since when
    averaged, reported, difference = x0.double(), {}, {}
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

        # On the server: x ← mean over A of x_i*, unless A is empty. What counts may be clipped.
        counted = {i: run.clipped(start[i], x_star[i], t - since[i] + 1) for i in A}
        if A:
            x = run.rounded(run.average(counted[i] for i in A))
            averaged = averaged + EMA * (x.double() - averaged)

        # x_i ← x for i in A that receive the broadcast, x_i ← x_i* for all others.
        x_i = [x if i in A and run.down[t, i] else x_star[i] for i in range(m)]
        for i in A:
            start[i], since[i] = x_i[i], t + 1
        reported |= counted
        difference |= {i: run.rounded(counted[i].double() - averaged) for i in A}
    return own_model_views(run, x, averaged, x_i, reported, difference)


def fedawe(run: Run, clip: float = 0.5) -> Views:
    x0, m = run.x0, run.m
    x, x_i = x0, [x0] * m
    tau = [-1] * m  # the last round in which i was in A
    batches = [0] * m
    averaged, reported, difference = x0.double(), {}, {}
    for t in range(len(run.up)):
        A = run.active(t)
        if not A:
            continue

        # On the clients: A trains; the innovation of i is (t − τ_i)·Δ_i.
        innovation, kept = {}, {}
        for i in A:
            end = run.local(i, x_i[i], t, batches[i], None)
            batches[i] += run.s
            delta = end.double() - x_i[i].double()
            kept[i] = run.rounded(x_i[i].double() + run.eta_g * (t - tau[i]) * delta)
            counted = run.clipped(x_i[i], end, 1)
            delta = counted.double() - x_i[i].double()
            innovation[i] = (t - tau[i]) * delta
            reported[i] = run.rounded(x_i[i].double() + run.eta_g * innovation[i])

        # On the server: x ← mean of the starts + η_g times the mean innovation, which was clipped
        # to norm `clip` before (0: not).
        step = run.average(innovation[i] for i in A)
        norm = float(torch.linalg.vector_norm(step))
        if clip > 0 and norm > clip:
            step = step * (clip / norm)
        x = run.rounded(mean(x_i[i] for i in A) + run.eta_g * step)
        averaged = averaged + EMA * (x.double() - averaged)

        # x_i ← x, or what i reported, unclipped, if the broadcast is lost; τ_i ← t either way.
        for i in A:
            x_i[i] = x if run.down[t, i] else kept[i]
            tau[i] = t
            difference[i] = run.rounded(reported[i].double() - averaged)
    return own_model_views(run, x, averaged, x_i, reported, difference)


def own_model_views(
    run: Run,
    x: Tensor,
    averaged: Tensor,
    x_i: list[Tensor],
    reported: dict[int, Tensor],
    difference: dict[int, Tensor],
) -> Views:
    """The views; `difference` is report − moving average, of each client's last report."""
    last_reports = [reported[i] for i in sorted(reported)] or [run.x0]
    corrected = run.x0
    if difference:
        corrected = run.rounded(averaged + run.average(difference[i] for i in sorted(difference)))
    return {
        "server": x,
        "averaged": run.rounded(averaged),
        "mean": run.rounded(mean(x_i)),
        "reported": run.rounded(run.average(last_reports)),
        "corrected": corrected,
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
        start, end, delta, trained = {}, {}, {}, {}
        for i in A:
            start[i] = held[i]
            trained[i] = rule.client(t, i, start[i], batches[i])
            batches[i] += run.s
            end[i] = run.clipped(start[i], trained[i], 1)
            delta[i] = end[i].double() - start[i].double()

        # On the server.
        x = run.rounded(rule.server(t, x, A, start, end, delta))
        if A:
            averaged = averaged + EMA * (x.double() - averaged)

        # The broadcast. A client that does not receive it keeps its model, trained or not, and
        # does not receive what is sent along with it either.
        for i in range(run.m):
            if run.down[t, i]:
                held[i] = x
                rule.receive(i)
            elif i in trained:
                held[i] = trained[i]
    return {"server": x, "averaged": run.rounded(averaged)}


class Rule:
    """A server rule; by default all of A train, without a correction."""

    def __init__(self, run: Run) -> None:
        self.run, self.m, self.eta_g = run, run.m, run.eta_g
        self.zeros = torch.zeros_like(run.x0)

    def select(self, A: list[int]) -> list[int]:
        return A

    def client(self, t: int, i: int, start: Tensor, first_batch: int) -> Tensor:
        """Client i's model after its work; this is what it keeps without the broadcast."""
        return self.run.local(i, start, t, first_batch, None)

    def receive(self, i: int) -> None:
        """Client i receives the broadcast of this round."""

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
        return self.run.average(
            end[i]
            if self.eta_g == 1 and torch.equal(start[i], x)
            else x.double() + self.eta_g * delta[i]
            for i in A
        )


class FedAvgAll(Rule):
    def server(self, t, x, A, start, end, delta):
        if self.run.name != "mean" and A:
            # The sum over A is |A| times the mean over A.
            replaced = len(A) * self.run.average(delta[i] for i in A)
            return x.double() + self.eta_g * (replaced / self.m)
        return x.double() + self.eta_g * (total(delta[i] for i in A) / self.m)


class FedAvgKnown(Rule):
    def server(self, t, x, A, start, end, delta):
        p = self.run.p[t]
        return x.double() + self.eta_g * (total(delta[i] / float(p[i]) for i in A) / self.m)


class FedAvgDebiased(Rule):
    def __init__(self, run: Run, cap: float = 0.0) -> None:
        super().__init__(run)
        self.cap = cap
        self.count = [0] * self.m

    def server(self, t, x, A, start, end, delta):
        weight = {}
        for i in A:
            self.count[i] += 1
            weight[i] = (t + 1) / self.count[i]
            if self.cap > 0:
                weight[i] = min(weight[i], self.cap)
        return x.double() + self.eta_g * (total(weight[i] * delta[i] for i in A) / self.m)


class Intervals:
    """FedAU's ω_i: the mean of the intervals between contacts, 1 before the first."""

    def __init__(self, m: int, cutoff: float) -> None:
        self.cutoff = cutoff
        self.counter = [0] * m
        self.seen: list[list[int]] = [[] for _ in range(m)]

    def weights(self) -> list[float]:
        return [sum(seen) / len(seen) if seen else 1.0 for seen in self.seen]

    def record(self, A: list[int]) -> None:
        for i in range(len(self.seen)):
            self.counter[i] += 1
            if i in A or self.counter[i] >= self.cutoff:
                self.seen[i].append(self.counter[i])
                self.counter[i] = 0


class FedAU(Rule):
    def __init__(self, run: Run, cutoff: int = 50, over: str = "all") -> None:
        super().__init__(run)
        self.intervals, self.over = Intervals(self.m, cutoff), over
        self.heard: set[int] = set()

    def server(self, t, x, A, start, end, delta):
        omega = self.intervals.weights()
        self.intervals.record(A)
        self.heard |= set(A)
        if not A:
            return x
        n = len(self.heard) if self.over == "heard" else self.m
        return x.double() + self.eta_g * (total(omega[i] * delta[i] for i in A) / n)


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
    def __init__(
        self, run: Run, rescale: bool = False, over: str = "all", memory: str = "server"
    ) -> None:
        super().__init__(run)
        self.rescale, self.over, self.memory = rescale, over, memory
        self.G = [self.zeros] * self.m  # on the server, or G_i on client i
        self.S = self.zeros.double()  # FedLaAvg's sum of all differences
        self.heard: set[int] = set()

    def server(self, t, x, A, start, end, delta):
        scale = self.run.eta(t) if self.rescale else 1.0
        for i in A:
            new = self.run.rounded(delta[i] / scale)
            if self.memory == "client":
                # FedLaAvg: client i uploads the difference to what it uploaded before.
                self.S = self.S + self.run.rounded(new.double() - self.G[i].double()).double()
            self.G[i] = new
        self.heard |= set(A)
        if not self.heard:
            return x
        n = len(self.heard) if self.over == "heard" else self.m
        memory = self.S if self.memory == "client" else total(self.G)
        if self.run.name != "mean":
            G = [self.G[i] for i in range(self.m) if self.over == "all" or i in self.heard]
            return x.double() + self.eta_g * (scale * self.run.average(G))
        return x.double() + self.eta_g * (scale * (memory / n))


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


class FedStale(Rule):
    def __init__(self, run: Run, beta: float = 0.5) -> None:
        super().__init__(run)
        self.beta = beta
        self.h = [self.zeros] * self.m
        self.intervals = Intervals(self.m, float("inf"))

    def server(self, t, x, A, start, end, delta):
        omega = self.intervals.weights()  # 1/p̂_i
        self.intervals.record(A)
        if not A:
            return x
        # x ← x + η_g·[β·Σ_i h_i/m + Σ_A (1/(m·p̂_i))·(Δ_i − β·h_i)], α_i = 1/m.
        fresh = total(omega[i] * (delta[i] - self.beta * self.h[i].double()) for i in A)
        step = self.beta * total(self.h) + fresh
        for i in A:
            self.h[i] = self.run.rounded(delta[i])
        return x.double() + self.eta_g * (step / self.m)


class MimiC(Rule):
    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.c = [self.zeros] * self.m

    def server(self, t, x, A, start, end, delta):
        if not A:
            return x
        v = {i: delta[i] + self.c[i].double() for i in A}
        V = mean(v[i] for i in A)
        for i in A:
            self.c[i] = self.run.rounded(V - delta[i])
        return x.double() + self.eta_g * V


class Area(Rule):
    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.h = [run.x0] * self.m

    def server(self, t, x, A, start, end, delta):
        r = {i: self.run.rounded(end[i].double() - self.h[i].double()) for i in A}
        for i in A:
            self.h[i] = end[i]
        return x.double() + self.eta_g * (total(r[i] for i in A) / self.m)


class Focus(Rule):
    """Steps along y, the change of the gradients; the local model is thrown away."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.Y = self.zeros.double()
        self.g_prev = [self.zeros] * self.m
        self.y: dict[int, Tensor] = {}

    def client(self, t, i, start, first_batch):
        x_i, y = start, self.zeros.double()
        for k in range(self.run.s):
            if k > 0:
                x_i = self.run.rounded(x_i.double() - self.run.eta(t) * y)
            g = self.run.gradient(i, x_i, first_batch + k)
            y = y + g.double() - self.g_prev[i].double()
            self.g_prev[i] = g
        self.y[i] = self.run.rounded(y)
        return start

    def server(self, t, x, A, start, end, delta):
        if not A:
            return x
        self.Y = self.Y + total(self.y[i] for i in A)
        return x.double() - self.eta_g * self.run.eta(t) * self.Y


class CAFed(Rule):
    """All of A train and upload their loss too; the server leaves out those with weight 0."""

    def __init__(
        self, run: Run, smoothing: float = 0.0, threshold: float = 0.0, bias: float = 1.0
    ) -> None:
        super().__init__(run)
        self.b, self.tau, self.kappa = smoothing, threshold, bias
        self.F: list[float] | None = None  # the estimated losses
        self.uploaded: dict[int, float] = {}
        self.history: list[set[int]] = []  # A^0, A^1, …

    def client(self, t, i, start, first_batch):
        loss = torch.tensor(self.run.loss(i, start), dtype=torch.float64)
        self.uploaded[i] = float(self.run.rounded(loss))
        return super().client(t, i, start, first_batch)

    def availability(self, i: int) -> float:
        """The estimated π_i."""
        return (sum(i in A for A in self.history) + 1) / (len(self.history) + 2)

    def correlation(self, i: int) -> float:
        """The estimated λ_i = P(up|up) + P(down|down) − 1."""
        stayed = {True: 0, False: 0}
        left = {True: 0, False: 0}
        for before, now in itertools.pairwise(i in A for A in self.history):
            left[before] += 1
            stayed[before] += before == now
        return sum((stayed[state] + 1) / (left[state] + 2) for state in (True, False)) - 1

    def error(self, q: list[float], pi: list[float], g: list[float]) -> float:
        alpha = 1 / self.m
        w = [pi[i] * q[i] for i in range(self.m)]
        w = [each / sum(w) for each in w]
        variation = sum(abs(alpha - each) for each in w) / 2
        return sum(w[i] * g[i] for i in range(self.m)) + self.kappa * max(g) * variation**2

    def truncate(self, q, order, pi, g):
        kept, current, e = list(q), list(q), self.error(q, pi, g)
        for i in order:
            current[i] = 0.0
            if sum(current) == 0:
                break
            gain = e - self.error(current, pi, g)
            if gain > 0 and gain >= self.tau:
                kept, e = list(current), self.error(current, pi, g)
            else:
                current = list(kept)
        return kept

    def server(self, t, x, A, start, end, delta):
        clients = range(self.m)
        self.history.append(set(A))
        if not A:
            return x
        loss = self.uploaded
        if self.F is None:
            first = sum(loss[i] for i in A) / len(A)
            self.F = [loss[i] if i in A else first for i in clients]
        else:
            for i in A:
                self.F[i] = self.b * self.F[i] + (1 - self.b) * loss[i]
        pi = [self.availability(i) for i in clients]
        lam = [self.correlation(i) for i in clients]
        g = self.F  # the local optima are taken to be 0
        q = [1 / (self.m * pi[i]) for i in clients]
        q = self.truncate(q, sorted(clients, key=lambda i: abs(lam[i]), reverse=True), pi, g)
        q = self.truncate(q, sorted(clients, key=lambda i: pi[i]), pi, g)
        return x.double() + self.eta_g * total(q[i] * delta[i] for i in A if q[i] > 0)


class AmplifiedFedAvg(FedAvg):
    def __init__(self, run: Run, window: int = 20, gamma: float = 1.5) -> None:
        super().__init__(run)
        self.P, self.gamma = window, gamma
        self.x_ref = run.x0

    def server(self, t, x, A, start, end, delta):
        x = super().server(t, x, A, start, end, delta)
        return self.amplified(t, x)

    def amplified(self, t: int, x: Tensor) -> Tensor:
        if (t + 1) % self.P == 0:
            x_ref = self.x_ref.double()
            x = x_ref + self.gamma * (self.run.rounded(x).double() - x_ref)
            self.x_ref = self.run.rounded(x)
        return x


class Scaffold(Rule):
    def __init__(self, run: Run, clip: float = 0.0) -> None:
        super().__init__(run)
        self.clip = clip  # the largest norm of c − c_i; 0: any
        self.c = self.zeros
        self.received = [self.zeros] * self.m  # the c that client i received last
        self.c_i = [self.zeros] * self.m

    def client(self, t, i, start, first_batch):
        correction = self.run.rounded(self.clipped(i))
        return self.run.local(i, start, t, first_batch, correction)

    def clipped(self, i):
        v = self.received[i].double() - self.c_i[i].double()
        norm = float(torch.linalg.vector_norm(v))
        return v * (self.clip / norm) if self.clip and norm > self.clip else v

    def receive(self, i):
        self.received[i] = self.c

    def server(self, t, x, A, start, end, delta):
        if not A:
            return x
        s_eta = self.run.s * self.run.eta(t)
        # The mean of the gradients: each step went along g + v.
        c_plus = {i: self.run.rounded(-delta[i] / s_eta - self.clipped(i)) for i in A}
        # Client i uploads c_i⁺ − c_i.
        change = {i: self.run.rounded(c_plus[i].double() - self.c_i[i].double()) for i in A}
        self.c = self.run.rounded(self.c.double() + total(change[i] for i in A) / self.m)
        for i in A:
            self.c_i[i] = c_plus[i]
        return x.double() + self.eta_g * mean(delta[i] for i in A)


class AmplifiedScaffold(AmplifiedFedAvg):
    """The authors' form: everything in one place, and all c_i renewed at the window's end."""

    def __init__(self, run: Run, window: int = 20, gamma: float = 1.5) -> None:
        super().__init__(run, window, gamma)
        self.c = self.zeros
        self.received = [self.zeros] * self.m
        self.c_i = [self.zeros] * self.m
        self.g_i = [self.zeros] * self.m  # the mean of the gradients of i in this window
        self.n = [0] * self.m  # in how many rounds of it i was heard
        self.change = self.zeros.double()  # what the clients sent about it

    def correction(self, i: int) -> Tensor:
        return self.run.rounded(self.received[i].double() - self.c_i[i].double())

    def client(self, t, i, start, first_batch):
        return self.run.local(i, start, t, first_batch, self.correction(i))

    def receive(self, i):
        self.received[i] = self.c

    def server(self, t, x, A, start, end, delta):
        s_eta = self.run.s * self.run.eta(t)
        for i in A:
            # Δ_i = −η·(sum of the gradients + s·(c − c_i)): the mean of the raw gradients.
            g = self.c_i[i].double() - self.received[i].double() - delta[i] / s_eta
            before = self.g_i[i].double() if self.n[i] else self.c_i[i].double()
            self.g_i[i] = self.run.rounded((self.n[i] * before + g) / (self.n[i] + 1))
            self.n[i] += 1
            self.change = self.change + self.run.rounded(self.g_i[i].double() - before).double()
        x = super().server(t, x, A, start, end, delta)
        if (t + 1) % self.P == 0:
            self.c = self.run.rounded(self.c.double() + self.change / self.m)
            self.c_i = [g if n else c for g, n, c in zip(self.g_i, self.n, self.c_i, strict=True)]
            self.n, self.change = [0] * self.m, self.zeros.double()
        return x


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
    "focus": Focus,
    "fedstale": FedStale,
    "mimic": MimiC,
    "area": Area,
    "ca_fed": CAFed,
    "fedavg_debiased": FedAvgDebiased,
    "amplified_fedavg": AmplifiedFedAvg,
    "amplified_scaffold": AmplifiedScaffold,
}
ALGORITHMS = (*OWN_MODELS, *FROM_SERVER)
