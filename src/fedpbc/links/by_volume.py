"""Independent links whose probability depends on how many samples a client holds.

p_i = highest · (n_i / n_max)^exponent, or highest · (n_min / n_i)^exponent where small clients are
favoured: the modes "MDF" and "LDF" of FLGo (github.com/WwZzz/easyFL).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from fedpbc.links.client_data import sample_counts
from fedpbc.links.probabilities import Probability
from fedpbc.links.scheme import Probabilities, Row, Setting, link_scheme

__all__ = ["by_volume"]


@link_scheme(independent=True, reads_data=True)
def by_volume(
    setting: Setting,
    *,
    favours: Literal["large", "small"] = "large",
    exponent: Annotated[float, Ge(0), Le(100)] = 0.5,
    highest: Probability = 1.0,
) -> Iterator[tuple[Row, Probabilities]]:
    """Independent, with a probability that grows or falls with a client's number of samples.

    ``favours`` says which clients are up most often, with the probability ``highest``: those with
    the most samples ("large"), or with the fewest ("small"). ``exponent`` says how strongly the
    others differ from them; with 0 they do not. A client without samples is never up.

    Example:
        >>> setting = Setting(seed=1, clients=3, rounds=1, samples=[100, 25, 0])
        >>> [p.tolist() for up, p in by_volume(setting)]
        [[1.0, 0.5, 0.0]]
        >>> [p.tolist() for up, p in by_volume(setting, favours="small", exponent=1.0)]
        [[0.25, 1.0, 0.0]]
    """
    samples = sample_counts(setting, "by_volume")
    holds = samples > 0
    p = np.zeros(setting.clients)
    if holds.any():
        if favours == "large":
            ratio = samples[holds] / samples.max()
        else:
            ratio = samples[holds].min() / samples[holds]
        p[holds] = highest * ratio**exponent
    for t in range(setting.rounds):
        yield setting.uniform(t) < p, p
