"""Independent links with varying probabilities.

Up in round t with probability p_i^t = p_i · [(1 − γ) + γ·sin(2πt/P)].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from annotated_types import Ge, Le

from fedpbc.links.probabilities import varying
from fedpbc.links.scheme import Probabilities, Row, Setting, link_scheme

__all__ = ["bernoulli_varying"]


@link_scheme(independent=True)
def bernoulli_varying(
    setting: Setting,
    *,
    gamma: Annotated[float, Ge(0), Le(1)] = 0.4,
    period: Annotated[float, Ge(1)] = 40.0,
) -> Iterator[tuple[Row, Probabilities]]:
    """Independent in every round, with probability p_i^t, which follows a sine over the rounds.

    ``gamma`` is γ, the share of p_i that varies; ``period`` is P, in rounds.

    Example:
        >>> setting = Setting(seed=1, clients=1, rounds=31, base_probabilities=[0.5])
        >>> [round(float(p[0]), 3) for up, p in bernoulli_varying(setting)][::10]
        [0.3, 0.5, 0.3, 0.1]
    """
    for t in range(setting.rounds):
        p = varying(setting.p, t, gamma, period)
        yield setting.uniform(t) < p, p
