"""What a page shows of a fleet: the timetable as a picture, how likely, and who holds what."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpbc.report.load import ShownRun

__all__ = ["fleet_data", "histogram", "timetable_picture"]

BINS = 20
CLASSES = 12
"""How many classes are told apart; the rest are shown as one."""
UP = (0, 114, 178)


def fleet_data(runs: Sequence[ShownRun]) -> dict[str, Any] | None:
    """Of the first run that has one; all runs of a group and a seed have the same."""
    ordered = sorted(runs, key=lambda run: -1 if run.seed is None else run.seed)
    run = next((run for run in ordered if run.fleet.up is not None), None)
    if run is None:
        return None
    fleet = run.fleet
    assert fleet.up is not None
    likely = fleet.p if fleet.p is not None else fleet.shares
    counts = fleet.class_counts
    return {
        "seed": run.seed,
        "clients": run.clients,
        "rounds": run.rounds,
        "timetable": timetable_picture(fleet.up),
        "shown_rounds": fleet.up.shape[0],
        "shown_clients": fleet.up.shape[1],
        "known_p": fleet.p is not None,
        "p_clients": 0 if likely is None else len(likely),
        "p": None if likely is None else histogram(likely),
        "class_counts": None if counts is None else _few_classes(counts).tolist(),
        "all_classes": 0 if counts is None else counts.shape[1],
        "samples": None if fleet.samples is None else fleet.samples[: len(fleet.up[0])].tolist(),
    }


def histogram(p: NDArray[np.float64]) -> list[int]:
    """How many p_i there are in each twentieth from 0 to 1.

    Example:
        >>> histogram(np.array([0.0, 0.04, 0.05, 1.0]))[:3]
        [2, 1, 0]
    """
    # Rounded first: 0.15 / 0.05 is a little less than 3.
    places = np.minimum(np.floor(np.round(p * BINS, 9)), BINS - 1).astype(int)
    return [int(count) for count in np.bincount(places, minlength=BINS)]


def timetable_picture(up: NDArray[np.bool_]) -> str:
    """Rounds from left to right, clients from top to bottom, as a PNG in a data address.

    Example:
        >>> timetable_picture(np.eye(3, dtype=bool))[:22]
        'data:image/png;base64,'
    """
    from PIL import Image  # Comes with matplotlib.

    picture = Image.frombytes("P", up.shape, np.ascontiguousarray(up.T).tobytes())
    picture.putpalette([255, 255, 255, *UP])
    file = io.BytesIO()
    # A link that is down lets the page through, be it light or dark.
    picture.save(file, format="PNG", transparency=0, bits=1, optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _few_classes(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    if counts.shape[1] <= CLASSES:
        return counts
    rest = counts[:, CLASSES - 1 :].sum(axis=1, keepdims=True)
    return np.hstack([counts[:, : CLASSES - 1], rest])
