"""One row of a results table: a variant in one view, over its runs, and what it cost."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from fedpbc.algorithms import ALGORITHMS
from fedpbc.experiments.spread import Spread, mean_of
from fedpbc.simulation.evaluation_schedule import window_of
from fedpbc.study.record import Record
from fedpbc.tasks.task import Evaluation

__all__ = ["Row", "Value", "cost_of", "further_values", "row_of", "tail_mean", "window_of"]

Value = Callable[[Mapping[str, Any]], Any]
"""Extracts a value from the evaluation of a view."""


@dataclass(frozen=True)
class Row:
    """One variant in one view.

    Attributes:
        algorithm: the algorithm's name.
        label: the variant's.
        test: test accuracy; None where the task has no classes.
        train: training accuracy.
        worst_class: the lowest test accuracy of any class.
        loss: test loss.
        bytes_up, bytes_down: of the vectors that were sent.
        models_on_server: None where no server could have the view.
        best_deployable: whether this is the view that a server is to deploy: the one chosen
            beforehand, or else the best of those that it could have, by the values shown.
        metrics: further values of an evaluation, such as a task's ``metrics``; None where one of
            the evaluations has none.
    """

    algorithm: str
    label: str
    view: str
    test: Spread | None
    train: Spread | None
    worst_class: Spread | None
    loss: Spread
    local_steps: int
    uploads: int
    bytes_up: int | None
    bytes_down: int | None
    models_on_server: int | None
    models_on_client: int | None
    best_deployable: bool = False
    metrics: Mapping[str, Spread | None] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """The accuracy, or minus the loss where there are no classes."""
        return self.test.mean if self.test is not None else -self.loss.mean


def row_of(label: str, view: str, runs: Sequence[Record], cost: Mapping[str, Any]) -> Row:
    """A variant in a view, over its finished runs; ``cost`` is what :func:`cost_of` returns."""

    def spread(value: Value) -> Spread | None:
        means = [mean for run in runs if (mean := tail_mean(run, view, value)) is not None]
        return Spread.of(means) if len(means) == len(runs) else None

    loss = spread(lambda e: e["test_loss"])
    assert loss is not None  # Every evaluation has a loss.
    return Row(
        algorithm=runs[0].algorithm,
        label=label,
        view=view,
        test=spread(lambda e: e.get("test_accuracy")),
        train=spread(lambda e: e.get("train_accuracy")),
        worst_class=spread(
            lambda e: min((v for v in e.get("per_class") or () if v is not None), default=None)
        ),
        loss=loss,
        local_steps=round(statistics.fmean(r.metrics[-1]["local_steps"] for r in runs)),
        uploads=round(statistics.fmean(r.metrics[-1]["uploads"] for r in runs)),
        bytes_up=_mean_count(runs, "bytes_up"),
        bytes_down=_mean_count(runs, "bytes_down"),
        models_on_server=cost["models_on_server"].get(view),
        models_on_client=cost.get("models_on_client"),
        metrics={
            name: spread(lambda evaluation, name=name: evaluation.get(name))  # type: ignore[misc]
            for name in further_values(run.metrics[-1]["views"][view] for run in runs)
        },
    )


def tail_mean(run: Record, view: str, value: Value) -> float | None:
    """The mean of a value over the evaluations of a run's last rounds."""
    rounds = run.metrics[-1]["round"]
    first = rounds - window_of(rounds)
    # From the end: a run may have thousands of evaluations before.
    lines = list(takewhile(lambda line: line["round"] > first, reversed(run.metrics)))
    values = [value(line["views"][view]) for line in reversed(lines)]
    return None if None in values else mean_of(values)


def cost_of(runs: Sequence[Record]) -> Mapping[str, Any]:
    """What a variant's algorithm stores, as counted at the end of its runs."""
    costs = [run.result["cost"] for run in runs if run.result is not None]
    if not costs:
        kind = ALGORITHMS.get(runs[0].algorithm) if runs else None
        aided = kind is not None and kind.memory_aided
        return {"models_on_server": {}, "models_on_client": None, "memory_aided": aided}
    # Runs over other links may have heard from fewer clients: the largest counts.
    servers = [cost["models_on_server"] for cost in costs]
    clients = [n for cost in costs if (n := cost.get("models_on_client")) is not None]
    return {
        **costs[0],
        "models_on_server": {
            view: max((s[view] for s in servers if s.get(view) is not None), default=None)
            for view in servers[0]
        },
        "models_on_client": max(clients, default=None),
    }


def _mean_count(runs: Sequence[Record], key: str) -> int | None:
    counts = [count for run in runs if (count := run.metrics[-1].get(key)) is not None]
    return round(statistics.fmean(counts)) if len(counts) == len(runs) else None


def further_values(evaluations: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of numbers in evaluations that not every task has.

    Example:
        >>> further_values([{"test_loss": 0.5, "per_class": [0.5], "f1": 0.7}])
        ['f1']
    """
    names = (
        name
        for evaluation in evaluations
        for name, value in evaluation.items()
        if name not in Evaluation.__dataclass_fields__ and isinstance(value, int | float | None)
    )
    return list(dict.fromkeys(names))
