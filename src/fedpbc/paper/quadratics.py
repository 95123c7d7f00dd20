"""The runs of figure 3: a hundred quadratics over two kinds of links."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedpbc.paper.catalog import ExperimentRequest
from fedpbc.paper.plan import PaperCondition, PlannedRun
from fedpbc.paper.request import algorithm_options, merge
from fedpbc.randomness import generator

__all__ = ["CLIENTS", "DIMENSIONS", "PAIRS", "Pair", "draw_targets", "pair_of", "plan_quadratics"]

CLIENTS, DIMENSIONS = 100, 100
Pair = tuple[float, float]
PAIRS: tuple[Pair, ...] = ((0.1, 0.1), (0.5, 0.5), (0.1, 0.5), (0.3, 0.9))
"""(p₀, p₁); the paper does not say which it used."""


def draw_targets(seed: int) -> NDArray[np.float64]:
    """u_i ~ N((i/1000)·1, 0.01·I) for i = 1 … 100."""
    noise = generator(seed, "fig3 targets").standard_normal((CLIENTS, DIMENSIONS))
    means = np.arange(1, CLIENTS + 1) / 1000
    return np.asarray(means[:, None] + 0.1 * noise, dtype=np.float64)


def condition_of(pair: Pair, rounds: int) -> PaperCondition:
    """The first half of the clients has links with p₀, the second half with p₁."""
    half = CLIENTS // 2
    p = [pair[0]] * half + [pair[1]] * (CLIENTS - half)
    key = (f"{pair[0]:g}-{pair[1]:g}",)
    return PaperCondition(key, "quadratic", "bernoulli", rounds, {"links": {"p": p}})


def pair_of(condition: PaperCondition) -> Pair:
    """(p₀, p₁) of a condition."""
    p = condition.changes["links"]["p"]
    return p[0], p[-1]


def plan_quadratics(
    request: ExperimentRequest,
    algorithms: Sequence[str],
    seeds: Sequence[int],
    rounds: int,
    targets: Path,
) -> list[PlannedRun]:
    """Plan all runs; writes each seed's targets to the folder ``targets``, for the runs to copy."""
    for seed in seeds:
        np.save(targets / f"seed-{seed}.npy", draw_targets(seed))
    settings = {key: value for key, value in request.settings.items() if key != "algorithms"}
    runs = []
    for condition in (condition_of(pair, rounds) for pair in PAIRS):
        for name in algorithms:
            for seed in seeds:
                defaults = {
                    "rounds": rounds,
                    "seed": seed,
                    "algorithm": algorithm_options(request, name),
                    "task": {"name": "quadratic", "targets": str(targets / f"seed-{seed}.npy")},
                    "train": {"local_steps": 100, "learning_rate": 1e-4, "decay": False},
                    "links": {"name": condition.links},
                }
                config = merge(defaults, settings, condition.changes)
                runs.append(PlannedRun(condition, name, seed, config))
    return runs
