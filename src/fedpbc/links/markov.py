"""Links that stay up or down for a while: a two-state chain, up for p_i of the time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedpbc.links.scheme import Row, Setting, link_scheme
from fedpbc.parallel import in_parts

__all__ = ["markov", "step"]

_OFF_TO_ON = 0.05


@link_scheme
def markov(setting: Setting) -> Iterator[tuple[Row, NDArray[np.float64]]]:
    """A two-state chain: links stay up or down for many rounds, up for p_i of them.

    Example:
        >>> setting = Setting(seed=1, clients=2, rounds=1, base_probabilities=np.array([0.0, 1.0]))
        >>> up, p = next(markov(setting))
        >>> up.tolist()
        [False, True]
    """
    up = setting.uniform(0) < setting.p
    yield up, setting.p
    rise, stay = _rise_and_stay(setting.p)
    for t in range(1, setting.rounds):
        chance = setting.uniform(t)
        up = np.where(up, chance < stay, chance < rise)
        yield up, setting.p


def step(up: Row, p: NDArray[np.float64], chance: NDArray[np.float64]) -> Row:
    """The state after one transition of the chain whose stationary share is ``p``.

    Example:
        >>> up, p = np.array([False, True, True]), np.array([0.5, 0.5, 0.5])
        >>> step(up, p, chance=np.array([0.04, 0.94, 0.96])).tolist()
        [True, True, False]
    """
    after = np.empty_like(up)

    def move(part: slice) -> None:
        rise, stay = _rise_and_stay(p[part])
        after[part] = np.where(up[part], chance[part] < stay, chance[part] < rise)

    in_parts(move, len(up))
    return after


def _rise_and_stay(p: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The chances of being up after a round that was down, and after one that was up.

    The paper's two cases, OFF→ON 0.05 and ON→OFF 0.05 (1−p)/p while that is at most 1, else p/(1−p)
    and 1, are two minima in the odds p/(1−p).
    """
    # Odds of 0 and infinity (p = 0 and p = 1) come out right: 0 and 0, 0.05 and 1.
    with np.errstate(divide="ignore", over="ignore"):
        odds = 1 - p
        # In place: for a million clients, fresh arrays cost four times the arithmetic.
        np.divide(p, odds, out=odds)
        rise = np.minimum(_OFF_TO_ON, odds)
        fall = np.divide(_OFF_TO_ON, odds, out=odds)
        np.minimum(1, fall, out=fall)
    return rise, np.subtract(1, fall, out=fall)
