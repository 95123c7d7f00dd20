"""Independent links with probabilities that stay."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedpbc.links.scheme import Row, Setting, link_scheme

__all__ = ["bernoulli"]


@link_scheme(independent=True)
def bernoulli(setting: Setting) -> Iterator[tuple[Row, NDArray[np.float64]]]:
    """Independent in every round, with probability p_i.

    Example:
        >>> setting = Setting(seed=1, clients=2, rounds=1, base_probabilities=np.array([0.0, 1.0]))
        >>> up, p = next(bernoulli(setting))
        >>> up.tolist()
        [False, True]
    """
    for t in range(setting.rounds):
        yield setting.uniform(t) < setting.p, setting.p
