"""Two expectations over A, the set of clients that are up, on which the other results rest.

Both are integrals of a polynomial because 1/|A| = ∫₀¹ z^(|A|-1) dz. Gauss-Legendre quadrature
integrates polynomials without error, so nothing is enumerated or sampled: the results are exact up
to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from fedpbc.theory.arguments import Floats
from fedpbc.theory.blas import one_blas_thread

__all__ = ["expected_exchange", "expected_shares"]


def expected_shares(p: Floats) -> Floats:
    """E[1{i∈A}/|A|] = p_i ∫ Π_{j≠i}(1−p_j+p_j z) dz for every client i."""
    integrals = np.zeros_like(p)
    for _, weights, factors in _quadrature(p):
        # Division by factor i is safe: nodes lie strictly inside (0, 1), so no factor is 0 even
        # for p = 1. If the product underflows, less than 1e-290 is lost of at least 1/m.
        integrals += (weights * factors.prod(axis=0) / factors).sum(axis=1)
    return p * integrals


def expected_exchange(p: Floats) -> Floats:
    """E[1{i,j∈A}/|A|] = p_i p_j ∫ z Π_{k≠i,j}(1−p_k+p_k z) dz off the diagonal, 0 on it."""
    matrix = np.zeros((len(p), len(p)))
    with one_blas_thread():
        for z, weights, factors in _quadrature(p):
            root = p[:, None] / factors * np.sqrt(weights * z * factors.prod(axis=0))
            matrix += root @ root.T
    np.fill_diagonal(matrix, 0)
    return matrix


def _quadrature(p: Floats) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Nodes z and weights for ∫₀¹, and 1 − p_k + p_k·z [clients, nodes], in blocks of nodes.

    ⌈m/2⌉ nodes integrate polynomials up to degree m − 1 without error. But the integrands are means
    of powers z^j with j < m, whose Chebyshev expansion beyond degree k is below 2exp(−k²/j). So
    n = 5√m nodes, exact up to degree 2n − 1, have an error of 1e-43, below rounding.
    """
    count = min((len(p) + 1) // 2, math.ceil(5 * math.sqrt(len(p))))
    nodes, weights = _gauss_legendre(count)
    block = max(1, 2**21 // len(p))
    for start in range(0, len(nodes), block):
        z = nodes[start : start + block]
        yield z, weights[start : start + block], 1 - p[:, None] * (1 - z)


@lru_cache(maxsize=4)
def _gauss_legendre(count: int) -> tuple[Floats, Floats]:
    """The Gauss-Legendre rule on (0, 1), by Newton's method on the Legendre recurrence.

    NumPy's ``leggauss`` loses three digits at 500 nodes.
    """
    x = -np.cos(np.pi * (np.arange(count) + 0.75) / (count + 0.5))
    for _ in range(5):
        previous, value = np.ones(count), x
        for k in range(2, count + 1):
            previous, value = value, ((2 * k - 1) * x * value - (k - 1) * previous) / k
        slope = count * (previous - x * value) / ((1 - x) * (1 + x))
        x = x - value / slope
    return (1 + x) / 2, 1 / ((1 - x) * (1 + x) * slope**2)
