"""The exact expectations of independent links over the rounds of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedpbc.theory.arguments import Floats
from fedpbc.theory.mixing import EXACT_CLIENTS, mixing_rate, mixing_rate_bound
from fedpbc.theory.quadrature import expected_shares

__all__ = ["IndependentLinks"]

DIGITS = 12
"""Rounds whose probabilities agree to this many digits share one integral for the weights."""


@dataclass(frozen=True)
class IndependentLinks:
    """Expectations of links that are up independently, with p_i^t in round t."""

    rounds: int  # T
    constant: bool  # whether p_i^t is the same in all rounds
    p: Floats  # each client's mean of p_i^t over the rounds
    lowest: Floats  # each client's smallest p_i^t
    # Σ_t E[1{i∈A}/|A|] / Σ_t P(A≠∅), each client's weight under FedAvg; Proposition 1 if p is
    # constant. None if no link is ever up.
    weights: Floats | None
    mixing_rate: float | None  # ρ, the largest of any round; None for more than 1,000 clients
    # Whether some round has this ρ. If not, it is ρ at every client's lowest p, which no round
    # exceeds.
    mixing_rate_attained: bool
    mixing_rate_bound: float  # of the Ergodicity lemma, with c the smallest p of all
    staleness: Floats  # each client's expected staleness, the mean over t = 0 … T
    staleness_limit: Floats | None  # 1/p_i, if p is constant; infinite if p_i = 0

    @classmethod
    def from_probabilities(cls, rows: Iterable[Floats]) -> IndependentLinks:
        """Compute the expectations from the probabilities of every round.

        ρ falls when any p grows: averaging over more clients removes more disagreement. So the
        lowest probabilities have the largest ρ, and one eigenvalue problem is enough.
        """
        repetitions: dict[bytes, tuple[Floats, int]] = {}
        total: Floats | float = 0.0
        lowest = lowest_row = previous = None
        key, rounds = b"", 0
        ages: Floats | float = 1.0
        ages_sum: Floats | float = 1.0
        for p in rows:
            if p is not previous:
                key, previous = p.round(DIGITS).tobytes(), p
                lowest = p.copy() if lowest is None else np.minimum(lowest, p)
                if lowest_row is None or p.sum() < lowest_row.sum():
                    lowest_row = p
            repetitions[key] = p, repetitions.get(key, (p, 0))[1] + 1
            rounds += 1
            total = total + p
            ages = 1 + (1 - p) * ages
            ages_sum = ages_sum + ages
        assert lowest is not None
        assert lowest_row is not None
        clients, constant = len(lowest), len(repetitions) == 1
        shares = sum(count * expected_shares(p) for p, count in repetitions.values())
        nonempty = float(np.sum(shares))
        with np.errstate(divide="ignore", over="ignore"):
            limit = 1 / lowest if constant else None
        return cls(
            rounds=rounds,
            constant=constant,
            p=lowest if constant else np.asarray(total) / rounds,
            lowest=lowest,
            weights=np.asarray(shares) / nonempty if nonempty else None,
            mixing_rate=mixing_rate(lowest) if clients <= EXACT_CLIENTS else None,
            mixing_rate_attained=bool(np.allclose(lowest_row, lowest, rtol=1e-9, atol=0)),
            mixing_rate_bound=mixing_rate_bound(float(lowest.min()), clients),
            staleness=np.asarray(ages_sum) / (rounds + 1),
            staleness_limit=limit,
        )
