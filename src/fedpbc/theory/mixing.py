"""Mixing of the clients' models by implicit gossiping: W, M = E[W²] and ρ."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from fedpbc.errors import InputError
from fedpbc.limits import memory_bytes
from fedpbc.theory.arguments import Floats, number, positive_integer, probabilities
from fedpbc.theory.blas import one_blas_thread
from fedpbc.theory.quadrature import expected_exchange, expected_shares

__all__ = ["mean_square_mixing", "mixing_matrix", "mixing_rate", "mixing_rate_bound"]

EXACT_CLIENTS = 1000
"""ρ is computed for up to this many clients, in under a second; the cost grows with their cube."""
ROUNDING = 1e-13
"""Eigenvalues this close to 0, or to 1, are taken for it."""


def mixing_matrix(active: Iterable[int], clients: int) -> Floats:
    """The mixing matrix W of one round (Eq. 5).

    Row i of W @ models is client i's next model: the active clients take their mean, the others
    keep theirs. W is symmetric, doubly stochastic and a projection (W² = W), so the mean over all
    clients never changes. ``active`` are client numbers from 0; possibly none.

    Example:
        >>> print(mixing_matrix([0, 2], 3))
        [[0.5 0.  0.5]
         [0.  1.  0. ]
         [0.5 0.  0.5]]
    """
    count = positive_integer("clients", clients)
    if count * count * 8 > memory_bytes():
        raise InputError("clients", clients, "fewer: the matrix would not fit into memory")
    expected = f"different client numbers from 0 to {count - 1}"
    try:
        numbers = list(active)
        # A mask of True and False would silently be read as clients 1 and 0.
        if any(isinstance(number, bool | np.bool_) for number in numbers):
            raise TypeError
        numbers = [operator.index(number) for number in numbers]
    except TypeError:
        raise InputError("active", active, expected) from None
    if len(set(numbers)) < len(numbers) or any(not 0 <= number < count for number in numbers):
        raise InputError("active", numbers, expected)
    matrix = np.eye(count)
    if numbers:
        matrix[np.ix_(numbers, numbers)] = 1 / len(numbers)
    return matrix


def mean_square_mixing(p: ArrayLike) -> Floats:
    """The expected mixing matrix of a round, M = E[W²].

    M_ij is the expected share of client j's model in client i's after one round: E[1{i,j∈A}/|A|]
    off the diagonal, and rows sum to 1. M = E[W] too, as W is a projection.

    Example:
        >>> print(mean_square_mixing([0.5, 0.8]).round(6))
        [[0.8 0.2]
         [0.2 0.8]]
    """
    p = probabilities(p)
    matrix = expected_exchange(p)
    np.fill_diagonal(matrix, 1 - p + expected_shares(p))
    return matrix


def mixing_rate(p: ArrayLike) -> float:
    """The mixing rate ρ = λ₂(M), by which a round shrinks disagreement in expectation.

    0: one round makes all clients agree; 1: some client never exchanges anything (p_i = 0).
    Without further training the expected consensus error falls at least as fast as ρ^t. If p
    changes from round to round, the theory takes the largest ρ. A single client has ρ = 0.

    Example:
        >>> print(f"{mixing_rate([0.5, 0.8]):.6f}")
        0.600000
    """
    return second_eigenvalue(expected_exchange(probabilities(p)))


def second_eigenvalue(exchanged: Floats) -> float:
    """λ₂ of a mixing matrix whose rows sum to 1, from its off-diagonal entries."""
    if len(exchanged) == 1:
        return 0.0
    # I - M is a graph Laplacian. Its eigenvalues keep their digits when p is small and ρ near 1.
    laplacian = -exchanged
    np.fill_diagonal(laplacian, 0)
    np.fill_diagonal(laplacian, -laplacian.sum(axis=1))
    with one_blas_thread():
        gap = float(np.linalg.eigvalsh(laplacian)[1])
    # The difference loses the digits that the gap has.
    return 0.0 if 1 - gap < ROUNDING else min(1 - gap, 1.0)


def mixing_rate_bound(c: float, clients: int) -> float:
    """The bound of the Ergodicity lemma on ρ if every link is up with probability ≥ ``c``.

    ρ ≤ 1 − c⁴[1−(1−c)^m]²/8. Loose: :func:`mixing_rate` is exact.

    Example:
        >>> print(mixing_rate_bound(0.5, 2))
        0.99560546875
    """
    c = number("c", c, 0, 1)
    nonempty = 1 - (1 - c) ** positive_integer("clients", clients)
    return 1 - c**4 * nonempty**2 / 8


def one_minus_root(rho: float) -> float:
    """1 − √ρ without cancellation where ρ is near 1."""
    return (1 - rho) / (1 + math.sqrt(rho))
