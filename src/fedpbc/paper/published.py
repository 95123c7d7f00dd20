"""The numbers of the paper's tables 1 and 2."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["Accuracy", "published_accuracies", "published_rounds", "published_thresholds"]


@dataclass(frozen=True)
class Accuracy:
    """An accuracy in per cent, and its deviation over the paper's three seeds."""

    mean: float
    deviation: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.deviation:.1f}"


@cache
def published_accuracies() -> dict[tuple[str, str, str, str], Accuracy]:
    """Table 1, by links, algorithm, data and split."""
    return {
        (row["links"], row["algorithm"], row["data"], row["split"]): Accuracy(
            float(row["accuracy_percent"]), float(row["deviation_points"])
        )
        for row in _rows("table1.csv")
    }


@cache
def published_rounds() -> dict[tuple[str, str, float], int | None]:
    """Table 2, by data, algorithm and test accuracy in per cent; None: never reached."""
    return {
        (row["data"], row["algorithm"], float(row["test_accuracy_percent"])): (
            int(row["first_round"]) if row["first_round"] else None
        )
        for row in _rows("table2.csv")
    }


def published_thresholds(data: str) -> tuple[float, ...]:
    """The accuracies of table 2, in per cent; none for other data sets."""
    return tuple(sorted({percent for name, _, percent in published_rounds() if name == data}))


def _rows(name: str) -> list[dict[str, str]]:
    text = (files("fedpbc.paper") / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
