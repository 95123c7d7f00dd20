"""The same quantities measured from a timetable, whatever its links are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fedpbc.theory.arguments import Floats
from fedpbc.theory.blas import one_blas_thread
from fedpbc.theory.mixing import second_eigenvalue

__all__ = ["EmpiricalLinks", "measure"]

BLOCK = 512
"""Rounds that are looked at together."""


@dataclass(frozen=True)
class EmpiricalLinks:
    """What a timetable was like.

    Attributes:
        rounds: T.
        empty_rounds: in how many nobody got through.
        shares: each client's share of rounds in which it got through.
        weights: the mean of 1{i∈A}/|A| over the rounds in which somebody got through: how much each
            client counted under FedAvg. None if there was no such round.
        mixing_rate: λ₂ of the mean of W over the rounds; None if it was not asked for.
        staleness: each client's mean over t = 0 … T of the rounds since its last contact.
        staleness_max: the largest of all.

    Example:
        >>> measure([np.array([True, False]), np.array([True, True])]).weights.tolist()
        [0.75, 0.25]
    """

    rounds: int
    empty_rounds: int
    shares: Floats
    weights: Floats | None
    mixing_rate: float | None
    staleness: Floats
    staleness_max: int


def measure(rows: Iterable[NDArray[np.bool_]], *, mixing: bool = True) -> EmpiricalLinks:
    """Go through the rounds of a timetable, a bool a client each.

    Args:
        rows: one a round, at least one.
        mixing: whether λ₂ is wanted, which takes a clients × clients matrix.

    Example:
        >>> both, one = np.array([True, True]), np.array([True, False])
        >>> measure([both, one]).mixing_rate
        0.5
    """
    rows = iter(rows)
    first = next(rows)
    clients = len(first)
    counts, weights, ages = np.zeros(clients), np.zeros(clients), np.ones(clients)
    ages_sum, oldest = np.ones(clients), 1
    exchanged = np.zeros((clients, clients)) if mixing else None
    rounds = empty = 0
    block = np.stack([first, *islice(rows, BLOCK - 1)])
    while len(block):
        up = block.astype(np.float64)
        sizes = up.sum(axis=1)
        each = up / np.maximum(sizes, 1)[:, None]
        rounds, empty = rounds + len(block), empty + int((sizes == 0).sum())
        counts += up.sum(axis=0)
        weights += each.sum(axis=0)
        if exchanged is not None:
            with one_blas_thread():
                exchanged += each.T @ up
        for row in block:
            ages = np.where(row, 1, ages + 1)
            ages_sum += ages
            oldest = max(oldest, int(ages.max()))
        block = np.array(list(islice(rows, BLOCK)))
    return EmpiricalLinks(
        rounds=rounds,
        empty_rounds=empty,
        shares=counts / rounds,
        weights=weights / (rounds - empty) if rounds > empty else None,
        mixing_rate=None if exchanged is None else second_eigenvalue(exchanged / rounds),
        staleness=ages_sum / (rounds + 1),
        staleness_max=oldest,
    )
