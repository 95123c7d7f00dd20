"""Independent links with probabilities that rise and fall."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from fedpbc.links.probabilities import varying
from fedpbc.links.scheme import Row, Setting, link_scheme

__all__ = ["bernoulli_varying"]


@link_scheme(independent=True)
def bernoulli_varying(
    setting: Setting,
    *,
    gamma: Annotated[float, Ge(0), Le(1)] = 0.4,
    period: Annotated[float, Ge(1)] = 40.0,
) -> Iterator[tuple[Row, NDArray[np.float64]]]:
    """Independent in every round, with probability p_i^t: a sine over the rounds.

    ``gamma`` is how much of p_i swings, ``period`` how many rounds a swing takes.

    Example:
        >>> setting = Setting(seed=1, clients=1, rounds=31, base_probabilities=np.array([0.5]))
        >>> [round(float(p[0]), 3) for up, p in bernoulli_varying(setting)][::10]
        [0.3, 0.5, 0.3, 0.1]
    """
    for t in range(setting.rounds):
        p = varying(setting.p, t, gamma, period)
        yield setting.uniform(t) < p, p
