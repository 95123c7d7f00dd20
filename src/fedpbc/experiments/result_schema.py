"""What a run's metrics and summary must hold, wherever they come from.

Whoever shows or compares results checks them here first: a file may have been edited, or sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedpbc.errors import InputError
from fedpbc.limits import MAX_INTEGER
from fedpbc.simulation.evaluation_schedule import EvaluationSchedule
from fedpbc.simulation.views import VIEWS

__all__ = ["check_metrics", "check_summary", "evaluations_of", "metrics_check"]

NUMBERS = ("local_steps", "uploads", "seconds", "staleness_mean", "staleness_max")
ACCURACIES = ("test_accuracy", "train_accuracy", "train_loss")


def check_metrics(lines: Sequence[Any], config: Mapping[str, Any]) -> None:
    """Raise unless a run with this configuration may have written these metrics."""
    check = metrics_check(config)
    for number, line in enumerate(lines, start=1):
        check(number, line)


def evaluations_of(config: Mapping[str, Any]) -> EvaluationSchedule:
    """Return after which rounds a run with this configuration is evaluated."""
    rounds, every = (_count(config, key, "config.toml") for key in ("rounds", "evaluate_every"))
    at_end = "evaluate_every_at_end"
    return EvaluationSchedule(
        rounds, every, _count(config, at_end, "config.toml") if at_end in config else None
    )


def metrics_check(config: Mapping[str, Any]) -> Callable[[int, Any], None]:
    """Return a check of single lines, which raises unless the n-th may be this one; n from 1."""
    evaluations = evaluations_of(config)
    if config.get("clients") is not None:
        _count(config, "clients", "config.toml")
    names = config.get("views")
    expected_views = sorted(map(str, names)) if isinstance(names, list) else None

    def check(number: int, line: Any) -> None:
        nonlocal expected_views
        where = f"metrics.jsonl line {number}"
        if not isinstance(line, dict):
            raise InputError(f"{where} is not a JSON object")
        due = evaluations.number(number)
        if line.get("round") != due:
            expected = f"{due}: it is evaluated every {evaluations.every} rounds"
            if evaluations.every_at_end is not None:
                expected += f", at the end every {evaluations.every_at_end}"
            raise InputError(f"round in {where}", line.get("round"), expected)
        views = _checked_views(line.get("views"), where)
        if expected_views is None:
            expected_views = sorted(views)
        if sorted(views) != expected_views:
            listed, first = ", ".join(views), ", ".join(expected_views)
            raise InputError(f"views in {where} are {listed}, but should be {first}")
        for key in NUMBERS:
            if not _is_number(line.get(key)):
                raise InputError(f"{key} in {where}", line.get(key), "a number")
        for key, value in line.items():
            if key != "views" and not _is_number_or_null(value):
                raise InputError(f"{key} in {where}", value, "a number or null")

    return check


def check_summary(summary: Any, where: str = "summary.json") -> None:
    """Raise unless a finished run may have written this summary."""
    if not isinstance(summary, dict):
        raise InputError(f"{where} is not a JSON object")
    for key in ("algorithm", "links", "data", "engine", "fingerprint"):
        if not isinstance(summary.get(key), str):
            raise InputError(f"{key} in {where}", summary.get(key), "a text")
    for key in ("rounds", "clients", "seed"):
        _count(summary, key, where, least=0)
    if not _is_number(summary.get("seconds")):
        raise InputError(f"seconds in {where}", summary.get("seconds"), "a number")
    _checked_views(summary.get("views"), where)
    _check_cost(summary.get("cost"), where)
    _check_clients(summary.get("client_accuracy", {}), where)
    samples = summary.get("train_samples", {})
    if not isinstance(samples, dict) or not all(map(_is_count, samples.values())):
        raise InputError(f"train_samples in {where}", samples, "counts")
    _check_test_data(summary.get("test_data"), where)
    notes = summary.get("notes", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise InputError(f"notes in {where}", notes, "texts")
    for key, of in (("memory", "kind of process"), ("cluster", "count")):
        numbers = summary.get(key, {})
        if not isinstance(numbers, dict) or not all(map(_is_number, numbers.values())):
            raise InputError(f"{key} in {where}", numbers, f"a number for each {of}")


def _checked_views(views: Any, where: str) -> dict[str, Any]:
    if not isinstance(views, dict) or not views:
        raise InputError(f"views in {where}", views, "one for each view")
    for view, evaluation in views.items():
        if view not in VIEWS:
            raise InputError(f"a view in {where}", view, f"one of {', '.join(VIEWS)}")
        if not isinstance(evaluation, dict) or not _is_number(evaluation.get("test_loss")):
            raise InputError(f"{view} in {where} has no test loss")
        for key, value in evaluation.items():
            if _is_number_or_null(value):
                continue
            several = key not in ACCURACIES and isinstance(value, list)
            if not several or not all(map(_is_number_or_null, value)):
                raise InputError(f"{key} of {view} in {where}", value, "a number or null")
        if not isinstance(evaluation.get("per_class"), list | None):
            given = evaluation["per_class"]
            raise InputError(f"per_class of {view} in {where}", given, "a list or null")
    return views


def _check_test_data(description: Any, where: str) -> None:
    """Raise unless this describes test samples that are the clients' own."""
    if description is None:
        return
    known = isinstance(description, dict) and all(
        _is_count(description.get(key)) for key in ("clients", "samples")
    )
    share = description.get("most_frequent") if known else None
    if (
        not known
        or description.get("weigh") not in ("volume", "clients")
        or not (share is None or _is_share(share))
    ):
        raise InputError(
            f"test_data in {where}", description, "counts, how they are weighed, and a share"
        )


