"""What a run's metrics and summary must hold, wherever they come from.

Whoever shows or compares results checks them here first: a file may have been edited, or sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedpbc.errors import InputError
from fedpbc.limits import MAX_INTEGER
from fedpbc.simulation.views import VIEWS

__all__ = ["check_metrics", "check_summary"]

NUMBERS = ("local_steps", "uploads", "seconds", "staleness_mean", "staleness_max")
ACCURACIES = ("test_accuracy", "train_accuracy", "train_loss")


def check_metrics(lines: Sequence[Any], config: Mapping[str, Any]) -> None:
    """Raise unless a run with this configuration may have written these metrics."""
    interval, rounds = (_count(config, key, "config.toml") for key in ("evaluate_every", "rounds"))
    names = config.get("views")
    for number, line in enumerate(lines, start=1):
        where = f"metrics.jsonl line {number}"
        if not isinstance(line, dict):
            raise InputError(f"{where} is not a JSON object")
        due = min(number * interval, rounds)
        if line.get("round") != due:
            expected = f"{due}: it is evaluated every {interval} rounds"
            raise InputError(f"round in {where}", line.get("round"), expected)
        views = _checked_views(line.get("views"), where)
        expected_views = names if isinstance(names, list) else list(lines[0]["views"])
        if sorted(views) != sorted(map(str, expected_views)):
            listed, first = ", ".join(views), ", ".join(map(str, expected_views))
            raise InputError(f"views in {where} are {listed}, but should be {first}")
        for key in NUMBERS:
            if not _is_number(line.get(key)):
                raise InputError(f"{key} in {where}", line.get(key), "a number")
        for key, value in line.items():
            if key != "views" and value is not None and not _is_number(value):
                raise InputError(f"{key} in {where}", value, "a number or null")


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
    memory = summary.get("memory", {})
    if not isinstance(memory, dict) or not all(map(_is_number, memory.values())):
        raise InputError(f"memory in {where}", memory, "a number for each kind of process")


def _checked_views(views: Any, where: str) -> dict[str, Any]:
    if not isinstance(views, dict) or not views:
        raise InputError(f"views in {where}", views, "one for each view")
    for view, evaluation in views.items():
        if view not in VIEWS:
            raise InputError(f"a view in {where}", view, f"one of {', '.join(VIEWS)}")
        if not isinstance(evaluation, dict) or not _is_number(evaluation.get("test_loss")):
            raise InputError(f"{view} in {where} has no test loss")
        for key, value in evaluation.items():
            several = key not in ACCURACIES and isinstance(value, list)
            if not all(v is None or _is_number(v) for v in (value if several else [value])):
                raise InputError(f"{key} of {view} in {where}", value, "a number or null")
        if not isinstance(evaluation.get("per_class"), list | None):
            given = evaluation["per_class"]
            raise InputError(f"per_class of {view} in {where}", given, "a list or null")
    return views


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
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return -MAX_INTEGER <= value <= MAX_INTEGER
    return isinstance(value, float) and math.isfinite(value)
