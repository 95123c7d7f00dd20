"""The lemma Consensus Error beside a run: how far apart may its clients' models be?

The lemma speaks of the mean over the rounds, of a constant step size, of independent links, and of
constants σ and ζ that hold everywhere. Here σ² and ζ² are the largest that were seen at x̄ in any
evaluation, ‖∇F(x̄)‖² of an evaluation stands for the rounds up to the next, η is the largest so far,
and ρ is that of the links at their lowest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

from torch import Tensor

from fedpbc.algorithms import FedPBC
from fedpbc.algorithms.algorithm import Algorithm
from fedpbc.links import Timetable
from fedpbc.tasks.task import Task, WithGradients
from fedpbc.theory import consensus_bound, mixing_rate, mixing_rate_bound
from fedpbc.theory.mixing import EXACT_CLIENTS

__all__ = ["RunBound"]

DIGITS = 6
"""Of a bound; more would claim too much, and differ from one machine to the next."""


class RunBound:
    """The bound of one run, if the lemma covers it.

    Example:
        >>> import numpy as np
        >>> from fedpbc.algorithms import ServerInit
        >>> from fedpbc.links import Setting
        >>> from fedpbc.tasks import Quadratic
        >>> task = Quadratic([[0.0], [2.0]])
        >>> setting = Setting(0, clients=2, rounds=9, base_probabilities=np.array([0.5, 0.5]))
        >>> links = Timetable.draw("bernoulli", setting)
        >>> RunBound(task, FedPBC(ServerInit(task.init(), 2)), links, None).covers
        True
    """

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

    @cached_property
    def rho(self) -> float:
        """ρ at the lowest probability of each client: no round's can be larger.

        If A ⊆ B, then averaging over B shrinks every disagreement at least as much.
        """
        lowest = self.uplink.lowest_probabilities()
        if len(lowest) > EXACT_CLIENTS:
            return mixing_rate_bound(float(lowest.min()), len(lowest))
        return mixing_rate(lowest)

    def look(
        self, seen: Mapping[str, float], x0: Tensor, model: Tensor, rounds: int
    ) -> tuple[dict[str, float], float | None]:
        """What has been seen after ``rounds`` rounds, when x̄ is ``model``, and the bound.

        ``seen`` is what this gave last, or nothing at first. No bound without a ρ below 1, or where
        gradients are no longer finite.
        """
        if not self.covers or self.rho == 1:
            return {}, None
        if not seen:
            seen = {"rounds": 0, "slopes": 0.0, **self._gradients(x0, 0)}
        slopes = seen["slopes"] + (rounds - seen["rounds"]) * seen["slope"]
        here = self._gradients(model, rounds)
        worst = {name: max(seen[name], here[name]) for name in ("noise", "spread")}
        bound = None
        if all(map(math.isfinite, (slopes, *worst.values()))):
            found = consensus_bound(
                step_size=max(self.task.training.rate(t) for t in (0, rounds - 1)),
                local_steps=self.task.training.local_steps,
                rho=self.rho,
                sigma=math.sqrt(worst["noise"]),
                zeta=math.sqrt(worst["spread"]),
                beta=0.0,
                mean_squared_gradient=slopes / rounds,
            )
            bound = float(f"{found:.{DIGITS}g}") if math.isfinite(found) else None
        return {**here, **worst, "slopes": slopes, "rounds": rounds}, bound

    def _gradients(self, model: Tensor, draw: int) -> dict[str, float]:
        assert isinstance(self.task, WithGradients)
        found = vars(self.task.gradients(model, draw))
        return {name: value if math.isfinite(value) else math.inf for name, value in found.items()}
