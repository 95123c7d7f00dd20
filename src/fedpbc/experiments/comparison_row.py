"""One row of a comparison: an entry in one view, over its runs, and what it cost."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from fedpbc.algorithms import ALGORITHMS
from fedpbc.experiments.run_result import RunResult
from fedpbc.experiments.spread import Spread, mean_of
from fedpbc.simulation.evaluation_schedule import window_of
from fedpbc.tasks.task import Evaluation

__all__ = [
    "ComparisonRow",
    "Value",
    "comparison_row",
    "cost_of_runs",
    "further_values",
    "mean_count",
    "tail_mean",
    "value_named",
    "window_of",
]

Value = Callable[[Mapping[str, Any]], Any]
"""Extracts a value from the evaluation of a view."""


@dataclass(frozen=True)
class ComparisonRow:
    """One entry in one view.

    Attributes:
        algorithm: the algorithm's name.
        label: of the entry; the algorithm's name unless it has settings of its own.
        test: test accuracy; None where the task has no classes.
        train: training accuracy.
        worst_class: the lowest test accuracy of any class.
        loss: test loss.
        bytes_up, bytes_down: of the vectors that were sent; None for runs of earlier versions.
        models_on_server: None where no server could have the view, or no run has ended.
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


UNKNOWN_COST: Mapping[str, Any] = {
    "models_on_server": {},
    "models_on_client": None,
    "memory_aided": False,
}


def comparison_row(
    label: str, view: str, runs: Sequence[RunResult], cost: Mapping[str, Any]
) -> ComparisonRow:
    """An entry in a view, over its finished runs; ``cost`` is what :func:`cost_of_runs` returns."""

    def spread(value: Value) -> Spread | None:
        means = [mean for run in runs if (mean := tail_mean(run, view, value)) is not None]
        return Spread.of(means) if len(means) == len(runs) else None

    loss = spread(lambda e: e["test_loss"])
    assert loss is not None  # Every evaluation has a loss.
    return ComparisonRow(
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
        bytes_up=mean_count(runs, "bytes_up"),
        bytes_down=mean_count(runs, "bytes_down"),
        models_on_server=cost["models_on_server"].get(view),
        models_on_client=cost.get("models_on_client"),
        metrics={
            name: spread(value_named(name))
            for name in further_values(run.metrics[-1]["views"][view] for run in runs)
        },
    )


def tail_mean(run: RunResult, view: str, value: Value) -> float | None:
    """The mean of a value over the evaluations of a run's last rounds."""
    rounds = run.metrics[-1]["round"]
    first = rounds - window_of(rounds)
    # From the end: a run may have thousands of evaluations before.
    lines = list(takewhile(lambda line: line["round"] > first, reversed(run.metrics)))
    values = [value(line["views"][view]) for line in reversed(lines)]
    return None if None in values else mean_of(values)


def cost_of_runs(runs: Sequence[RunResult], algorithm: str) -> Mapping[str, Any]:
    """What an entry's algorithm stores, as counted at the end of its runs.

    ``algorithm`` is its name where there are no runs.
    """
    costs = [run.cost for run in runs if run.cost is not None]
    if costs:
        # Runs over other links may have heard from fewer clients: the largest counts.
        servers = [cost["models_on_server"] for cost in costs]
        largest = {
            view: max((s[view] for s in servers if s.get(view) is not None), default=None)
            for view in servers[0]
        }
        clients = [n for cost in costs if (n := cost.get("models_on_client")) is not None]
        return {
            **costs[0],
            "models_on_server": largest,
            "models_on_client": max(clients, default=None),
        }
    kind = ALGORITHMS.get(runs[0].algorithm if runs else algorithm)
    return {**UNKNOWN_COST, "memory_aided": kind is not None and kind.memory_aided}


def mean_count(runs: Sequence[RunResult], key: str) -> int | None:
    """The mean over runs of a counter at their ends; None if one of them lacks it."""
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


def value_named(name: str) -> Value:
    """A value of an evaluation by its name; None if it has none of that name."""
    return lambda evaluation: evaluation.get(name)
