"""Small grids: the digits, few clients and rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SMALL = ("--data", "digits", "--set", "clients=8", "--set", "links.delta=0.3", "--rounds", 6)


def numbers(folder: Path, experiment: str) -> dict[str, Any]:
    """The content of an experiment's JSON file."""
    return json.loads((folder / f"{experiment}.json").read_text())


def line(round: int, *, server: float, mean: float | None = None) -> dict[str, Any]:
    """One line of metrics with the given test accuracies."""

    def evaluation(accuracy: float) -> dict[str, Any]:
        return {
            "test_accuracy": accuracy,
            "train_accuracy": accuracy,
            "test_loss": 1.0,
            "train_loss": 1.0,
            "per_class": [accuracy],
        }

    views = {"server": evaluation(server)}
    if mean is not None:
        views["mean"] = evaluation(mean)
    sent = {"bytes_up": 1000 * round, "bytes_down": 2000 * round}
    return {"round": round, "local_steps": 5 * round, "uploads": round, **sent, "views": views}
