"""The numbers behind a page: what its tables and charts show of a group of runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpbc.data.sources import SOURCES
from fedpbc.experiments.comparison import Cell, Comparison, Row
from fedpbc.report.client_data import fleet_data
from fedpbc.report.groups import RunGroup
from fedpbc.report.load import ShownRun
from fedpbc.report.style import in_order

__all__ = ["POINTS", "chart_data", "comparison_of", "thinned"]

POINTS = 400
"""How many points a curve has at most."""
MANY_POINTS = 2400
"""How many all groups' curves of one algorithm have at most together: the page must open."""


def thinned(count: int, limit: int = POINTS) -> list[int]:
    """Which of so many points are shown: the first, the last, and others evenly between them.

    Example:
        >>> thinned(3), thinned(10, limit=4)
        ([0, 1, 2], [0, 3, 6, 9])
    """
    if count <= limit:
        return list(range(count))
    return [round(k * (count - 1) / (limit - 1)) for k in range(limit)]


def comparison_of(group: RunGroup) -> tuple[Comparison, int | None]:
    """The runs to compare: the finished ones; if there are none, all as far as they have come.

    Also gives how far that is, where they are not finished.
    """
    finished = any(run.state == "finished" for run in group.runs)
    begun = [run for run in group.runs if run.metrics and run.state != "damaged"]
    so_far = None if finished or not begun else min(run.metrics[-1]["round"] for run in begun)
    cells = []
    for run in group.runs:
        lines = run.metrics if run.state == "finished" or not finished else ()
        if so_far is not None:
            lines = [line for line in lines if line["round"] <= so_far]
        failure = None if lines else run.note or run.state
        cost = run.summary.get("cost")
        cells.append(Cell(run.algorithm, run.seed or 0, run.clients, lines, failure, cost))
    return Comparison(cells), so_far


