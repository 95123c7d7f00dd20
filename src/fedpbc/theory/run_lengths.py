"""Outages and contacts: how long links stay down, and how long they stay up.

A log cuts off what it begins and ends with. An outage that was already under way at the start has
no known beginning, so it is left out of the distribution; one that is still under way at the end is
known to last at least as long as was seen, and counts as such (Kaplan and Meier). Mean lengths are
all rounds in the state by the number of times it ended, which uses every round of the log and is
the maximum-likelihood estimate for links without memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpbc.theory.arguments import Floats

__all__ = ["RunLengths", "run_lengths", "runs_of"]

Integers = NDArray[np.int64]
CURVE_POINTS = 200
"""At most, of the curve of a distribution."""


@dataclass(frozen=True)
class RunLengths:
    """The lengths of outages, or of contacts, in rounds; pooled over clients.

    Attributes:
        runs: all of them, complete or not.
        complete: of which begin and end within the log.
        mean: rounds in the state by the number of times it ended; None if it never ended.
        quantiles: the length below which lie 50, 90 and 99 %; None where the log is too short.
        longest: of all of them.
        longest_complete: whether that one begins and ends within the log.
        lengths: ascending, of the curve.
        longer: the share of runs that last longer than that.
        kept_down: clients in this state in every round.
    """

    runs: int
    complete: int
    mean: float | None
    quantiles: tuple[int | None, int | None, int | None]
    longest: int
    longest_complete: bool
    lengths: Integers
    longer: Floats
    kept: int


def runs_of(block: NDArray[np.bool_]) -> tuple[Integers, Integers, Integers, NDArray[np.bool_]]:
    """Client, first round, length and state of all runs, by client and time.

    Example:
        >>> block = np.array([[True, False], [False, False], [False, False]])
        >>> [array.tolist() for array in runs_of(block)]
        [[0, 0, 1], [0, 1, 0], [1, 2, 3], [True, False, False]]
    """
    rounds, clients = block.shape
    by_client = np.ascontiguousarray(block.T)
    begins = np.ones((clients, rounds), dtype=np.bool_)
    np.not_equal(by_client[:, 1:], by_client[:, :-1], out=begins[:, 1:])
    position = np.flatnonzero(begins)
    lengths = np.diff(np.append(position, clients * rounds))
    return position // rounds, position % rounds, lengths, by_client.ravel()[position]


def run_lengths(block: NDArray[np.bool_], state: bool) -> RunLengths:
    """The lengths of the runs in which clients are in a state, up or down.

    Example:
        >>> block = np.array([[1, 0, 0, 1, 0, 1, 0, 0]], dtype=bool).T
        >>> outages = run_lengths(block, state=False)
        >>> outages.runs, outages.complete, outages.mean, outages.quantiles[0]
        (3, 2, 2.5, 2)
    """
    rounds = len(block)
    _, first, lengths, states = runs_of(block)
    mask = states == state
    first, lengths = first[mask], lengths[mask]
    begun, ended = first > 0, first + lengths < rounds
    complete = begun & ended
    ends = int(ended.sum())
    curve_lengths, longer = _survival(lengths[begun], ended[begun])
    quantiles = tuple(_quantile(curve_lengths, longer, share) for share in (0.5, 0.9, 0.99))
    longest = int(lengths.max(initial=0))
    thin = np.unique(np.linspace(0, len(curve_lengths) - 1, CURVE_POINTS).astype(np.int64))
    thin = thin[: len(curve_lengths)]
    return RunLengths(
        runs=len(lengths),
        complete=int(complete.sum()),
        mean=float(lengths.sum() / ends) if ends else None,
        quantiles=(quantiles[0], quantiles[1], quantiles[2]),
        longest=longest,
        longest_complete=bool((lengths[complete] == longest).any()),
        lengths=curve_lengths[thin] if len(curve_lengths) else curve_lengths,
        longer=longer[thin] if len(curve_lengths) else longer,
        kept=int((lengths == rounds).sum()),
    )


def _survival(lengths: Integers, ended: NDArray[np.bool_]) -> tuple[Integers, Floats]:
    """Kaplan and Meier's estimate: lengths, ascending, and the share of runs longer than each."""
    values, index = np.unique(lengths, return_inverse=True)
    ends = np.bincount(index, weights=ended, minlength=len(values))
    runs = np.bincount(index, minlength=len(values))
    at_risk = runs[::-1].cumsum()[::-1]
    return values, np.cumprod(1 - ends / np.maximum(at_risk, 1))


def _quantile(lengths: Integers, longer: Floats, share: float) -> int | None:
    reached = np.flatnonzero(longer <= 1 - share + 1e-12)
    return int(lengths[reached[0]]) if len(reached) else None
