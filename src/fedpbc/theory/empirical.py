"""The quantities of the theory measured on a timetable of any links."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fedpbc.theory.arguments import Floats
from fedpbc.theory.blas import one_blas_thread
from fedpbc.theory.mixing import second_eigenvalue

__all__ = ["EmpiricalLinks"]

BLOCK = 512
"""Rounds that are processed together, at most."""
CELLS = 1 << 24
"""Links that are."""


@dataclass(frozen=True)
class EmpiricalLinks:
    """Statistics of a timetable."""

    rounds: int  # T
    empty_rounds: int  # in which no link was up
    shares: Floats  # each client's share of rounds in which it was up
    # The mean of 1{i∈A}/|A| over the rounds that were not empty: each client's weight under
    # FedAvg. None if all rounds were empty.
    weights: Floats | None
    mixing_rate: float | None  # λ₂ of the mean of W over the rounds, if it was computed
    staleness: Floats  # each client's mean over t = 0 … T of the rounds since it was last up
    staleness_max: int  # of any client in any round

    @classmethod
    def from_rows(cls, rows: Iterable[NDArray[np.bool_]], *, mixing: bool = True) -> EmpiricalLinks:
        """Compute the statistics of at least one round, with a bool per client.

        ``mixing`` is whether to compute λ₂, which takes a clients × clients matrix.
        """
        rows = iter(rows)
        first = next(rows)
        clients = len(first)
        counts, weights, ages = np.zeros(clients), np.zeros(clients), np.ones(clients)
        ages_sum, oldest = np.ones(clients), 1
        exchanged = np.zeros((clients, clients)) if mixing else None
        rounds = empty = 0
        size = max(1, min(BLOCK, CELLS // clients))
        block = np.stack([first, *islice(rows, size - 1)])
        while len(block):
            up = block.astype(np.float64)
            sizes = up.sum(axis=1)
            averaged = up / np.maximum(sizes, 1)[:, None]  # 1{i∈A}/|A|
            rounds, empty = rounds + len(block), empty + int((sizes == 0).sum())
            counts += up.sum(axis=0)
            weights += averaged.sum(axis=0)
            if exchanged is not None:
                with one_blas_thread():
                    exchanged += averaged.T @ up
            for row in block:
                ages = np.where(row, 1, ages + 1)
                ages_sum += ages
                oldest = max(oldest, int(ages.max()))
            block = np.array(list(islice(rows, size)))
        return cls(
            rounds=rounds,
            empty_rounds=empty,
            shares=counts / rounds,
            weights=weights / (rounds - empty) if rounds > empty else None,
            mixing_rate=None if exchanged is None else second_eigenvalue(exchanged / rounds),
            staleness=ages_sum / (rounds + 1),
            staleness_max=oldest,
        )
