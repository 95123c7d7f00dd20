"""The numbers that the page's charts show of a group of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpbc.data.sources import SOURCES
from fedpbc.experiments.comparison import Comparison, ComparisonRow, mean_of
from fedpbc.experiments.conditions import is_ceiling
from fedpbc.experiments.intervals import t_quantile
from fedpbc.experiments.run_result import RunResult, step_sizes_of
from fedpbc.report.client_charts import client_samples, fleet_data, per_client
from fedpbc.report.groups import RunGroup
from fedpbc.report.load import LoadedRun
from fedpbc.report.run_conditions import conditions_of
from fedpbc.report.style import page_styles

__all__ = ["AXES", "chart_data", "comparison_of", "thin"]

AXES = {
    "round": "rounds",
    "local_steps": "local steps",
    "uploads": "uploads",
    "bytes_up": "bytes sent up",
    "bytes_down": "bytes sent down",
    "bytes_both": "bytes sent both ways",
    "seconds": "seconds",
}
"""The x axes of a curve."""

MAX_POINTS = 400
"""Of a curve."""
MAX_TOTAL_POINTS = 2400
"""Of one algorithm's curves in all groups together, so that large pages still open."""


def thin(count: int, limit: int = MAX_POINTS) -> list[int]:
    """Return at most ``limit`` evenly spaced indices below ``count``, with the first and last."""
    if count <= limit:
        return list(range(count))
    return [round(k * (count - 1) / (limit - 1)) for k in range(limit)]


def comparison_of(group: RunGroup) -> tuple[Comparison, int | None]:
    """Return the comparison of a group's finished runs.

    If none is finished, it is of all runs up to the last round that every run has reached; that
    round is the second value, otherwise None.
    """
    finished = any(run.state == "finished" for run in group.runs)
    begun = [run for run in group.runs if run.metrics and run.state != "damaged"]
    last_round = None if finished or not begun else min(run.metrics[-1]["round"] for run in begun)
    cells, conditions = [], conditions_of(group.runs)
    for run in group.runs:
        lines = run.metrics if run.state == "finished" or not finished else ()
        if last_round is not None:
            lines = [line for line in lines if line["round"] <= last_round]
        failure = None if lines else run.note or run.state
        result = RunResult(
            run.algorithm,
            run.seed or 0,
            run.clients,
            lines,
            failure,
            label=group.label_of(run),
            condition=conditions[run],
            deploy_view=run.config.get("deploy_view"),
            step_sizes=step_sizes_of(run.config),
        )
        cells.append(replace(result.with_summary(run.summary), clients=run.clients))
    return Comparison(cells), last_round


