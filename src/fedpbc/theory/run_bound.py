"""The Consensus Error lemma evaluated along a run: how far apart may its clients' models be?

The lemma assumes a constant step size, independent links, and constants σ and ζ that hold
everywhere, and bounds the mean over the rounds. Along a run, σ² and ζ² are the largest seen at x̄ in
any evaluation, ‖∇F(x̄)‖² of an evaluation stands for the rounds up to the next one, η is the largest
so far, and ρ is that of the links at their lowest probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedpbc.algorithms import FedPBC
from fedpbc.algorithms.algorithm import Algorithm
from fedpbc.links import Timetable
from fedpbc.tasks.task import Task, WithGradients
from fedpbc.theory import consensus_bound, mixing_rate, mixing_rate_bound
from fedpbc.theory.mixing import EXACT_CLIENTS

__all__ = ["RunBound"]

DIGITS = 6
"""Significant digits of a bound; more would claim too much and differ between machines."""


class RunBound:
    """Observes the bound of one run, if the lemma covers it; its value is None otherwise."""

    name = "consensus_bound"

    def __init__(
        self, task: Task, algorithm: Algorithm, uplink: Timetable, downlink: Timetable | None
    ) -> None:
        self.task, self.uplink = task, uplink
        self.covers = (
            # Exactly: a subclass may do anything.
            type(algorithm) is FedPBC
            and algorithm.global_lr == 1
            and task.training.is_plain
            and downlink is None
            and uplink.independent
            and isinstance(task, WithGradients)
        )
        # With the statistics and layers that the algorithm does not see.
        self._x0, layout = algorithm.x, task.layout
        if layout.trained != layout.dimension:
            self._x0 = torch.cat([algorithm.x, task.init()[layout.trained :]])
        # The gradients seen so far; empty before the first evaluation.
        self._seen: dict[str, float] = {}

    @cached_property
    def rho(self) -> float:
        """ρ at the lowest probability of each client: no round's can be larger.

        If A ⊆ B, then averaging over B shrinks every disagreement at least as much.
        """
        lowest = self.uplink.lowest_probabilities()
        if len(lowest) > EXACT_CLIENTS:
            return mixing_rate_bound(float(lowest.min()), len(lowest))
        return mixing_rate(lowest)

    def observe(self, rounds: int, models: Mapping[str, Tensor]) -> float | None:
        """The bound after ``rounds`` rounds; None without a ρ below 1 or finite gradients."""
        if "mean" not in models or not self.covers or self.rho == 1:
            return None
        seen = self._seen or {"rounds": 0, "slopes": 0.0, **self._gradients(self._x0, 0)}
        slopes = seen["slopes"] + (rounds - seen["rounds"]) * seen["slope"]
        latest = self._gradients(models["mean"], rounds)
        worst = {name: max(seen[name], latest[name]) for name in ("noise", "spread")}
        self._seen = {**latest, **worst, "slopes": slopes, "rounds": rounds}
        if not all(map(math.isfinite, (slopes, *worst.values()))):
            return None
        bound = consensus_bound(
            step_size=self.task.training.largest_rate(rounds),
            local_steps=self.task.training.local_steps,
            rho=self.rho,
            sigma=math.sqrt(worst["noise"]),
            zeta=math.sqrt(worst["spread"]),
            beta=0.0,
            mean_squared_gradient=slopes / rounds,
        )
        return float(f"{bound:.{DIGITS}g}") if math.isfinite(bound) else None

    def _gradients(self, model: Tensor, draw: int) -> dict[str, float]:
        assert isinstance(self.task, WithGradients)
        gradients = vars(self.task.gradients(model, draw))
        return {name: v if math.isfinite(v) else math.inf for name, v in gradients.items()}

    def state(self) -> dict[str, Any]:
        """The gradients seen so far."""
        return dict(self._seen)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state`."""
        self._seen = dict(state)
