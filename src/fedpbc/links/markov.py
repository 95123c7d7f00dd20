"""Markov links: a two-state chain per client, up for a share p_i of the rounds.

OFF→ON with 0.05 and ON→OFF with 0.05·(1−p)/p; where that exceeds 1, with p/(1−p) and 1.
The first state is Bernoulli(p_i).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedpbc.links.scheme import Probabilities, Row, Setting, link_scheme
from fedpbc.parallel import in_parts

__all__ = ["markov", "step"]

_OFF_TO_ON = 0.05


@link_scheme
def markov(setting: Setting) -> Iterator[tuple[Row, Probabilities]]:
    """A two-state chain: links stay up or down for many rounds, and are up for p_i of them."""
    up = setting.uniform(0) < setting.p
    yield up, setting.p
    turn_on, stay_on = _transitions(setting.p)
    for t in range(1, setting.rounds):
        draws = setting.uniform(t)
        up = np.where(up, draws < stay_on, draws < turn_on)
        yield up, setting.p


def step(up: Row, p: Probabilities, draws: Probabilities) -> Row:
    """The state after one transition of the chain whose stationary probability is ``p``."""
    after = np.empty_like(up)

    def move(part: slice) -> None:
        turn_on, stay_on = _transitions(p[part])
        after[part] = np.where(up[part], draws[part] < stay_on, draws[part] < turn_on)

    in_parts(move, len(up))
    return after


def _transitions(p: Probabilities) -> tuple[Probabilities, Probabilities]:
    """The probabilities of OFF→ON and of ON→ON.

    The two cases of the rule are two minima in the odds p/(1−p).
    """
    # Odds of 0 and infinity (p = 0 and p = 1) need no special case: 0 and 0, 0.05 and 1.
    with np.errstate(divide="ignore", over="ignore"):
        odds = 1 - p
        # In place: for a million clients, fresh arrays cost four times the arithmetic.
        np.divide(p, odds, out=odds)
        turn_on = np.minimum(_OFF_TO_ON, odds)
        turn_off = np.divide(_OFF_TO_ON, odds, out=odds)
        np.minimum(1, turn_off, out=turn_off)
    return turn_on, np.subtract(1, turn_off, out=turn_off)
