"""Validation of the arguments of the theory's functions."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpbc.errors import InputError
from fedpbc.limits import MAX_INTEGER, array_of

__all__ = [
    "Floats",
    "array_of",
    "largest_lipschitz",
    "number",
    "positive_integer",
    "probabilities",
    "rate_below_one",
    "targets_of",
    "wrong_shape",
]

Floats = NDArray[np.float64]


def wrong_shape(name: str, array: NDArray[Any], expected: str) -> InputError:
    """The error for an array of the wrong shape."""
    return InputError(f"{name} is of shape {array.shape}, but should be {expected}")


def probabilities(p: ArrayLike) -> Floats:
    """One probability per client."""
    array: Floats = array_of("p", p).astype(np.float64)
    expected = "a probability from 0 to 1 for every client"
    if array.ndim != 1 or not array.size:
        raise wrong_shape("p", array, expected)
    outside = np.flatnonzero((array < 0) | (array > 1))
    if outside.size:
        client = outside[0]
        raise InputError(f"p is {array[client]} for client {client}, but should be {expected}")
    return array


def targets_of(targets: ArrayLike, clients: int) -> Floats:
    """The targets u_i of quadratics, one row per client."""
    array: Floats = array_of("targets", targets).astype(np.float64)
    if array.ndim == 0 or len(array) != clients:
        raise wrong_shape("targets", array, f"one row for each of {clients} clients")
    return array


def number(
    name: str, value: float, low: float, high: float = math.inf, above: bool = False
) -> float:
    """A number from ``low`` (with ``above``: exclusive) to ``high``."""
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        result = math.nan
    if not (math.isfinite(result) and low <= result <= high and (result > low or not above)):
        bounds = f"above {low:g}" if above else f"at least {low:g}"
        raise InputError(name, value, f"a number {bounds}" + f" and at most {high:g}" * (high == 1))
    return result


def positive_integer(name: str, value: int) -> int:
    """An integer of at least 1."""
    if isinstance(value, bool):
        raise InputError(name, value, "an integer of at least 1")
    try:
        result = operator.index(value)
    except TypeError:
        result = 0
    if not 1 <= result <= MAX_INTEGER:
        raise InputError(name, value, f"an integer from 1 to {MAX_INTEGER}")
    return result


def rate_below_one(rho: float) -> float:
    """A mixing rate ρ for which the bounds hold."""
    rate = number("rho", rho, 0, 1)
    if rate == 1:
        raise InputError("rho", rho, "below 1: no bound holds if some client is never up")
    return rate


def largest_lipschitz(lipschitz: ArrayLike, minimum: int) -> float:
    """The largest of the clients' Lipschitz constants, at least ``minimum``."""
    constants = array_of("lipschitz", lipschitz).astype(np.float64)
    expected = "one number of at least 0, or one per client"
    if constants.ndim > 1 or not constants.size:
        raise wrong_shape("lipschitz", constants, expected)
    if constants.min() < 0:
        raise InputError("lipschitz", float(constants.min()), expected)
    largest = float(constants.max())
    if largest < minimum:
        expected = "at least 1 for some client: the theorem assumes L ≥ 1"
        raise InputError("lipschitz", largest, expected)
    return largest