def _check_clients(clients: Any, where: str) -> None:
    """Raise unless these are shares by view: statistics, and one per client."""
    expected = "statistics and accuracies from 0 to 1 of each view"
    if not isinstance(clients, dict):
        raise InputError(f"client_accuracy in {where}", clients, expected)
    for view, served in clients.items():
        values = served.get("accuracies") if isinstance(served, dict) else None
        known = isinstance(values, list) and all(v is None or _is_share(v) for v in values)
        keys = ("mean", "worst_tenth", "deviation")
        if (
            view not in (*VIEWS, "own")
            or not known
            or not all(_is_share(served.get(k)) for k in keys)
        ):
            raise InputError(f"client_accuracy of {view} in {where}", served, expected)


def _is_share(value: object) -> bool:
    return _is_number(value) and 0 <= value <= 1  # type: ignore[operator]


def _check_cost(cost: Any, where: str) -> None:
    if not isinstance(cost, dict):
        raise InputError(f"cost in {where}", cost, "a table of what the run stored and sent")
    for key in ("local_steps", "uploads"):
        _count(cost, key, f"cost in {where}", least=0)
    for key in ("bytes_up", "bytes_down"):
        if cost.get(key) is not None:
            _count(cost, key, f"cost in {where}", least=0)
    models = cost.get("models_on_server")
    counts = [
        *(models.values() if isinstance(models, dict) else [""]),
        cost.get("models_on_client"),
    ]
    if not all(count is None or _is_count(count) for count in counts):
        raise InputError(f"the numbers of models in {where}", models, "counts or null")
    if not isinstance(cost.get("memory_aided"), bool):
        raise InputError(f"memory_aided in {where}", cost.get("memory_aided"), "true or false")


def _count(values: Mapping[str, Any], key: str, where: str, least: int = 1) -> int:
    value: Any = values.get(key)
    if not _is_count(value) or value < least:
        raise InputError(f"{key} in {where}", value, f"a whole number from {least}")
    return int(value)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_INTEGER


def _is_number(value: object) -> bool:
    # By the type itself, which excludes truth values: a report checks millions of numbers.
    kind = type(value)
    if kind is float:
        return math.isfinite(value)  # type: ignore[arg-type]
    return kind is int and -MAX_INTEGER <= value <= MAX_INTEGER  # type: ignore[operator]


def _is_number_or_null(value: object) -> bool:
    return value is None or _is_number(value)
