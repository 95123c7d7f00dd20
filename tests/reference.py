"""The ten algorithms, written out once more: plain, slow and dense.

This is the oracle of the tests, and shares no code with the package. Every client has its row in
an m×d matrix and is looked at in every round. Rules of arithmetic: sums over clients run in
ascending client order in float64, and are rounded to the model's dtype once, when a model is
stored. What is remembered of each client (mifa's G_i, fedvarp's y_i, scaffold's c_i) is stored in
the model's dtype too; scaffold's c stays in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

# local(client, start, round, first_batch, correction) -> model after the round's s local steps
Local = Callable[[int, torch.Tensor, int, int, torch.Tensor | None], torch.Tensor]

OWN_MODELS = ("fedpbc", "fedawe")  # each client goes on from its own model
FROM_SERVER = (  # each client starts from the last server model it received
    "fedavg",
    "fedavg_all",
    "fedavg_known",
    "fedau",
    "f3ast",
    "mifa",
    "fedvarp",
    "scaffold",
)
ALGORITHMS = (*OWN_MODELS, *FROM_SERVER)
OPTIONS: dict[str, dict[str, float]] = {
    "fedau": {"cutoff": 50},
    "f3ast": {"beta": 0.01, "cap": 10},
    "mifa": {"rescale": False},
    "fedawe": {"clip": 0.5},
}
EMA = 0.05  # the weight of the view 'averaged'


def reference(
    algorithm: str,
    x0: torch.Tensor,
    uplink: np.ndarray,
    local: Local,
    *,
    local_steps: int,
    learning_rate: Callable[[int], float],
    global_lr: float = 1.0,
    downlink: np.ndarray | None = None,
    probabilities: np.ndarray | None = None,
    **options: float,
) -> dict[str, torch.Tensor]:
    """Run every round of `uplink` (bool [rounds, clients]) and give back the views at the end."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}")
    defaults = OPTIONS.get(algorithm, {})
    if unknown := set(options) - set(defaults):
        raise TypeError(f"{algorithm} has no option {sorted(unknown)}")
    if algorithm == "fedavg_known" and probabilities is None:
        raise ValueError("fedavg_known needs probabilities")
    opt = defaults | options
    up = np.asarray(uplink, dtype=bool)
    down = np.ones_like(up) if downlink is None else np.asarray(downlink, dtype=bool)
    if x0.ndim != 1 or up.ndim != 2 or down.shape != up.shape:
        raise ValueError("x0 must be flat, uplink and downlink both [rounds, clients]")
    if algorithm == "fedpbc":
        return _fedpbc(x0, up, down, local, local_steps, global_lr)
    if algorithm == "fedawe":
        return _fedawe(x0, up, down, local, local_steps, global_lr, opt["clip"])
    return _from_server(
        algorithm, x0, up, down, local, local_steps, learning_rate, global_lr, probabilities, opt
    )


