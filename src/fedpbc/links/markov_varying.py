"""Markov links with varying probabilities: the chain of ``markov`` with p_i^t in round t.

The state is carried from round to round. The authors' code restarts the chain in every round, which
is plain Bernoulli.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from annotated_types import Ge, Le

from fedpbc.links.markov import step
from fedpbc.links.probabilities import varying
from fedpbc.links.scheme import Probabilities, Row, Setting, link_scheme

__all__ = ["markov_varying"]


@link_scheme
def markov_varying(
    setting: Setting,
    *,
    gamma: Annotated[float, Ge(0), Le(1)] = 0.4,
    period: Annotated[float, Ge(1)] = 40.0,
) -> Iterator[tuple[Row, Probabilities]]:
    """A two-state chain whose transitions follow p_i^t, a sine over the rounds.

    The chain lags behind p_i^t: the probabilities that it yields are the paper's p_i^t, not the
    exact probability of being up in round t.
    """
    p = varying(setting.p, 0, gamma, period)
    up = setting.uniform(0) < p
    yield up, p
    for t in range(1, setting.rounds):
        p = varying(setting.p, t, gamma, period)
        up = step(up, p, setting.uniform(t))
        yield up, p
