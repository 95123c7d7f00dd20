"""What a task is: a first model, local steps, and a way to judge a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedpbc.tasks.layout import Layout
from fedpbc.tasks.local_training import LocalTraining
from fedpbc.tasks.stacked_training import StackAdvice

__all__ = ["Evaluation", "Gradients", "ManyRounds", "StackedTask", "Task", "WithGradients"]


@dataclass(frozen=True)
class Evaluation:
    """How good one model is; what a task does not have is None.

    Example:
        >>> Evaluation(test_loss=0.5).test_accuracy is None
        True
    """

    test_loss: float
    train_loss: float | None = None
    test_accuracy: float | None = None
    train_accuracy: float | None = None
    per_class: list[float | None] | None = None
    extra: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """For a line of metrics."""
        return {
            "test_accuracy": self.test_accuracy,
            "test_loss": self.test_loss,
            "train_accuracy": self.train_accuracy,
            "train_loss": self.train_loss,
            "per_class": self.per_class,
            **self.extra,
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Evaluation:
        """From a line of metrics."""
        own = {k: v for k, v in found.items() if k in cls.__dataclass_fields__}
        return cls(**own, extra={k: v for k, v in found.items() if k not in own})


@dataclass(frozen=True)
class Gradients:
    """What is known of the clients' gradients at one model: the theory's constants, squared.

    Attributes:
        slope: ‖∇F‖².
        noise: the mean over clients of E‖∇ℓ_i − ∇F_i‖²: σ² is at least that.
        spread: (1/m) Σ‖∇F_i − ∇F‖²: with β = 0, ζ² is at least that.

    Example:
        >>> Gradients(slope=4.0, noise=0.0, spread=1.0).slope
        4.0
    """

    slope: float
    noise: float
    spread: float


class Task(Protocol):
    """What is minimised. Anything with these can be trained; see Supervised and Quadratic.

    Models are vectors on the CPU, here and wherever they travel. A task that computes elsewhere
    takes them there and brings them back, and says where with an attribute ``device``
    (torch.device); without it, it is the CPU.
    """

    seed: int
    clients: int
    training: LocalTraining
    layout: Layout

    @property
    def class_shares(self) -> NDArray[np.float64] | None:
        """ν_i for each client, [m, C]; None where the data has no classes."""

    def init(self) -> Tensor:
        """x⁰."""

    def local_steps(
        self, client: int, start: Tensor, round: int, first_batch: int, correction: Tensor | None
    ) -> Tensor:
        """The client's model after the s local steps of one round from ``start``.

        Its batches are number ``first_batch`` and the following. A pure function: same arguments,
        same bits.
        """

    def evaluate(self, model: Tensor) -> Evaluation:
        """Judge a model."""


@runtime_checkable
class ManyRounds(Protocol):
    """A task that can also make the local steps of several rounds without a vector in between."""

    def local_rounds(
        self,
        client: int,
        start: Tensor,
        first_round: int,
        rounds: int,
        first_batch: int,
        correction: Tensor | None,
        out: Tensor | None = None,
    ) -> Tensor:
        """The same bits as one round after another; in ``out``, if given."""


@runtime_checkable
class StackedTask(Protocol):
    """A task that can also make the local steps of many clients at once."""

    def stack_advice(self) -> StackAdvice:
        """Whether it can, whether it pays, and why."""

    def stacked_local_steps(
        self,
        clients: Sequence[int],
        models: Tensor,
        rounds: Sequence[int],
        first_batches: Sequence[int],
        correction: Tensor | None,
    ) -> None:
        """One round for each row of ``models`` [n, d], in place; rows may be in different rounds.

        ``models`` and ``correction`` are on the task's device: a stack is too much to move there
        and back in every round.

        A row's result must not depend on which other rows there are.
        """


@runtime_checkable
class WithGradients(Protocol):
    """A task that also says how large the clients' gradients are and how much they differ."""

    def gradients(self, model: Tensor, draw: int) -> Gradients:
        """At a model, exactly or estimated from a few batches.

        Those are a pure function of the seed and of ``draw``, and no batches of the training's.
        """
