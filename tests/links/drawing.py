"""Dense tables of link schemes, for the tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpbc.links import Setting, Timetable


def timetable(
    name: str,
    p: ArrayLike,
    rounds: int,
    *,
    seed: int = 1,
    stream: str = "uplink",
    class_shares: ArrayLike | None = None,
    samples: ArrayLike | None = None,
    **options: object,
) -> Timetable:
    p = np.asarray(p, dtype=float)
    data = {"class_shares": class_shares, "samples": samples}
    return Timetable.draw(name, Setting(seed, len(p), rounds, p, stream, **data), options)


def dense(table: Timetable) -> NDArray[np.bool_]:
    """Rounds x clients."""
    return np.stack([table.up(t) for t in range(table.rounds)])


def draw(name: str, p: ArrayLike, rounds: int, **options: object) -> NDArray[np.bool_]:
    return dense(timetable(name, p, rounds, **options))


def probabilities(table: Timetable) -> NDArray[np.float64]:
    """p_i^t, rounds x clients."""
    return np.stack(list(table.probabilities()))


def within_error(measured: ArrayLike, p: ArrayLike, draws: int, errors: float = 5) -> bool:
    """Whether shares of independent draws are as near to their probabilities as chance allows."""
    p = np.asarray(p)
    # A share of n draws has the standard error √(p(1−p)/n).
    error = np.sqrt(np.maximum(0, p * (1 - p)) / draws)
    return bool((np.abs(np.asarray(measured) - p) <= errors * error + 1e-12).all())
