"""What the page shows of the clients: timetable, link probabilities, data and accuracy."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpbc.report.load import LoadedRun

__all__ = ["client_samples", "fleet_data", "histogram", "per_client", "timetable_image"]

BINS = 20
MAX_CLASSES = 12
"""Further classes are shown as one."""
RANKS = 51
"""Points of the curve of clients' accuracies."""
UP_COLOUR = (0, 114, 178)


def fleet_data(runs: Sequence[LoadedRun]) -> dict[str, Any] | None:
    """Return the fleet of the smallest seed that has one recorded.

    All runs of a group with the same seed have the same fleet.
    """
    for run in sorted(runs, key=lambda run: -1 if run.seed is None else run.seed):
        fleet = run.fleet
        if fleet.up is None:
            continue
        p = fleet.p if fleet.p is not None else fleet.shares
        counts = fleet.class_counts
        shown_rounds, shown_clients = fleet.up.shape
        return {
            "seed": run.seed,
            "clients": run.clients,
            "rounds": run.rounds,
            "timetable": timetable_image(fleet.up),
            "shown_rounds": shown_rounds,
            "shown_clients": shown_clients,
            "known_p": fleet.p is not None,
            "p_clients": 0 if p is None else len(p),
            "p": None if p is None else histogram(p),
            "class_counts": None if counts is None else _merge_classes(counts).tolist(),
            "all_classes": 0 if counts is None else counts.shape[1],
            "samples": None if fleet.samples is None else fleet.samples[:shown_clients].tolist(),
        }
    return None


def per_client(runs: Mapping[str, Sequence[LoadedRun]]) -> dict[str, dict[str, Any]]:
    """Return each entry's accuracies of the clients, by view: statistics, and sorted by rank.

    Means over the seeds that recorded them; runs of earlier versions did not.
    """
    served: dict[str, dict[str, Any]] = {}
    for label, members in runs.items():
        recorded = [run.client_accuracy for run in members if run.client_accuracy]
        for view in recorded[0] if recorded else ():
            views = [each[view] for each in recorded if view in each]
            curves = [_by_rank(each["accuracies"]) for each in views]
            served.setdefault(label, {})[view] = {
                **{
                    key: float(np.mean([each[key] for each in views]))
                    for key in ("mean", "worst_tenth", "deviation")
                },
                "accuracy": np.mean(curves, axis=0).round(4).tolist(),
            }
    return served


def client_samples(runs: Mapping[str, Sequence[LoadedRun]], own_test: bool) -> str:
    """Return on which samples the accuracy of each client was measured, in words.

    Without ``own_test``, test samples of the clients' own, runs of earlier versions used
    training samples.
    """
    if own_test:
        return "its own test samples"
    held_out = {
        bool(view.get("held_out"))
        for members in runs.values()
        for run in members
        for view in run.client_accuracy.values()
    }
    training = "training samples of its own"
    if held_out == {False}:
        return training
    test = "test samples, each class weighted by its share of the client's samples"
    return f"{test} (runs of earlier versions: {training})" if False in held_out else test


def _by_rank(accuracies: Sequence[float | None]) -> NDArray[np.float64]:
    """Return quantiles of the clients' accuracies, from the worst client to the best."""
    known = [value for value in accuracies if value is not None]
    return np.quantile(known or [0.0], np.linspace(0, 1, RANKS), method="closest_observation")


def histogram(p: NDArray[np.float64]) -> list[int]:
    """Count the p_i in each twentieth from 0 to 1.

    Example:
        >>> histogram(np.array([0.0, 0.04, 0.05, 1.0]))[:3]
        [2, 1, 0]
    """
    # Rounded first: 0.15 / 0.05 is a little less than 3.
    bins = np.minimum(np.floor(np.round(p * BINS, 9)), BINS - 1).astype(int)
    return [int(count) for count in np.bincount(bins, minlength=BINS)]


def timetable_image(up: NDArray[np.bool_]) -> str:
    """Return a PNG as a data URL: rounds from left to right, clients from top to bottom.

    Example:
        >>> timetable_image(np.eye(3, dtype=bool))[:22]
        'data:image/png;base64,'
    """
    from PIL import Image  # Installed with matplotlib.

    image = Image.frombytes("P", up.shape, np.ascontiguousarray(up.T).tobytes())
    image.putpalette([255, 255, 255, *UP_COLOUR])
    file = io.BytesIO()
    # A link that is down is transparent: it fits the light and the dark page.
    image.save(file, format="PNG", transparency=0, bits=1, optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _merge_classes(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    if counts.shape[1] <= MAX_CLASSES:
        return counts
    rest = counts[:, MAX_CLASSES - 1 :].sum(axis=1, keepdims=True)
    return np.hstack([counts[:, : MAX_CLASSES - 1], rest])
