"""What independent links are like in expectation, exactly, over the rounds of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedpbc.theory.arguments import Floats
from fedpbc.theory.mixing import EXACT_CLIENTS, mixing_rate, mixing_rate_bound
from fedpbc.theory.quadrature import shares

__all__ = ["IndependentLinks", "expect"]

DIGITS = 12
"""Rounds whose probabilities agree so far are the same round to the weights."""


@dataclass(frozen=True)
class IndependentLinks:
    """What links that are up independently, with p_i^t in round t, are like in expectation.

    Attributes:
        rounds: T.
        constant: whether p_i^t is the same in all rounds.
        p: each client's mean of p_i^t over the rounds.
        lowest: each client's smallest p_i^t.
        weights: Σ_t E[1{i∈A}/|A|] / Σ_t P(A≠∅), Proposition 1's weights if p is constant: how much
            each client counts under FedAvg. None if nobody ever gets through.
        mixing_rate: ρ, the largest of any round; None for more than 1,000 clients.
        mixing_rate_attained: whether some round has such a ρ. If not, it is ρ of every client's
            lowest p, which no round's ρ exceeds.
        mixing_rate_bound: the Ergodicity lemma's, with c the smallest p of all.
        staleness: each client's expected staleness, the mean over t = 0 … T.
        staleness_limit: 1/p_i, what it tends to where p is constant; infinite where p_i = 0.

    Example:
        >>> expect([np.array([0.5, 0.25])] * 3).weights.round(6).tolist()
        [0.7, 0.3]
    """

    rounds: int
    constant: bool
    p: Floats
    lowest: Floats
    weights: Floats | None
    mixing_rate: float | None
    mixing_rate_attained: bool
    mixing_rate_bound: float
    staleness: Floats
    staleness_limit: Floats | None


def expect(rows: Iterable[Floats]) -> IndependentLinks:
    """Go through the probabilities of all rounds, one number a client each.

    ρ falls when any p grows: the more clients are averaged, the more disagreement goes. So the
    round with the lowest probabilities has the largest ρ, and the others need not be looked at.

    Example:
        >>> found = expect([np.array([0.5, 0.8]), np.array([1.0, 1.0])])
        >>> print(f"{found.mixing_rate:.6f}")
        0.600000
    """
    kinds: dict[bytes, tuple[Floats, int]] = {}
    total: Floats | float = 0.0
    lowest = least = last = None
    key, rounds = b"", 0
    ages: Floats | float = 1.0
    ages_sum: Floats | float = 1.0
    for p in rows:
        if p is not last:
            key, last = p.round(DIGITS).tobytes(), p
            lowest = p.copy() if lowest is None else np.minimum(lowest, p)
            least = p if least is None or p.sum() < least.sum() else least
        kinds[key] = p, kinds.get(key, (p, 0))[1] + 1
        rounds += 1
        total = total + p
        ages = 1 + (1 - p) * ages
        ages_sum = ages_sum + ages
    assert lowest is not None
    assert least is not None
    p, clients, constant = np.asarray(total) / rounds, len(lowest), len(kinds) == 1
    counted = sum(count * shares(p) for p, count in kinds.values())
    everyone = float(np.sum(counted))
    with np.errstate(divide="ignore"):
        limit = 1 / lowest if constant else None
    return IndependentLinks(
        rounds=rounds,
        constant=constant,
        p=lowest if constant else p,
        lowest=lowest,
        weights=np.asarray(counted) / everyone if everyone else None,
        mixing_rate=mixing_rate(lowest) if clients <= EXACT_CLIENTS else None,
        mixing_rate_attained=bool(np.allclose(least, lowest, rtol=1e-9, atol=0)),
        mixing_rate_bound=mixing_rate_bound(float(lowest.min()), clients),
        staleness=np.asarray(ages_sum) / (rounds + 1),
        staleness_limit=limit,
    )
