"""How well a run's models serve each client at the end: in the summary, for reports."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["LISTED_CLIENTS", "client_summary", "worst_tenth"]

LISTED_CLIENTS = 1000
"""Of so many clients the accuracy is listed; the statistics are of all."""
DIGITS = 5


def worst_tenth(accuracies: Sequence[float]) -> float:
    """Return the mean accuracy of the worst tenth of the clients, at least one.

    Example:
        >>> worst_tenth([0.9, 0.2, 0.8])
        0.2
    """
    return statistics.fmean(sorted(accuracies)[: math.ceil(len(accuracies) / 10)])


def client_summary(
    accuracies: Mapping[str, Sequence[float | None]],
) -> dict[str, dict[str, Any]]:
    """Return the statistics of each view's accuracies, and those of the first clients.

    Example:
        >>> client_summary({"server": [0.5, None, 1.0]})["server"]["mean"]
        0.75
    """
    summary = {}
    for view, values in accuracies.items():
        known = [value for value in values if value is not None]
        summary[view] = {
            "clients": len(known),
            # Not so in earlier versions: there it was of training samples.
            "held_out": True,
            "mean": statistics.fmean(known),
            "worst_tenth": worst_tenth(known),
            "deviation": statistics.pstdev(known),
            "accuracies": [
                None if value is None else round(value, DIGITS) for value in values[:LISTED_CLIENTS]
            ],
        }
    return summary
