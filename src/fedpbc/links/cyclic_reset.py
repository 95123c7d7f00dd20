"""Cyclic links whose offset is drawn again in every cycle; otherwise as ``cyclic``.

With γ > 0 the up time of a cycle follows p_i^t, where t is its first round. The paper's text has no
γ here. Its released code has 0.4, and its table 1 shows that: since a cycle of 100 rounds begins
where the sine is 0, links are up for 0.6 times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from annotated_types import Ge, Le

from fedpbc.links.cyclic import draw_offsets, up_rounds
from fedpbc.links.probabilities import varying
from fedpbc.links.scheme import Probabilities, Row, Setting, link_scheme

__all__ = ["cyclic_reset"]


@link_scheme
def cyclic_reset(
    setting: Setting,
    *,
    cycle: Annotated[int, Ge(1), Le(10**9)] = 100,
    gamma: Annotated[float, Ge(0), Le(1)] = 0.0,
    period: Annotated[float, Ge(1)] = 40.0,
) -> Iterator[tuple[Row, Probabilities]]:
    """Up for a share p_i of each cycle in a row, at an offset drawn again in every cycle.

    ``cycle`` is the length of a cycle in rounds. ``gamma`` is γ, the share of p_i that varies from
    cycle to cycle; ``period`` is P, in rounds.

    Example:
        >>> setting = Setting(seed=1, clients=1, rounds=200, base_probabilities=[0.5])
        >>> sum(int(up[0]) for up, p in cyclic_reset(setting, cycle=100, gamma=0.4))
        60
    """
    for t in range(setting.rounds):
        cycle_number, position = divmod(t, cycle)
        if position == 0:
            length = up_rounds(varying(setting.p, t, gamma, period), cycle)
            share = length / cycle
            offset = draw_offsets(setting, length, cycle, cycle_number)
        yield (offset <= position) & (position < offset + length), share
