"""The result of one run of a comparison: its metrics and costs, or why it failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from fedpbc.experiments.conditions import Condition
from fedpbc.experiments.settings import TrainSection

__all__ = ["RunResult", "step_sizes_of"]


def step_sizes_of(config: Mapping[str, Any]) -> tuple[float, float]:
    """η_0 and η_g of a run's configuration.

    Example:
        >>> step_sizes_of({"train": {"learning_rate": 0.2}})
        (0.2, 1.0)
    """
    train = config.get("train") or {}
    keys = ("learning_rate", "global_learning_rate")
    eta, eta_g = (train.get(key, getattr(TrainSection, key)) for key in keys)
    return eta, eta_g


@dataclass(frozen=True)
class RunResult:
    """The result of one run of a comparison: its metrics, or why it failed.

    Attributes:
        metrics: one line per evaluation.
        cost: as in a run's summary: what the run stored.
        label: of its entry; by default the algorithm's name.
        condition: what it was run on, where a comparison has several.
        train_samples: how many training samples were evaluated, of how many; if it is known.
        test_data: what was evaluated, where clients bring their own test samples.
        deploy_view: the view that a server is to deploy, if it was chosen beforehand.
        step_sizes: η_0 and η_g, if they are known.
        client_accuracy: the statistics over clients of each view's accuracy, if it is known.
        notes: what a reader must know of its task and links.
    """

    algorithm: str
    seed: int
    clients: int = 0
    metrics: Sequence[Mapping[str, Any]] = ()
    failure: str | None = None
    cost: Mapping[str, Any] | None = None
    label: str = ""
    condition: Condition = field(default_factory=Condition)
    train_samples: Mapping[str, int] | None = None
    test_data: Mapping[str, Any] | None = None
    deploy_view: str | None = None
    step_sizes: tuple[float, float] | None = None
    client_accuracy: Mapping[str, Mapping[str, Any]] | None = None
    notes: Sequence[str] = ()

    def with_summary(self, summary: Mapping[str, Any]) -> Self:
        """Return it with what a run's summary says besides its metrics."""
        return replace(
            self,
            clients=summary.get("clients", self.clients),
            cost=summary.get("cost"),
            train_samples=summary.get("train_samples"),
            test_data=summary.get("test_data"),
            client_accuracy=summary.get("client_accuracy"),
            notes=summary.get("notes", ()),
        )

    @property
    def evaluates_all(self) -> bool:
        """Whether the training accuracy is known to be of all training samples."""
        counts = self.train_samples or {}
        return counts.get("evaluated", 0) >= counts.get("all", 1)

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.algorithm)
