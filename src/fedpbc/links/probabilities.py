"""Link probabilities: p_i from the classes that a client holds, and p_i^t over time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import ArrayLike, NDArray

from fedpbc import defaults
from fedpbc.choices import Kept
from fedpbc.errors import InputError
from fedpbc.limits import array_of
from fedpbc.options import Form, check_arguments
from fedpbc.randomness import generator

__all__ = ["ProbabilityOptions", "class_rates", "from_data", "hidden_shares", "varying"]

HIDDEN_CLASSES = 10
Probability = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True, kw_only=True)
class ProbabilityOptions:
    """Where p_i comes from."""

    # One number, one for each client, or a .npy or .csv file of them; None: p_i is drawn from the
    # classes that each client holds.
    p: (
        Probability
        | list[Probability]
        | Annotated[str, Form("a .npy or .csv file"), Kept("input")]
        | None
    ) = None
    sigma: Annotated[float, Ge(0), Le(50)] = 10.0  # σ₀, how unequally the classes contribute
    delta: Probability = 0.02  # δ, the least probability


@check_arguments
def class_rates(
    seed: Annotated[int, Ge(0)],
    classes: Annotated[int, Ge(1), Le(1_000_000)],
    sigma: Annotated[float, Ge(0)] = ProbabilityOptions.sigma,
) -> NDArray[np.float64]:
    """The vector r: ``classes`` draws of lognormal(0, sigma²), divided by their sum.

    With the default sigma, one or two classes take nearly everything: clients that hold them are
    often up, the others hardly ever. r depends on the seed alone, so uplink and downlink share it.
    """
    exponents = sigma * generator(seed, "class rates").standard_normal(classes)
    # Subtracting the largest cancels in the ratio, and avoids overflow for any sigma.
    rates = np.exp(exponents - exponents.max())
    return np.asarray(rates / rates.sum(), dtype=np.float64)


@check_arguments
def from_data(
    seed: Annotated[int, Ge(0)],
    class_shares: ArrayLike,
    sigma: Annotated[float, Ge(0)] = ProbabilityOptions.sigma,
    delta: Probability = ProbabilityOptions.delta,
) -> NDArray[np.float64]:
    """p_i = max(delta, ⟨r, ν_i⟩), where row i of ``class_shares`` is ν_i, the classes i holds."""
    shares = np.ascontiguousarray(array_of("class_shares", class_shares), dtype=np.float64)
    if shares.ndim != 2 or 0 in shares.shape:
        raise InputError(f"class_shares has shape {shares.shape}, but should be clients x classes")
    # The condition is also false for NaN.
    if not (shares.min() >= 0 and np.abs(shares.sum(axis=1) - 1).max() <= 1e-5):
        raise InputError("class_shares must be at least 0 and add up to 1 for each client")
    rates = class_rates(seed, shares.shape[1], sigma)
    # Not a matrix product: BLAS may round a row differently when there are more rows.
    products: NDArray[np.float64] = (shares * rates).sum(axis=1)
    return np.clip(products, delta, 1)


def hidden_shares(seed: int, clients: int) -> NDArray[np.float64]:
    """ν_i of clients that bring their own data: drawn from Dirichlet(α), as for the paper's images.

    Then p_i has the paper's distribution, and does not depend on what a client holds.
    """
    draws = generator(seed, "hidden classes").dirichlet([defaults.ALPHA] * HIDDEN_CLASSES, clients)
    # Where all ten draws are too small for a number, NumPy returns NaN.
    return np.where(np.isfinite(draws), draws, 1 / HIDDEN_CLASSES)


def varying(p: NDArray[np.float64], t: int, gamma: float, period: float) -> NDArray[np.float64]:
    """p_i^t = p_i · [(1 − gamma) + gamma · sin(2πt / period)], clipped to [0, 1]."""
    factor = (1 - gamma) + gamma * math.sin(2 * math.pi * t / period)
    return np.clip(p * factor, 0, 1)
