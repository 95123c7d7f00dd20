"""Local training: the learning-rate schedule and the local optimizer.

Any algorithm runs with any local optimizer. The optimizer's state is reset in every round, so that
a client's model remains a pure function of the model it received, the rounds since, and the seed.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from fedpbc.choices import specification
from fedpbc.errors import InputError, one_line
from fedpbc.limits import MAX_INTEGER, MAX_LOCAL_STEPS
from fedpbc.options import Help, check_keywords, check_kind, checked, nearest, unknown_option
from fedpbc.tasks.schedules import HORIZONS, SCHEDULES, ScheduleName

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["PYTHON", "LocalTraining"]

BUILT_IN = ("sgd", "adam", "adamw")
"""The optimizers that also train clients in a stack."""
HORIZON = 100
"""Rounds of a schedule that has a horizon, where none is given."""
BESIDES = ("proximal", "weight_decay", "momentum")
"""Settings that are 0 in plain SGD."""
PYTHON = "python:"
"""What a configuration writes before the name of a function that only a Python task has."""


@check_keywords
@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """The configuration of the clients' local steps.

    Attributes:
        local_steps: s, the number of steps in a round.
        batch_size: samples per step.
        learning_rate: η_0.
        decay: whether η_t = η_0/√(t/10 + 1), as by default, or η_t = η_0; not with a schedule.
        schedule: by what η_0 is multiplied in round t: a name, also with its horizon
            ("cosine:rounds=50"), or a function of the round.
        schedule_rounds: R, the horizon of schedules that have one; None: 100.
        optimizer: how a step uses the gradient: "sgd", "adam", "adamw", the name of a class in
            ``torch.optim``, a name with options such as "sgd:momentum=0.9" (or a table), or a
            function of the parameters and ``lr`` that returns one.
        momentum: of "sgd", as in PyTorch, or of a class in ``torch.optim`` that has it.
        weight_decay: λ; λ·x is added to the gradient, or with "adamw" η_t·λ·x is subtracted from x.
        proximal: μ of the term μ/2·‖x − x_start‖², x_start the model at the start of the round.

    Example:
        >>> LocalTraining(learning_rate=0.1).rate(30)
        0.05
        >>> LocalTraining(learning_rate=0.1, schedule=lambda t: 1 / (1 + t)).rate(1)
        0.05
    """

    local_steps: Annotated[int, Ge(1), Le(MAX_LOCAL_STEPS), Help("Local steps s per round")] = 5
    batch_size: Annotated[int, Ge(1), Help("Samples per step")] = 16
    learning_rate: Annotated[float, Gt(0), Help("Local step size η_0")] = 0.05
    decay: bool | None = None
    optimizer: Literal["sgd", "adam", "adamw"] | str | Mapping[str, Any] | Callable[..., Any] = (
        "sgd"
    )
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    proximal: Annotated[float, Ge(0)] = 0.0
    weight_decay: Annotated[float, Ge(0)] = 0.0
    schedule: ScheduleName | str | Mapping[str, Any] | Callable[[int], float] | None = None
    schedule_rounds: Annotated[int, Ge(1)] | None = None

    def __post_init__(self) -> None:
        self._take_options("optimizer", {"momentum": "momentum", "weight_decay": "weight_decay"})
        self._take_options("schedule", {"rounds": "schedule_rounds"})
        checked(type(self), vars(self), "train")
        theirs = isinstance(self.optimizer, str) and not self.is_built_in
        if theirs and not str(self.optimizer).startswith(PYTHON):
            find_optimizer(str(self.optimizer))
        for name in ("momentum", "weight_decay") if callable(self.optimizer) else ():
            if value := getattr(self, name):
                raise InputError(f"train.{name}", value, "left out: give it to the optimizer")
        if self.momentum and not self._has_momentum:
            raise InputError(
                "train.momentum",
                self.momentum,
                f"left out: the optimizer {self.optimizer!r} has none, but 'sgd' has",
            )
        is_name = isinstance(self.schedule, str) and not self.schedule.startswith(PYTHON)
        if is_name and self.schedule not in SCHEDULES:
            raise InputError("train.schedule", self.schedule, nearest(self.schedule, SCHEDULES))
        self._check_schedule()
        if self.schedule is None and self.decay is None:
            object.__setattr__(self, "decay", True)
        if callable(self.schedule):
            self.rate(0)

    def _take_options(self, field: str, names: Mapping[str, str]) -> None:
        """Take a specification or a table apart: its options are other fields, by these names."""
        given: Any = getattr(self, field)
        if not isinstance(given, str | Mapping):
            return
        options = specification(given) if isinstance(given, str) else dict(given)
        made: Any = options.pop("name", type(self).__dataclass_fields__[field].default)
        if field == "optimizer" and options and made not in BUILT_IN:
            made, options = partial(find_optimizer(made), **options), {}
        for option, value in options.items():
            if option not in names:
                raise unknown_option(option, names, f"train.{field}")
            object.__setattr__(self, names[option], value)
        object.__setattr__(self, field, made)

    def _check_schedule(self) -> None:
        """Raise InputError for what the schedule does not use."""
        name = self.described()["schedule"]
        if self.schedule is not None and self.decay is not None:
            expected = f"left out: the schedule {name!r} replaces it"
            raise InputError("train.decay", self.decay, expected)
        if self.schedule_rounds is not None and self.schedule not in HORIZONS:
            given = (
                "there is no schedule" if name is None else f"the schedule {name!r} has no horizon"
            )
            expected = f"left out, since {given}, or given with one of {', '.join(HORIZONS)}"
            raise InputError("train.schedule_rounds", self.schedule_rounds, expected)

    def described(self) -> dict[str, Any]:
        """The settings as plain values: functions by their names."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            name: PYTHON + _name_of(value) if callable(value) else value
            for name, value in values.items()
        }

    def check_precision(self, dtype: torch.dtype) -> None:
        """Raise InputError if a number is too large for models of that type."""
        import torch

        largest = torch.finfo(dtype).max
        for name in ("learning_rate", "proximal", "weight_decay"):
            if getattr(self, name) > largest:
                kind = str(dtype).removeprefix("torch.")
                expected = f"at most {largest:g}, the largest number in {kind}, the model's type"
                raise InputError(f"train.{name}", getattr(self, name), expected)

    def rate(self, t: int) -> float:
        """Return η_t."""
        check_kind("round", t, numbers.Real, "a number")
        if not 0 <= t <= MAX_INTEGER:
            raise InputError("round", t, "at least 0")
        if self.schedule in (None, "inverse_sqrt"):
            decays = self.decay or self.schedule is not None
            return self.learning_rate / (math.sqrt(t / 10 + 1) if decays else 1.0)
        if isinstance(self.schedule, str):
            horizon = self.schedule_rounds or HORIZON
            return self.learning_rate * SCHEDULES[self.schedule](int(t), horizon)
        assert callable(self.schedule)
        try:
            factor: Any = self.schedule(int(t))
        except Exception as error:
            raise InputError(f"train.schedule({t}) fails: {one_line(error)}") from error
        is_number = isinstance(factor, numbers.Real) and not isinstance(factor, bool)
        if not is_number or not 0 < factor < math.inf:
            raise InputError(f"train.schedule({t})", factor, "a number above 0")
        return self.learning_rate * float(factor)

    def largest_rate(self, rounds: int) -> float:
        """The largest η_t of so many rounds."""
        # Only a function of the user's own may rise.
        ends = range(rounds) if callable(self.schedule) else (0, rounds - 1)
        return max(self.rate(t) for t in ends)

    def step_sum(self, rates: Sequence[float]) -> float:
        """By what a constant gradient is multiplied in the model's change over rounds.

        Weight decay counts as a part of the gradient. An InputError for optimizers whose steps are
        not linear in the gradients.

        Example:
            >>> LocalTraining(local_steps=2).step_sum([0.1])
            0.2
            >>> LocalTraining(local_steps=2, optimizer="sgd:momentum=0.5").step_sum([0.1])
            0.25
        """
        if self.optimizer == "sgd" and not self.proximal and not self.momentum:
            return self.local_steps * sum(rates)
        return sum(map(self._round_step_sum, rates))

    def _round_step_sum(self, rate: float) -> float:
        """The same for one round, after which the optimizer's state begins anew."""
        momentum, damping, nesterov = self.momentum, 0.0, False
        if self.optimizer != "sgd":
            rate, momentum, damping, nesterov = self._sgd_options(rate)
        change = velocity = 0.0
        for k in range(self.local_steps):
            gradient = 1 + self.proximal * change
            velocity = momentum * velocity + (1 - damping if k else 1) * gradient
            change -= rate * (gradient + momentum * velocity if nesterov else velocity)
        return -change

    def _sgd_options(self, rate: float) -> tuple[float, float, float, bool]:
        """Rate, momentum, dampening and whether it is Nesterov's, of PyTorch's SGD."""
        import torch

        name = self.described()["optimizer"]
        expected = (
            "'sgd' or torch.optim.SGD with one rate: the algorithm computes gradients "
            "from how a model has changed, which works with no other"
        )
        if self.is_built_in:
            raise InputError("train.optimizer", name, expected)
        # Several parameters: they might get different rates.
        optimizer = self._torch_optimizer([torch.zeros(1) for _ in range(4)], rate)
        options = {
            (
                -float(group["lr"]) if group["maximize"] else float(group["lr"]),
                float(group["momentum"]),
                float(group["dampening"]),
                bool(group["nesterov"]),
            )
            for group in (optimizer.param_groups if type(optimizer) is torch.optim.SGD else ())
        }
        if len(options) != 1:
            raise InputError("train.optimizer", name, expected)
        return options.pop()

    @property
    def _has_momentum(self) -> bool:
        """Whether the optimizer, which is a name, can have momentum."""
        if self.is_built_in or not isinstance(self.optimizer, str):
            return self.optimizer == "sgd"
        if self.optimizer.startswith(PYTHON):
            return False
        return "momentum" in inspect.signature(find_optimizer(self.optimizer)).parameters

    @property
    def is_plain(self) -> bool:
        """Whether a step only subtracts η_t times the gradient (plain SGD)."""
        return self.optimizer == "sgd" and not any(getattr(self, name) for name in BESIDES)

    @property
    def is_built_in(self) -> bool:
        """Whether the optimizer is one of ours, which can also train clients in a stack."""
        return isinstance(self.optimizer, str) and self.optimizer in BUILT_IN

    @property
    def not_plain(self) -> str:
        """The setting because of which steps are not plain SGD."""
        return next((name for name in BESIDES if getattr(self, name)), "optimizer")

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

        def corrected(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
            if correction:
                gradients = torch._foreach_add(list(gradients), list(correction))
            if self.proximal:
                pulls = torch._foreach_sub([p.detach() for p in parameters], starts)
                gradients = torch._foreach_add(list(gradients), pulls, alpha=self.proximal)
            return gradients

        if not self.is_built_in:
            return self._torch_steps(parameters, rates, corrected)
        direction_of = self._optimizer(parameters)

        def step(gradients: Sequence[Tensor]) -> None:
            with torch.no_grad():
                directions = direction_of(self._decayed(parameters, rates, corrected(gradients)))
                if isinstance(rates, float):
                    torch._foreach_add_(list(parameters), list(directions), alpha=-rates)
                else:
                    for parameter, direction in zip(parameters, directions, strict=True):
                        rate = rates.view(-1, *[1] * (parameter.dim() - 1))
                        parameter.addcmul_(rate, direction, value=-1)

        return step

    def _decayed(
        self, parameters: Sequence[Tensor], rates: float | Tensor, gradients: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """The gradients with weight decay; AdamW's shrinks the parameters instead."""
        import torch

        if not self.weight_decay:
            return gradients
        if self.optimizer != "adamw":
            values = [p.detach() for p in parameters]
            return torch._foreach_add(list(gradients), values, alpha=self.weight_decay)
        for parameter in parameters:
            rate = rates
            if not isinstance(rate, float):
                rate = rate.view(-1, *[1] * (parameter.dim() - 1))
            parameter.mul_(1 - rate * self.weight_decay)
        return gradients

    def _torch_steps(
        self,
        parameters: Sequence[Tensor],
        rate: float | Tensor,
        corrected: Callable[[Sequence[Tensor]], Sequence[Tensor]],
    ) -> Callable[[Sequence[Tensor]], None]:
        """Return the function that makes one step with an optimizer of PyTorch."""
        import torch

        if not isinstance(rate, float):
            expected = f"one of {', '.join(BUILT_IN)}: this task trains clients in a stack"
            raise InputError("train.optimizer", self.described()["optimizer"], expected)
        optimizer = self._torch_optimizer(parameters, rate)

        def step(gradients: Sequence[Tensor]) -> None:
            with torch.no_grad():
                for parameter, gradient in zip(parameters, corrected(gradients), strict=True):
                    parameter.grad = gradient
                optimizer.step()
                for parameter in parameters:
                    parameter.grad = None

        return step

    def _torch_optimizer(self, parameters: Sequence[Tensor], rate: float) -> Any:
        """An optimizer of PyTorch, fresh for this round."""
        name, options = self.described()["optimizer"], {}
        make: Any = self.optimizer
        if isinstance(make, str):
            make = find_optimizer(make)
            given = {"weight_decay": self.weight_decay, "momentum": self.momentum}
            options = {name: value for name, value in given.items() if value}
        try:
            optimizer = make(parameters, lr=rate, **options)
        except Exception as error:
            expected = f"one that takes the parameters and lr ({one_line(error)})"
            raise InputError("train.optimizer", name, expected) from error
        if not hasattr(optimizer, "param_groups") or not callable(getattr(optimizer, "step", None)):
            kind = type(optimizer).__name__
            raise InputError("train.optimizer", name, f"one that returns an optimizer, not {kind}")
        return optimizer

    def _optimizer(
        self, parameters: Sequence[Tensor]
    ) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
        """Return the function from gradients to step directions; its state lasts one round."""
        import torch

        if self.optimizer == "sgd" and self.momentum:
            velocity = [torch.zeros_like(p) for p in parameters]

            def momentum(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
                torch._foreach_mul_(velocity, self.momentum)
                torch._foreach_add_(velocity, list(gradients))
                return velocity

            return momentum
        if self.optimizer in ("adam", "adamw"):
            return _adam(parameters)
        return lambda gradients: gradients


def _name_of(function: Callable[..., Any]) -> str:
    """The name of a function, or of what is called with some of its arguments."""
    named: Any = function.func if isinstance(function, partial) else function
    return str(getattr(named, "__name__", type(named).__name__))


def find_optimizer(name: str) -> Callable[..., Any]:
    """A class of ``torch.optim`` by its name."""
    import torch

    classes = {
        name: kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    # One is abstract, one evaluates the loss several times in a step, one needs sparse gradients.
    for unusable in ("Optimizer", "LBFGS", "SparseAdam"):
        classes.pop(unusable, None)
    if name == "momentum":
        raise InputError("train.optimizer", name, "'sgd' with train.momentum, such as 0.9")
    if name not in classes:
        raise InputError("train.optimizer", name, nearest(name, [*BUILT_IN, *sorted(classes)]))
    return classes[name]


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
