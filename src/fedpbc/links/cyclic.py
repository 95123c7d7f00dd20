"""Cyclic links with a fixed offset.

In every cycle of L rounds, link i is up for max(1, round(p_i·L)) consecutive rounds. They start at
an offset that is drawn once, uniformly over the offsets at which they fit into the cycle.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from fedpbc.links.scheme import Probabilities, Row, Setting, link_scheme

__all__ = ["cyclic", "draw_offsets", "up_rounds"]


@link_scheme
def cyclic(
    setting: Setting, *, cycle: Annotated[int, Ge(1), Le(10**9)] = 100
) -> Iterator[tuple[Row, Probabilities]]:
    """Up for a share p_i of each cycle in a row, after a random offset that stays the same.

    ``cycle`` is L, the length of a cycle in rounds.

    Example:
        >>> setting = Setting(seed=1, clients=1, rounds=8, base_probabilities=[0.5])
        >>> links = [bool(up[0]) for up, p in cyclic(setting, cycle=4)]
        >>> sum(links[:4]), links[:4] == links[4:]
        (2, True)
    """
    length = up_rounds(setting.p, cycle)
    share = length / cycle
    offset = draw_offsets(setting, length, cycle, cycle_number=0)
    for t in range(setting.rounds):
        position = t % cycle
        yield (offset <= position) & (position < offset + length), share


def up_rounds(p: Probabilities, cycle: int) -> NDArray[np.int64]:
    """How many rounds of a cycle each link is up: max(1, round(p_i·cycle))."""
    return np.maximum(1, np.rint(p * cycle)).astype(np.int64)


def draw_offsets(
    setting: Setting, length: NDArray[np.int64], cycle: int, cycle_number: int
) -> NDArray[np.int64]:
    """The position in the cycle at which each link comes up, uniform where ``length`` fits."""
    # Scale one number per client. `integers` rejects draws, which would make a client's offset
    # depend on the lengths of the clients before it.
    draws = setting.generator("offset", cycle_number).random(setting.clients)
    return (draws * (cycle - length + 1)).astype(np.int64)