def chart_data(
    group: RunGroup, comparison: Comparison, rows: Sequence[ComparisonRow], group_count: int = 1
) -> dict[str, Any]:
    """Return everything that a group's charts show; ``rows`` are the comparison's."""
    limit = max(60, min(MAX_POINTS, MAX_TOTAL_POINTS // max(group_count, 1)))
    runs = _curve_runs(group)
    curves = {name: _curves(members, limit) for name, members in runs.items()}
    labels = comparison.labels
    source = SOURCES.get(group.shared.get("data.name", ""))
    is_coarse = group.shared.get("data.labels", "fine") != "fine"
    return {
        "title": group.title,
        "values": _values(curves),
        "curves": curves,
        "paper_view": {a: comparison.paper_view(a) for a in labels if comparison.of(a)},
        "best_view": {row.label: row.view for row in rows if row.best_deployable},
        "per_class": _per_class(comparison),
        "per_client": per_client(runs),
        "per_client_on": client_samples(runs, any(r.test_data for r in comparison.runs)),
        # The names are those of its own labels; CIFAR-100 can have coarse ones.
        "classes": [] if source is None or is_coarse else list(source.classes),
        "staleness": _staleness([r for n, r in runs.items() if not is_ceiling(n)], limit),
        "time": {a: _mean(c["seconds"][-1:]) for a, c in curves.items()},
        "memory": _memory(group),
        "fleet": fleet_data(group.runs),
        "styles": page_styles({label: comparison.algorithm_of(label) for label in labels}),
        "aided": [a for a in labels if comparison.cost_of(a)["memory_aided"]],
    }


def _curve_runs(group: RunGroup) -> dict[str, list[LoadedRun]]:
    """Return each entry's finished runs; if it has none, those with an evaluation."""
    runs = {}
    for name in dict.fromkeys(map(group.label_of, group.runs)):
        members = [run for run in group.runs if run.metrics and group.label_of(run) == name]
        if not members:
            continue
        runs[name] = [run for run in members if run.state == "finished"] or members
    return runs


def _shown_lines(runs: Sequence[LoadedRun], limit: int) -> list[list[Mapping[str, Any]]]:
    """Return the lines of metrics at each point of a curve, one line a run."""
    indices = thin(min(len(run.metrics) for run in runs), limit)
    return [[run.metrics[k] for run in runs] for k in indices]


def _means(points: Sequence[Sequence[Mapping[str, Any]]], key: str) -> list[float | None]:
    return [_mean([line.get(key) for line in lines]) for lines in points]


def _curves(runs: Sequence[LoadedRun], limit: int) -> dict[str, Any]:
    """Return an algorithm's curves: means over seeds, and the deviation of each view's values."""
    points = _shown_lines(runs, limit)
    views = {}
    for view in points[0][0]["views"]:
        evaluations = [[line["views"][view] for line in lines] for lines in points]
        views[view] = {
            key: _spread([[each.get(key) for each in row] for row in evaluations])
            for key in _drawn_keys(each for row in evaluations for each in row)
        }
    keys = ("local_steps", "uploads", "seconds", "consensus_error", "consensus_bound")
    sent = {key: _means(points, key) for key in ("bytes_up", "bytes_down")}
    return {
        "round": [lines[0]["round"] for lines in points],
        **{key: _means(points, key) for key in keys},
        **sent,
        "bytes_both": [
            None if up is None or down is None else up + down
            for up, down in zip(*sent.values(), strict=True)
        ],
        "views": views,
        "seeds": len(runs),
        # Half a 95 % interval of the mean, in standard deviations.
        "half_interval": t_quantile(len(runs)) / math.sqrt(len(runs)) if len(runs) > 1 else None,
        "unfinished": any(run.state != "finished" for run in runs),
    }


def _drawn_keys(evaluations: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return what has a curve: a number in some evaluation, which may not be the first.

    A task may add its own, such as a distance or a metric.
    """
    numbers = (
        key
        for evaluation in evaluations
        for key, value in evaluation.items()
        if isinstance(value, int | float)
    )
    return [key for key in dict.fromkeys(numbers) if key != "train_loss"]


def _spread(points: Sequence[Sequence[Any]]) -> dict[str, list[float | None]]:
    """Return mean and deviation over seeds at each point; None where a seed has no number."""
    # In one array: there may be hundreds of seeds and of curves.
    numbers = [[v if isinstance(v, int | float) else None for v in point] for point in points]
    values = np.array(numbers, dtype=np.float64)
    several = values.shape[1] > 1
    # What overflows is shown as missing.
    with np.errstate(all="ignore"):
        deviations = values.std(axis=1, ddof=1) if several else np.zeros(len(values))
        means = values.mean(axis=1)
    return {"mean": _rounded(means), "deviation": _rounded(deviations)}


def _rounded(numbers: NDArray[np.float64]) -> list[float | None]:
    return [_round(number) if np.isfinite(number) else None for number in numbers.tolist()]


def _mean(values: Sequence[Any]) -> float | None:
    """Return the mean; None if a value is missing or there is none."""
    if not values or not all(isinstance(value, int | float) for value in values):
        return None
    return _round(mean_of(values))


def _round(number: float) -> float:
    """Round to as many digits as a chart can show."""
    rounded = float(f"{number:.5g}")
    # The largest numbers would be rounded to infinity.
    return rounded if math.isfinite(rounded) else number


def _values(curves: Mapping[str, Any]) -> list[str]:
    """Return what the charts can show. The first one is shown at first."""
    keys = {key for c in curves.values() for view in c["views"].values() for key in view}
    # For quadratics the distance to the optimum says most, and it is what the paper draws.
    first = ("test_accuracy", "distance", "test_loss", "train_accuracy")
    return [key for key in (*first, *sorted(keys - set(first))) if key in keys]


def _per_class(comparison: Comparison) -> dict[str, dict[str, list[float | None]]]:
    """Return the mean test accuracy of each class over the last rounds and the seeds."""
    accuracies: dict[str, dict[str, list[float | None]]] = {}
    for label in comparison.labels:
        cells = comparison.of(label)
        for view, evaluation in cells[0].metrics[-1]["views"].items() if cells else ():
            if evaluation.get("per_class"):
                accuracies.setdefault(label, {})[view] = [
                    _mean([comparison.tail(cell, view, _class_accuracy(c)) for cell in cells])
                    for c in range(len(evaluation["per_class"]))
                ]
    return accuracies


def _class_accuracy(index: int) -> Callable[[Mapping[str, Any]], Any]:
    return lambda evaluation: dict(enumerate(evaluation.get("per_class") or ())).get(index)


def _staleness(candidates: Sequence[Sequence[LoadedRun]], limit: int) -> dict[str, Any] | None:
    """Return staleness over rounds of the entry that has come furthest.

    The links are the same for all algorithms; a ceiling is not among them.
    """
    runs = max(candidates, key=lambda runs: min(len(run.metrics) for run in runs), default=None)
    if runs is None:
        return None
    points = _shown_lines(runs, limit)
    return {
        "round": [lines[0]["round"] for lines in points],
        **{key: _means(points, key) for key in ("staleness_mean", "staleness_max")},
    }


def _memory(group: RunGroup) -> dict[str, float]:
    """Return the mean peak memory of each entry's runs, in bytes."""
    peaks: dict[str, list[int]] = {}
    for run in group.runs:
        if run.peak_memory is not None:
            peaks.setdefault(group.label_of(run), []).append(run.peak_memory)
    return {name: mean_of(values) for name, values in peaks.items()}