def total(vectors: Iterable[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """The sum in the order given, in float64."""
    acc = torch.zeros_like(like, dtype=torch.float64)
    for v in vectors:
        acc = acc + v.double()
    return acc


def _average_reported(reported: dict[int, torch.Tensor], x0: torch.Tensor) -> torch.Tensor:
    """The view 'reported': the mean of the last reports, x0 while there is none."""
    if not reported:
        return x0.clone()
    return (total((reported[i] for i in sorted(reported)), x0) / len(reported)).to(x0.dtype)


def _fedpbc(
    x0: torch.Tensor,
    up: np.ndarray,
    down: np.ndarray,
    local: Local,
    s: int,
    eta_g: float,
) -> dict[str, torch.Tensor]:
    rounds, m = up.shape
    x = x0.clone()
    X = x0.repeat(m, 1)  # x_i, one row a client
    averaged = x0.double()
    reported: dict[int, torch.Tensor] = {}
    for t in range(rounds):
        A = [i for i in range(m) if up[t, i]]
        # Every client trains, from its own x_i: x_i* = x_i + η_g·Δ_i.
        star = []
        for i in range(m):
            start = X[i].clone()
            end = local(i, start, t, t * s, None)
            if eta_g != 1:
                end = (start.double() + eta_g * (end.double() - start.double())).to(x0.dtype)
            star.append(end)
        # x ← mean over A of x_i*; nothing if A is empty.
        if A:
            x = (total((star[i] for i in A), x0) / len(A)).to(x0.dtype)
            averaged = averaged + EMA * (x.double() - averaged)
        # x_i ← x for i in A that hear the broadcast, x_i ← x_i* for all others.
        for i in range(m):
            X[i] = x if i in A and down[t, i] else star[i]
        for i in A:
            reported[i] = star[i]
    return {
        "server": x,
        "averaged": averaged.to(x0.dtype),
        "mean": (total(X, x0) / m).to(x0.dtype),
        "reported": _average_reported(reported, x0),
    }


def _fedawe(
    x0: torch.Tensor,
    up: np.ndarray,
    down: np.ndarray,
    local: Local,
    s: int,
    eta_g: float,
    clip: float,
) -> dict[str, torch.Tensor]:
    rounds, m = up.shape
    x = x0.clone()
    X = x0.repeat(m, 1)  # x_i, one row a client
    tau = [-1] * m  # the last round i was in A
    batches = [0] * m
    averaged = x0.double()
    reported: dict[int, torch.Tensor] = {}
    for t in range(rounds):
        A = [i for i in range(m) if up[t, i]]
        if not A:
            continue
        # A trains, each from its own x_i.
        innovation = {}  # η_g·(t − τ_i)·Δ_i
        for i in A:
            end = local(i, X[i].clone(), t, batches[i], None)
            batches[i] += s
            innovation[i] = eta_g * (t - tau[i]) * (end.double() - X[i].double())
            reported[i] = (X[i].double() + innovation[i]).to(x0.dtype)  # unclipped
        # x ← mean of the starts + the mean innovation, clipped to norm `clip` (0: not at all).
        step = total((innovation[i] for i in A), x0) / len(A)
        norm = float(torch.linalg.vector_norm(step))
        if clip > 0 and norm > clip:
            step = step * (clip / norm)
        x = (total((X[i] for i in A), x0) / len(A) + step).to(x0.dtype)
        averaged = averaged + EMA * (x.double() - averaged)
        # x_i ← x, or what it reported if the broadcast is lost; τ_i ← t either way.
        for i in A:
            X[i] = x if down[t, i] else reported[i]
            tau[i] = t
    return {
        "server": x,
        "averaged": averaged.to(x0.dtype),
        "mean": (total(X, x0) / m).to(x0.dtype),
        "reported": _average_reported(reported, x0),
    }


def _from_server(
    algorithm: str,
    x0: torch.Tensor,
    up: np.ndarray,
    down: np.ndarray,
    local: Local,
    s: int,
    learning_rate: Callable[[int], float],
    eta_g: float,
    probabilities: np.ndarray | None,
    opt: dict[str, float],
) -> dict[str, torch.Tensor]:
    rounds, m = up.shape
    x = x0.clone()
    H = x0.repeat(m, 1)  # the model client i holds: the last it received, or trained since
    batches = [0] * m
    averaged = x0.double()

    counter = [0] * m  # fedau: c
    intervals: list[list[int]] = [[] for _ in range(m)]  # fedau: the intervals recorded
    r = [1.0] * m  # f3ast: the rates
    memory = torch.zeros(m, x0.numel(), dtype=x0.dtype)  # mifa: G_i; fedvarp: y_i
    c_i = torch.zeros(m, x0.numel(), dtype=x0.dtype)  # scaffold
    c = torch.zeros(x0.numel(), dtype=torch.float64)  # scaffold

    for t in range(rounds):
        A = [i for i in range(m) if up[t, i]]
        eta = learning_rate(t)

        # Who trains: A, or f3ast's pick among A, whose rates move in every round.
        trains = A
        if algorithm == "f3ast":
            ranked = sorted(A, key=lambda i: (-1 / r[i] ** 2, i))
            trains = sorted(ranked[: int(opt["cap"])])
            for i in range(m):
                r[i] = (1 - opt["beta"]) * r[i] + opt["beta"] * (1.0 if i in trains else 0.0)

        # The s local steps, from the model held.
        start, end, delta = {}, {}, {}
        for i in trains:
            correction = (c - c_i[i]).to(x0.dtype) if algorithm == "scaffold" else None
            start[i] = H[i].clone()
            end[i] = local(i, start[i], t, batches[i], correction)
            batches[i] += s
            delta[i] = end[i].double() - start[i].double()

        # The server rule; `new` in float64.
        old = x.double()
        new = old
        if algorithm == "fedavg" and A:
            moved = [
                end[i] if eta_g == 1 and torch.equal(start[i], x) else old + eta_g * delta[i]
                for i in A
            ]
            new = total(moved, x0) / len(A)

        elif algorithm == "fedavg_all" and A:
            new = old + eta_g * (total((delta[i] for i in A), x0) / m)

        elif algorithm == "fedavg_known" and A:
            assert probabilities is not None
            p = probabilities[t]
            new = old + eta_g * (total((delta[i] / float(p[i]) for i in A), x0) / m)

        elif algorithm == "fedau":
            if A:
                w = [sum(seen) / len(seen) if seen else 1.0 for seen in intervals]
                new = old + eta_g * (total((w[i] * delta[i] for i in A), x0) / m)
            for i in range(m):
                counter[i] += 1
                if i in A or counter[i] >= opt["cutoff"]:
                    intervals[i].append(counter[i])
                    counter[i] = 0

        elif algorithm == "f3ast" and A:
            new = old + eta_g * (total((delta[i] / r[i] for i in trains), x0) / m)

        elif algorithm == "mifa":  # moves in an empty round too
            for i in A:
                memory[i] = delta[i] / eta if opt["rescale"] else delta[i]
            step = total(memory, x0) / m
            new = old + eta_g * (eta * step if opt["rescale"] else step)

        elif algorithm == "fedvarp" and A:
            surprise = total((delta[i] - memory[i] for i in A), x0) / len(A)
            new = old + eta_g * (surprise + total(memory, x0) / m)
            for i in A:
                memory[i] = delta[i]

        elif algorithm == "scaffold" and A:
            new = old + eta_g * (total((delta[i] for i in A), x0) / len(A))
            c_plus = {i: (c_i[i] - c - delta[i] / (s * eta)).to(x0.dtype) for i in A}
            c = c + total((c_plus[i].double() - c_i[i].double() for i in A), x0) / m
            for i in A:
                c_i[i] = c_plus[i]

        x = new.to(x0.dtype)
        if A:
            averaged = averaged + EMA * (x.double() - averaged)

        # The broadcast: who does not hear it keeps what it has, its trained model if it trained.
        for i in range(m):
            if down[t, i]:
                H[i] = x
            elif i in end:
                H[i] = end[i]

    return {"server": x, "averaged": averaged.to(x0.dtype)}
