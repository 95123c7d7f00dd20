"""Two expectations over A, the set of clients that get through; everything else rests on them.

Both are integrals of a polynomial because 1/|A| = ∫₀¹ z^(|A|-1) dz. Gauss-Legendre quadrature
integrates polynomials without error, so no subset is enumerated and nothing is sampled: the results
are exact up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from fedpbc.theory.arguments import Floats
from fedpbc.theory.blas import one_blas_thread

__all__ = ["exchange", "shares"]


def shares(links: Floats) -> Floats:
    """E[1{i∈A}/|A|] = p_i ∫ Π_{j≠i}(1−p_j+p_j z) dz for every client i."""
    found = np.zeros_like(links)
    for _, weight, factors in _quadrature(links):
        # Dividing by one's own factor is safe: nodes lie strictly inside (0, 1), so no factor is 0
        # even where p = 1. If the product underflows, less than 1e-290 is lost of at least 1/m.
        found += (weight * factors.prod(axis=0) / factors).sum(axis=1)
    return links * found


def exchange(links: Floats) -> Floats:
    """E[1{i,j∈A}/|A|] = p_i p_j ∫ z Π_{k≠i,j}(1−p_k+p_k z) dz off the diagonal, 0 on it."""
    mixed = np.zeros((len(links), len(links)))
    with one_blas_thread():
        for z, weight, factors in _quadrature(links):
            part = links[:, None] / factors * np.sqrt(weight * z * factors.prod(axis=0))
            mixed += part @ part.T
    np.fill_diagonal(mixed, 0)
    return mixed


def _quadrature(links: Floats) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Nodes z and weights for ∫₀¹, and 1 − p_k + p_k·z [clients, nodes], a block of nodes a time.

    ⌈m/2⌉ nodes integrate polynomials up to degree m − 1 without error. But the integrands are
    means of powers z^j with j < m, and in Chebyshev polynomials z^j has less than 2exp(−k²/j) left
    beyond degree k. So n = 5√m nodes, which are right up to degree 2n − 1, err by 1e-43: nothing.
    """
    count = min((len(links) + 1) // 2, math.ceil(5 * math.sqrt(len(links))))
    nodes, weights = _gauss_legendre(count)
    block = max(1, 2**21 // len(links))
    for start in range(0, len(nodes), block):
        z, weight = nodes[start : start + block], weights[start : start + block]
        yield z, weight, 1 - links[:, None] * (1 - z)


@lru_cache(maxsize=4)
def _gauss_legendre(count: int) -> tuple[Floats, Floats]:
    """The Gauss-Legendre rule on (0, 1), by Newton's method on the Legendre recurrence.

    NumPy's ``leggauss`` loses three digits at 500 nodes.
    """
    x = -np.cos(np.pi * (np.arange(count) + 0.75) / (count + 0.5))
    for _ in range(5):
        before, value = np.ones(count), x
        for k in range(2, count + 1):
            before, value = value, ((2 * k - 1) * x * value - (k - 1) * before) / k
        slope = count * (before - x * value) / ((1 - x) * (1 + x))
        x = x - value / slope
    return (1 + x) / 2, 1 / ((1 - x) * (1 + x) * slope**2)
