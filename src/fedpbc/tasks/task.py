"""The task protocol: an initial model, local steps, and evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpbc.errors import InputError
from fedpbc.tasks.local_training import LocalTraining
from fedpbc.tasks.parameter_layout import Layout
from fedpbc.tasks.stacked_training import StackAdvice

__all__ = [
    "Evaluation",
    "Gradients",
    "ManyRounds",
    "StackedTask",
    "Task",
    "WithBatchGradients",
    "WithClientAccuracy",
    "WithClientLoss",
    "WithGradients",
    "WithStatistics",
]


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one model; None for those a task does not have.

    Example:
        >>> Evaluation(test_loss=0.5).test_accuracy is None
        True
    """

    test_loss: float
    train_loss: float | None = None
    test_accuracy: float | None = None
    train_accuracy: float | None = None
    per_class: list[float | None] | None = None
    extra: dict[str, float | None] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Return the entries of a line of metrics."""
        return {
            "test_accuracy": self.test_accuracy,
            "test_loss": self.test_loss,
            "train_accuracy": self.train_accuracy,
            "train_loss": self.train_loss,
            "per_class": self.per_class,
            **self.extra,
        }

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> Evaluation:
        """Create from a line of metrics."""
        if not isinstance(entries, Mapping) or "test_loss" not in entries:
            raise InputError("the entries of a view", entries, "a table with a test_loss")
        fields = {k: v for k, v in entries.items() if k in cls.__dataclass_fields__}
        return cls(**fields, extra={k: v for k, v in entries.items() if k not in fields})


@dataclass(frozen=True)
class Gradients:
    """The theory's constants at one model, squared: size and spread of the clients' gradients."""

    slope: float  # ‖∇F‖²
    noise: float  # the mean over clients of E‖∇ℓ_i − ∇F_i‖²: a lower bound of σ²
    spread: float  # (1/m) Σ‖∇F_i − ∇F‖²: with β = 0, a lower bound of ζ²

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[Tensor, Tensor]], clients: int) -> Gradients:
        """Estimate from two gradients of each of some clients, on independently drawn batches.

        No noisy quantity is squared: ⟨g, g'⟩ of one client's two gradients has the mean ‖∇F_i‖²,
        and of two clients' gradients ⟨∇F_i, ∇F_j⟩. So all three estimates are unbiased, except that
        they are cut off at 0. ``clients`` is m, the number of all clients.
        """
        total: Tensor | None = None
        count, within, noise, squares = 0, 0.0, 0.0, 0.0
        for first, second in pairs:
            mean, difference = (first + second).div_(2), first - second
            within += float(torch.dot(first, second))
            noise += float(torch.dot(difference, difference)) / 2
            squares += float(torch.dot(mean, mean))
            total = mean if total is None else total.add_(mean)
            count += 1
        assert total is not None
        within, noise = within / count, noise / count
        if count == 1:
            return cls(slope=max(within, 0.0), noise=noise, spread=0.0)
        across = (float(torch.dot(total, total)) - squares) / (count * (count - 1))
        # ∇F is the mean over all m clients: m of the m² products are a client's with itself.
        slope = within / clients + across * (1 - 1 / clients)
        return cls(slope=max(slope, 0.0), noise=noise, spread=max(within - slope, 0.0))


class Task(Protocol):
    """What is minimised. Any object with these members can be trained.

    Models are vectors on the CPU. What its layout says of statistics and kept layers is at their
    end; a correction is for the parameters that clients share, the first ``layout.trained`` values.
    A task that computes on another device moves them there and back,
    and names the device in an attribute ``device`` (torch.device).
    """

    seed: int
    clients: int
    training: LocalTraining
    layout: Layout

    @property
    def class_shares(self) -> NDArray[np.float64] | None:
        """ν_i for each client, [m, C]; None where the data has no classes."""

    def init(self) -> Tensor:
        """Return x⁰."""

    def local_steps(
        self, client: int, start: Tensor, round: int, first_batch: int, correction: Tensor | None
    ) -> Tensor:
        """Return the client's model after the s local steps of one round from ``start``.

        The batches are numbered from ``first_batch``. A pure function: same arguments, same bits.
        """

    def evaluate(self, model: Tensor) -> Evaluation:
        """Return the metrics of a model."""


@runtime_checkable
class ManyRounds(Protocol):
    """A task that can also run several rounds without a vector in between."""

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
        """Return the same bits as one round after another; in ``out``, if given."""


@runtime_checkable
class StackedTask(Protocol):
    """A task that can also run the local steps of many clients at once."""

    def stack_advice(self) -> StackAdvice:
        """Return whether stacking is possible, whether it pays, and why."""

    def stacked_local_steps(
        self,
        clients: Sequence[int],
        models: Tensor,
        rounds: Sequence[int],
        first_batches: Sequence[int],
        correction: Tensor | None,
    ) -> Tensor | None:
        """Run one round for each row of ``models`` [n, d], in place.

        Return whether each row is finite now, or None: then the engine looks.
        Rows may be in different rounds, and a row's result must not depend on the other rows.
        ``models`` and ``correction`` are on the task's device: a stack is too large to be moved in
        every round.
        """


@runtime_checkable
class WithBatchGradients(Protocol):
    """A task whose gradients can be had one by one, for algorithms with steps of their own."""

    def batch_gradient(self, client: int, model: Tensor, batch: int) -> Tensor:
        """Return the gradient of the client's loss on one batch, a pure function, as a vector."""


@runtime_checkable
class WithStatistics(Protocol):
    """A task whose model keeps running statistics: its layout says how many."""

    def gradient_and_statistics(
        self, client: int, model: Tensor, batch: int
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient on one batch, and the statistics after it, as vectors."""


@runtime_checkable
class WithClientLoss(Protocol):
    """A task that can tell how well a model fits one client."""

    def client_loss(self, client: int, model: Tensor) -> float:
        """Return the mean loss over the client's samples."""


@runtime_checkable
class WithClientAccuracy(Protocol):
    """A task that can tell how often a model is right about each client's held-out samples."""

    def client_accuracies(self, model: Tensor) -> list[float | None]:
        """Return one model's accuracy for each client; None for one without held-out samples.

        Empty if the task has no accuracy.
        """

    def client_accuracy(self, client: int, model: Tensor) -> float | None:
        """Return the same for one client, for instance of its own model."""


@runtime_checkable
class WithGradients(Protocol):
    """A task that can also measure the size and the spread of the clients' gradients."""

    def gradients(self, model: Tensor, draw: int) -> Gradients:
        """Return the values at a model, exact or estimated from a few batches.

        These batches are a pure function of the seed and ``draw``, and not used in training.
        """
