"""Local training: the learning-rate schedule and the local optimizer.

Any algorithm runs with any local optimizer. The optimizer's state is reset in every round, so that
a client's model remains a pure function of the model it received, the rounds since, and the seed.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from fedpbc.errors import InputError
from fedpbc.limits import MAX_INTEGER, MAX_LOCAL_STEPS
from fedpbc.options import Help, check_kind, checked

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["LocalTraining"]


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """The configuration of the clients' local steps.

    Attributes:
        local_steps: s, the number of steps in a round.
        batch_size: samples per step.
        learning_rate: η_0.
        decay: whether η_t = η_0/√(t/10 + 1); otherwise η_t = η_0.
        optimizer: how a step uses the gradient.
        momentum: for the optimizer "momentum".
        proximal: μ of the term μ/2·‖x − x_start‖², x_start the model at the start of the round.

    Example:
        >>> LocalTraining(learning_rate=0.1).rate(30)
        0.05
    """

    local_steps: Annotated[int, Ge(1), Le(MAX_LOCAL_STEPS), Help("s, local steps per round")] = 5
    batch_size: Annotated[int, Ge(1), Help("Samples per step")] = 16
    learning_rate: Annotated[float, Gt(0), Help("η_0")] = 0.05
    decay: bool = True
    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    proximal: Annotated[float, Ge(0)] = 0.0

    def __post_init__(self) -> None:
        checked(type(self), vars(self), "train")

    def check_precision(self, dtype: torch.dtype) -> None:
        """Raise InputError if a number is too large for models of that type."""
        import torch

        largest = torch.finfo(dtype).max
        for name in ("learning_rate", "proximal"):
            if getattr(self, name) > largest:
                kind = str(dtype).removeprefix("torch.")
                expected = f"at most {largest:g}, the largest number in {kind}, the model's type"
                raise InputError(f"train.{name}", getattr(self, name), expected)

    def rate(self, t: int) -> float:
        """Return η_t."""
        check_kind("round", t, numbers.Real, "a number")
        if not 0 <= t <= MAX_INTEGER:
            raise InputError("round", t, "at least 0")
        return self.learning_rate / (math.sqrt(t / 10 + 1) if self.decay else 1.0)

    @property
    def is_plain(self) -> bool:
        """Whether a step only subtracts η_t times the gradient (plain SGD)."""
        return self.optimizer == "sgd" and not self.proximal

    def begin(
        self, parameters: Sequence[Tensor], rates: float | Tensor, correction: Sequence[Tensor] = ()
    ) -> Callable[[Sequence[Tensor]], None]:
        """Begin a round: return the function that makes one step, in place, from gradients.

        ``parameters`` may be stacks of clients' parameters, with one rate per client.
        ``correction`` is added to every gradient.
        """
        # Late: the command line reads these defaults, and must start quickly.
        import torch

        starts = [p.detach().clone() for p in parameters] if self.proximal else []
        direction_of = self._optimizer(parameters)

        def step(gradients: Sequence[Tensor]) -> None:
            with torch.no_grad():
                if correction:
                    gradients = torch._foreach_add(list(gradients), list(correction))
                if self.proximal:
                    pulls = torch._foreach_sub([p.detach() for p in parameters], starts)
                    gradients = torch._foreach_add(list(gradients), pulls, alpha=self.proximal)
                directions = direction_of(gradients)
                if isinstance(rates, float):
                    torch._foreach_add_(list(parameters), list(directions), alpha=-rates)
                else:
                    for parameter, direction in zip(parameters, directions, strict=True):
                        rate = rates.view(-1, *[1] * (parameter.dim() - 1))
                        parameter.addcmul_(rate, direction, value=-1)

        return step

    def _optimizer(
        self, parameters: Sequence[Tensor]
    ) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
        """Return the function from gradients to step directions; its state lasts one round."""
        import torch

        if self.optimizer == "momentum":
            velocity = [torch.zeros_like(p) for p in parameters]

            def momentum(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
                torch._foreach_mul_(velocity, self.momentum)
                torch._foreach_add_(velocity, list(gradients))
                return velocity

            return momentum
        if self.optimizer == "adam":
            return _adam(parameters)
        return lambda gradients: gradients


def _adam(parameters: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
    """Adam (Kingma and Ba, 2015) with its usual constants.

    Not torch.optim's, because stacked clients may be in different rounds with different rates.
    """
    import torch

    first, second, epsilon = 0.9, 0.999, 1e-8
    mean = [torch.zeros_like(p) for p in parameters]
    square = [torch.zeros_like(p) for p in parameters]
    count = 0

    def directions(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        nonlocal count
        count += 1
        torch._foreach_lerp_(mean, list(gradients), 1 - first)
        torch._foreach_mul_(square, second)
        torch._foreach_addcmul_(square, list(gradients), list(gradients), 1 - second)
        result = []
        for m, v in zip(mean, square, strict=True):
            root = (v / (1 - second**count)).sqrt_().add_(epsilon)
            result.append((m / (1 - first**count)).div_(root))
        return result

    return directions
