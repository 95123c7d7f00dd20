"""Links that are up for one stretch of every cycle, always at the same place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from fedpbc.links.scheme import Row, Setting, link_scheme

__all__ = ["cyclic", "first_up", "up_time"]


@link_scheme
def cyclic(
    setting: Setting, *, cycle: Annotated[int, Ge(1), Le(10**9)] = 100
) -> Iterator[tuple[Row, NDArray[np.float64]]]:
    """Up for one stretch of p_i of each cycle, after a random first wait.

    ``cycle`` is the length of a cycle in rounds. The wait is at most the down time, so every
    stretch lies within its cycle.

    Example:
        >>> setting = Setting(seed=1, clients=1, rounds=8, base_probabilities=np.array([0.5]))
        >>> links = [bool(up[0]) for up, p in cyclic(setting, cycle=4)]
        >>> sum(links[:4]), links[:4] == links[4:]
        (2, True)
    """
    length = up_time(setting.p, cycle)
    ratio = length / cycle
    first = first_up(setting, length, cycle, number=0)
    for t in range(setting.rounds):
        place = t % cycle
        yield (first <= place) & (place < first + length), ratio


def up_time(p: NDArray[np.float64], cycle: int) -> NDArray[np.int64]:
    """How many rounds of a cycle each link is up: p_i of them, rounded, at least one.

    Example:
        >>> up_time(np.array([0.0, 0.004, 0.5, 1.0]), cycle=100).tolist()
        [1, 1, 50, 100]
    """
    return np.maximum(1, np.rint(p * cycle)).astype(np.int64)


def first_up(
    setting: Setting, length: NDArray[np.int64], cycle: int, number: int
) -> NDArray[np.int64]:
    """Where in cycle ``number`` each link comes up: uniform over the places where it fits.

    Example:
        >>> first_up(Setting(seed=1, clients=1, rounds=9), np.array([3]), cycle=3, number=0)
        array([0])
    """
    # Scaling one number a client, not `integers`: that rejects draws, and then a client's offset
    # would depend on how long the clients before it are up.
    chance = setting.generator("offset", number).random(setting.clients)
    return (chance * (cycle - length + 1)).astype(np.int64)
