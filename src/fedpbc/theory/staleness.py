"""Staleness: the number of rounds since each client was last active."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpbc.errors import InputError
from fedpbc.theory.arguments import array_of, number, wrong_shape

__all__ = ["expected_staleness_bound", "staleness"]


def staleness(timetable: ArrayLike) -> NDArray[np.int64]:
    """The staleness t − τ_i(t) for t = 0 … T.

    ``timetable`` is rounds × clients, true where the uplink is up. Row t of the result is the
    staleness at the start of round t, so it has one row more than the timetable. τ_i is the last
    round before t in which i was active, −1 if there is none, so row 0 is all 1.

    Example:
        >>> print(staleness([[True, False], [False, False], [True, True]]))
        [[1 1]
         [1 2]
         [2 3]
         [1 1]]
    """
    table = array_of("timetable", timetable)
    if table.ndim != 2 or not table.size:
        raise wrong_shape("timetable", table, "rounds × clients, not empty")
    if not np.isin(table, (0, 1)).all():
        raise InputError("timetable is not only 0 and 1")
    rounds, clients = table.shape
    last = np.full((rounds + 1, clients), -1, dtype=np.int64)
    last[1:] = np.where(table == 1, np.arange(rounds)[:, None], -1)
    np.maximum.accumulate(last, axis=0, out=last)
    ages: NDArray[np.int64] = np.arange(rounds + 1)[:, None] - last
    return ages


def expected_staleness_bound(c: float) -> float:
    """The bound 1/c on the expected staleness, in rounds.

    Holds if, whatever happened before, a link is up with probability at least ``c``. Links that are
    certainly down for some rounds, such as cyclic ones, have no such c.

    Example:
        >>> expected_staleness_bound(0.02)
        50.0
    """
    return 1 / number("c", c, 0, 1, above=True)