def chart_data(
    group: RunGroup, comparison: Comparison, rows: Sequence[Row], groups: int = 1
) -> dict[str, Any]:
    """Everything that the charts of a group show; ``rows`` are the comparison's."""
    limit = max(60, min(POINTS, MANY_POINTS // max(groups, 1)))
    # A curve may also be of runs that are not finished, if an algorithm has no others.
    curves = {name: _curves(runs, limit) for name, runs in _curve_runs(group).items()}
    return {
        "title": group.title,
        "values": _values(curves),
        "curves": curves,
        "paper_view": {
            a: comparison.paper_view(a) for a in comparison.algorithms if comparison.of(a)
        },
        "best_view": {row.algorithm: row.view for row in rows if row.best_deployable},
        "per_class": _per_class(comparison),
        "classes": _class_names(group),
        "staleness": _staleness(group, limit),
        "time": {a: _mean(c["seconds"][-1:]) for a, c in curves.items()},
        "memory": _memory(group),
        "fleet": fleet_data(group.runs),
    }


def _curve_runs(group: RunGroup) -> dict[str, list[ShownRun]]:
    found: dict[str, list[ShownRun]] = {}
    for name in in_order(run.algorithm for run in group.runs):
        own = [run for run in group.runs if run.algorithm == name and run.metrics]
        finished = [run for run in own if run.state == "finished"]
        if own:
            found[name] = finished or own
    return found


def _curves(runs: Sequence[ShownRun], limit: int) -> dict[str, Any]:
    """An algorithm's curves: x in rounds, steps and uploads; mean and deviation of each value."""
    count = min(len(run.metrics) for run in runs)
    places = thinned(count, limit)

    def mean(value: Callable[[Mapping[str, Any]], Any]) -> list[float | None]:
        return [_mean([value(run.metrics[k]) for run in runs]) for k in places]

    first = runs[0].metrics[0]
    views: dict[str, Any] = {}
    for view, judged in first["views"].items():
        views[view] = {
            key: _spread([[run.metrics[k]["views"][view].get(key) for run in runs] for k in places])
            for key, value in judged.items()
            if key in {"test_accuracy", "train_accuracy", "test_loss"} or _is_extra(key, value)
            if value is not None
        }
    return {
        "round": [runs[0].metrics[k]["round"] for k in places],
        "local_steps": mean(lambda line: line["local_steps"]),
        "uploads": mean(lambda line: line["uploads"]),
        "seconds": mean(lambda line: line["seconds"]),
        "consensus_error": mean(lambda line: line.get("consensus_error")),
        "consensus_bound": mean(lambda line: line.get("consensus_bound")),
        "views": views,
        "seeds": len(runs),
        "unfinished": any(run.state != "finished" for run in runs),
    }


def _is_extra(key: str, value: Any) -> bool:
    """What a task adds to an evaluation, such as the distance to an optimum."""
    return key not in {"train_loss", "per_class"} and isinstance(value, int | float)


def _spread(points: Sequence[Sequence[Any]]) -> dict[str, list[float | None]]:
    """Mean and deviation over seeds at each point; None where a seed has no number."""
    # All at once: there may be hundreds of seeds and of curves.
    table = np.array(points, dtype=np.float64)
    several = table.shape[1] > 1
    deviations = table.std(axis=1, ddof=1) if several else np.zeros(len(table))
    return {"mean": _short(table.mean(axis=1)), "deviation": _short(deviations)}


def _short(numbers: NDArray[np.float64]) -> list[float | None]:
    return [short(number) if np.isfinite(number) else None for number in numbers.tolist()]


def _mean(values: Sequence[Any]) -> float | None:
    known = [v for v in values if isinstance(v, int | float)]
    return short(statistics.fmean(known)) if known and len(known) == len(values) else None


def short(number: float) -> float:
    """With as many digits as a chart can show."""
    return float(f"{number:.5g}")


def _values(curves: Mapping[str, Any]) -> list[str]:
    """What can be chosen to be drawn, accuracy first."""
    found = [key for c in curves.values() for view in c["views"].values() for key in view]
    # Of quadratics the distance to the optimum says most, and it is what the paper draws.
    first = ("test_accuracy", "distance", "test_loss", "train_accuracy")
    extra = sorted(set(found) - set(first))
    return [key for key in (*first, *extra) if key in found]


def _per_class(comparison: Comparison) -> dict[str, dict[str, list[float | None]]]:
    """The mean test accuracy of each class over the last rounds and the seeds."""
    found: dict[str, dict[str, list[float | None]]] = {}
    for algorithm in comparison.algorithms:
        for cell in comparison.of(algorithm)[:1]:
            found[algorithm] = {
                view: _classes(comparison, algorithm, view)
                for view, judged in cell.metrics[-1]["views"].items()
                if judged.get("per_class")
            }
    return {name: views for name, views in found.items() if views}


def _classes(comparison: Comparison, algorithm: str, view: str) -> list[float | None]:
    cells = comparison.of(algorithm)

    def of_class(c: int) -> Callable[[Mapping[str, Any]], Any]:
        return lambda evaluation: evaluation["per_class"][c]

    count = len(cells[0].metrics[-1]["views"][view]["per_class"])
    return [
        _mean([comparison.tail(cell, view, of_class(c)) for cell in cells]) for c in range(count)
    ]


def _class_names(group: RunGroup) -> list[str]:
    source = SOURCES.get(group.shared.get("data.name", ""))
    return [] if source is None else list(source.classes)


def _staleness(group: RunGroup, limit: int) -> dict[str, Any] | None:
    """Over rounds; the links are the same for all algorithms, so one of them says it."""
    candidates = _curve_runs(group).values()
    runs = max(candidates, key=lambda r: min(len(run.metrics) for run in r), default=None)
    if runs is None:
        return None
    places = thinned(min(len(run.metrics) for run in runs), limit)
    return {
        "round": [runs[0].metrics[k]["round"] for k in places],
        **{
            key: [_mean([run.metrics[k][key] for run in runs]) for k in places]
            for key in ("staleness_mean", "staleness_max")
        },
    }


def _memory(group: RunGroup) -> dict[str, float]:
    found: dict[str, list[int]] = {}
    for run in group.runs:
        memory = peak_of(run)
        if memory is not None:
            found.setdefault(run.algorithm, []).append(memory)
    return {name: float(np.mean(found[name])) for name in in_order(found)}


def peak_of(run: ShownRun) -> int | None:
    """The most memory that a run and its workers had, in bytes, if it is known."""
    memory = run.summary.get("memory")
    if not isinstance(memory, Mapping):
        return None
    return sum(int(v) for v in memory.values() if isinstance(v, int))
