"""How fast implicit gossiping brings the clients together: W, M = E[W²] and ρ."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from fedpbc.errors import InputError
from fedpbc.theory.arguments import Floats, count_of, number, probabilities
from fedpbc.theory.blas import one_blas_thread
from fedpbc.theory.quadrature import exchange, shares

__all__ = ["mean_square_mixing", "mixing_matrix", "mixing_rate", "mixing_rate_bound"]

EXACT_CLIENTS = 1000
"""Up to so many clients ρ takes well under a second; it grows with their cube."""


def mixing_matrix(active: Iterable[int], clients: int) -> Floats:
    """What one round's average does to the clients' models, as a matrix W (Eq. 5).

    The active clients all take their mean, the others keep what they have: row i of W @ models is
    client i's next model. W is symmetric, doubly stochastic and a projection (W² = W), so the mean
    over all clients never changes.

    Args:
        active: the numbers of the clients whose uplink is up, from 0; possibly none.
        clients: how many clients there are.

    Example:
        >>> print(mixing_matrix([0, 2], 3))
        [[0.5 0.  0.5]
         [0.  1.  0. ]
         [0.5 0.  0.5]]
    """
    count = count_of("clients", clients)
    right = f"different client numbers from 0 to {count - 1}"
    try:
        numbers = list(active)
        # A mask of True and False would silently read as clients 1 and 0.
        if any(isinstance(number, bool | np.bool_) for number in numbers):
            raise TypeError
        numbers = [operator.index(number) for number in numbers]
    except TypeError:
        raise InputError("active", active, right) from None
    if len(set(numbers)) < len(numbers) or any(not 0 <= number < count for number in numbers):
        raise InputError("active", numbers, right)
    matrix = np.eye(count)
    if numbers:
        matrix[np.ix_(numbers, numbers)] = 1 / len(numbers)
    return matrix


def mean_square_mixing(p: ArrayLike) -> Floats:
    """The expected mixing of a round, M = E[W²].

    M_ij is how much of client j's model is expected in client i's after one round: E[1{i,j∈A}/|A|]
    off the diagonal, and rows sum to 1. As W is a projection, M = E[W] too. Entries are above 0
    wherever both clients can get through at all.

    Example:
        >>> print(mean_square_mixing([0.5, 0.8]).round(6))
        [[0.8 0.2]
         [0.2 0.8]]
    """
    links = probabilities(p)
    mixed = exchange(links)
    np.fill_diagonal(mixed, 1 - links + shares(links))
    return mixed


def mixing_rate(p: ArrayLike) -> float:
    """The factor ρ = λ₂(M) by which a round shrinks disagreement between clients, in expectation.

    0: one round makes all clients agree; 1: somebody never hears of the others (some p_i = 0).
    Without further training the expected consensus error falls at least as fast as ρ^t. Where p
    changes from round to round, the theory takes the largest ρ over the rounds. A single client
    always agrees with itself: 0.

    Example:
        >>> print(f"{mixing_rate([0.5, 0.8]):.6f}")
        0.600000
    """
    return second_eigenvalue(exchange(probabilities(p)))


def second_eigenvalue(exchanged: Floats) -> float:
    """λ₂ of a mixing matrix whose rows sum to 1, from what stands off its diagonal.

    Example:
        >>> second_eigenvalue(np.array([[9.0, 0.25], [0.25, 9.0]]))
        0.5
    """
    if len(exchanged) == 1:
        return 0.0
    # I - M is a graph Laplacian. Its eigenvalues keep their digits when p is small and ρ nearly 1.
    laplacian = -exchanged
    np.fill_diagonal(laplacian, 0)
    np.fill_diagonal(laplacian, -laplacian.sum(axis=1))
    with one_blas_thread():
        gap = float(np.linalg.eigvalsh(laplacian)[1])
    return min(max(1 - gap, 0.0), 1.0)


def mixing_rate_bound(c: float, clients: int) -> float:
    """What the Ergodicity lemma guarantees for ρ when every link is up with probability ≥ ``c``.

    ρ ≤ 1 − c⁴[1−(1−c)^m]²/8. Safe but loose: compare :func:`mixing_rate`, which is exact.

    Example:
        >>> print(mixing_rate_bound(0.5, 2))
        0.99560546875
    """
    lowest = number("c", c, 0, 1)
    some = 1 - (1 - lowest) ** count_of("clients", clients)
    return 1 - lowest**4 * some**2 / 8


def one_minus_root(rho: float) -> float:
    """1 − √ρ, with all its digits where ρ is nearly 1."""
    return (1 - rho) / (1 + math.sqrt(rho))
