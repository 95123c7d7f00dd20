"""Batch normalisation in federated learning, as a literal, slow transcription.

It shares no code with the package: a model is a table of tensors by name, every client has its own,
and a step is a forward pass in training mode, a backward pass and p ← p − η·g.

With keep=False, parameters are the algorithm's, and running statistics are averaged over A. With
keep=True (FedBN: Li et al., ICLR 2021), the statistics and the parameters of their layers stay on
each client, and the algorithm sees only what is left. Sums over clients are in float64, ascending,
and rounded when a model is stored; so is everything that a client keeps or sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

Table = dict[str, Tensor]
Batch = Callable[[int, int], tuple[Tensor, Tensor]]  # client, number of its batch


def mean(tensors: Iterable[Tensor]) -> Tensor:
    tensors = list(tensors)
    total = torch.zeros(tensors[0].shape, dtype=torch.float64)
    for tensor in tensors:
        total = total + tensor.double()
    return (total / len(tensors)).float()


class Federation:
    """m clients, a server, and the module that computes for all of them."""

    def __init__(
        self, module: nn.Module, up: np.ndarray, batch: Batch, s: int, eta: float, keep: bool
    ) -> None:
        self.module, self.up, self.batch, self.s, self.eta = module, up, batch, s, eta
        norms = [name for name, x in module.named_modules() if isinstance(x, nn.BatchNorm1d)]
        every = {k: v.clone() for k, v in module.state_dict().items() if v.is_floating_point()}
        statistics = [k for k in every if k.endswith(("running_mean", "running_var"))]
        layers = [k for k in every if k.rpartition(".")[0] in norms]
        self.statistics = statistics
        self.private = layers if keep else []
        self.parameters = [k for k in every if k not in self.private and k not in statistics]
        self.averaged = [] if keep else statistics
        self.m = up.shape[1]
        self.x: Table = {k: every[k] for k in (*self.parameters, *self.averaged)}
        self.own: list[Table] = [{k: every[k] for k in self.private} for _ in range(self.m)]
        self.batches = [0] * self.m

    def gradient(self, i: int, model: Table, k: int) -> tuple[Table, Table]:
        """The gradient of client i's k-th batch by name, and the statistics after it."""
        self.module.load_state_dict(model, strict=False)
        for layer in self.module.modules():
            if isinstance(layer, nn.BatchNorm1d):
                layer.num_batches_tracked.fill_(k)
        self.module.train()
        self.module.zero_grad()
        x, y = self.batch(i, k)
        functional.cross_entropy(self.module(x), y).backward()
        g = {k: p.grad.clone() for k, p in self.module.named_parameters()}
        state = self.module.state_dict()
        return g, {k: state[k].clone() for k in self.statistics}

    def local(self, i: int, model: Table, first: int, correction: Table | None = None) -> Table:
        for k in range(first, first + self.s):
            g, statistics = self.gradient(i, model, k)
            for name in correction or {}:
                g[name] = g[name] + correction[name]
            stepped = {n: v.add(g[n], alpha=-self.eta) for n, v in model.items() if n in g}
            model = {**stepped, **statistics}
        return model

    def client(self, i: int, model: Table, correction: Table | None = None) -> Table:
        """Client i's model after its steps; what it keeps to itself has changed then."""
        end = self.local(i, {**model, **self.own[i]}, self.batches[i], correction)
        self.batches[i] += self.s
        self.own[i] = {k: end[k] for k in self.private}
        return {k: v for k, v in end.items() if k not in self.private}

    def rounds(self) -> Iterable[list[int]]:
        for row in self.up:
            yield [i for i in range(self.m) if row[i]]


def fedpbc(f: Federation) -> Table:
    x_i = [f.x] * f.m
    for A in f.rounds():
        x_i = [f.client(i, x_i[i]) for i in range(f.m)]
        if A:
            f.x = {k: mean(x_i[i][k] for i in A) for k in f.x}
        for i in A:
            x_i[i] = f.x
    return f.x


def fedavg(f: Federation) -> Table:
    for A in f.rounds():
        end = {i: f.client(i, f.x) for i in A}
        if A:
            f.x = {k: mean(end[i][k] for i in A) for k in f.x}
    return f.x


def mifa(f: Federation) -> Table:
    G = [{k: torch.zeros_like(f.x[k]) for k in f.parameters} for _ in range(f.m)]
    total = {k: torch.zeros_like(f.x[k]).double() for k in f.parameters}
    for A in f.rounds():
        end = {i: f.client(i, f.x) for i in A}
        new = dict(f.x)
        for k in f.parameters:
            for i in A:
                delta = (end[i][k].double() - f.x[k].double()).float()
                total[k] = total[k] + (delta.double() - G[i][k].double())
                G[i][k] = delta
            new[k] = (f.x[k] + total[k] / f.m).float()
        # The statistics are no sum of updates: they are averaged.
        new |= {k: mean(end[i][k] for i in A) for k in f.averaged if A}
        f.x = new
    return f.x


def scaffold(f: Federation) -> Table:
    zeros = {k: torch.zeros_like(f.x[k]) for k in f.parameters}
    c, c_i = zeros, [zeros] * f.m
    for A in f.rounds():
        end, change = {}, {}
        for i in A:
            v = {k: c[k].double() - c_i[i][k].double() for k in c}
            end[i] = f.client(i, f.x, {k: v[k].float() for k in v})
            delta = {k: end[i][k].double() - f.x[k].double() for k in c}
            new = {k: (-v[k] - delta[k] / (f.s * f.eta)).float() for k in c}
            change[i] = {k: (new[k].double() - c_i[i][k].double()).float() for k in c}
            c_i[i] = new
        if A:
            step = {}
            for k in c:
                deltas = [end[i][k].double() - f.x[k].double() for i in A]
                step[k] = (f.x[k] + sum(deltas[1:], start=deltas[0]) / len(A)).float()
                total = sum((change[i][k].double() for i in A), start=torch.zeros(()).double())
                c = {**c, k: (c[k] + total / f.m).float()}
            f.x = {**step, **{k: mean(end[i][k] for i in A) for k in f.averaged}}
    return f.x


def focus(f: Federation) -> Table:
    zeros = {k: torch.zeros_like(f.x[k]) for k in f.parameters}
    Y = {k: v.double() for k, v in zeros.items()}
    last = [zeros] * f.m
    for A in f.rounds():
        uploads, statistics = {}, {}
        for i in A:
            model, y = dict(f.x), {k: v.double() for k, v in zeros.items()}
            for _ in range(f.s):
                g, after = f.gradient(i, model, f.batches[i])
                f.batches[i] += 1
                y = {k: y[k] + g[k].double() - last[i][k].double() for k in y}
                last[i] = g
                model = {k: (model[k].double() - f.eta * y[k]).float() for k in y} | after
            uploads[i] = {k: y[k].float() for k in y}
            statistics[i] = {k: model[k] for k in f.averaged}
        if A:
            for k in Y:
                Y[k] = Y[k] + sum(
                    (uploads[i][k].double() for i in A), start=torch.zeros(()).double()
                )
            x = {k: (f.x[k] - f.eta * Y[k]).float() for k in Y}
            f.x = x | {k: mean(statistics[i][k] for i in A) for k in f.averaged}
    return f.x


ALGORITHMS = {f.__name__: f for f in (fedpbc, fedavg, mifa, scaffold, focus)}
