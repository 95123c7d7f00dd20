"""Links that are up for one stretch of every cycle, each time at another place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from fedpbc.links.cyclic import first_up, up_time
from fedpbc.links.scheme import Row, Setting, link_scheme

__all__ = ["cyclic_reset"]


@link_scheme
def cyclic_reset(
    setting: Setting, *, cycle: Annotated[int, Ge(1), Le(10**9)] = 100
) -> Iterator[tuple[Row, NDArray[np.float64]]]:
    """Up for one stretch of p_i of each cycle, its place drawn anew every cycle.

    ``cycle`` is the length of a cycle in rounds.

    Example:
        >>> setting = Setting(seed=1, clients=1, rounds=8, base_probabilities=np.array([0.5]))
        >>> links = [bool(up[0]) for up, p in cyclic_reset(setting, cycle=4)]
        >>> sum(links[:4]), sum(links[4:])
        (2, 2)
    """
    length = up_time(setting.p, cycle)
    ratio = length / cycle
    for t in range(setting.rounds):
        number, place = divmod(t, cycle)
        if place == 0:
            first = first_up(setting, length, cycle, number)
        yield (first <= place) & (place < first + length), ratio
