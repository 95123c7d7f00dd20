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
    **options: object,
) -> Timetable:
    p = np.asarray(p, dtype=float)
    return Timetable.draw(name, Setting(seed, len(p), rounds, p, stream), options)


def dense(table: Timetable) -> NDArray[np.bool_]:
    """Rounds x clients."""
    return np.stack([table.up(t) for t in range(table.rounds)])


def draw(name: str, p: ArrayLike, rounds: int, **options: object) -> NDArray[np.bool_]:
    return dense(timetable(name, p, rounds, **options))
