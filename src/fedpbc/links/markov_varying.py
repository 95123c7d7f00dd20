"""The two-state chain with probabilities that rise and fall."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from fedpbc.links.markov import step
from fedpbc.links.probabilities import varying
from fedpbc.links.scheme import Row, Setting, link_scheme

__all__ = ["markov_varying"]


@link_scheme
def markov_varying(
    setting: Setting,
    *,
    gamma: Annotated[float, Ge(0), Le(1)] = 0.4,
    period: Annotated[float, Ge(1)] = 40.0,
) -> Iterator[tuple[Row, NDArray[np.float64]]]:
    """A two-state chain whose transitions follow p_i^t: a sine over the rounds.

    The state is carried from round to round, unlike in the authors' code, which starts the
    chain anew in every round and so draws plain Bernoulli links. The chain lags behind p_i^t, so
    the probabilities it yields are the paper's p_i^t, not the exact chance of round t.

    Example:
        >>> setting = Setting(seed=1, clients=2, rounds=1, base_probabilities=np.array([0.0, 1.0]))
        >>> up, p = next(markov_varying(setting, gamma=0.0))
        >>> up.tolist()
        [False, True]
    """
    p = varying(setting.p, 0, gamma, period)
    up = setting.uniform(0) < p
    yield up, p
    for t in range(1, setting.rounds):
        p = varying(setting.p, t, gamma, period)
        up = step(up, p, setting.uniform(t))
        yield up, p
