"""Cyclic links whose offset is drawn again in every cycle; otherwise as ``cyclic``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from annotated_types import Ge, Le

from fedpbc.links.cyclic import draw_offsets, up_rounds
from fedpbc.links.scheme import Probabilities, Row, Setting, link_scheme

__all__ = ["cyclic_reset"]


@link_scheme
def cyclic_reset(
    setting: Setting, *, cycle: Annotated[int, Ge(1), Le(10**9)] = 100
) -> Iterator[tuple[Row, Probabilities]]:
    """Up for a share p_i of each cycle in a row, at an offset drawn again in every cycle.

    ``cycle`` is the length of a cycle in rounds.
    """
    length = up_rounds(setting.p, cycle)
    share = length / cycle
    for t in range(setting.rounds):
        cycle_number, position = divmod(t, cycle)
        if position == 0:
            offset = draw_offsets(setting, length, cycle, cycle_number)
        yield (offset <= position) & (position < offset + length), share
