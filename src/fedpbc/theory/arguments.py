"""What the functions of the theory are given, checked."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpbc.errors import InputError, Verbatim

__all__ = [
    "Floats",
    "array_of",
    "count_of",
    "number",
    "probabilities",
    "rate_below_one",
    "steepest",
]

Floats = NDArray[np.float64]


def array_of(name: str, given: ArrayLike) -> NDArray[Any]:
    """An array of finite numbers."""
    try:
        array = np.asarray(given)
    except (TypeError, ValueError):
        raise InputError(name, Verbatim("ragged or not numbers"), "an array of numbers") from None
    if array.dtype.kind not in "biuf":
        raise InputError(name, Verbatim(f"of type {array.dtype}"), "an array of numbers")
    if not np.isfinite(array).all():
        raise InputError(name, Verbatim("not finite everywhere"), "an array of finite numbers")
    return array


def probabilities(p: ArrayLike) -> Floats:
    """One probability a client."""
    links: Floats = array_of("p", p).astype(np.float64)
    right = "a probability from 0 to 1 for every client"
    if links.ndim != 1 or not links.size:
        raise InputError("p", Verbatim(f"of shape {links.shape}"), right)
    wrong = np.flatnonzero((links < 0) | (links > 1))
    if wrong.size:
        raise InputError("p", Verbatim(f"{links[wrong[0]]} for client {wrong[0]}"), right)
    return links


def number(
    name: str, given: float, low: float, high: float = math.inf, above: bool = False
) -> float:
    """A number from ``low`` (or ``above`` it) to ``high``."""
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and low <= number <= high and (number > low or not above)):
        bounds = f"above {low:g}" if above else f"at least {low:g}"
        raise InputError(name, given, f"a number {bounds}" + f" and at most {high:g}" * (high == 1))
    return number


def count_of(name: str, given: int) -> int:
    """A whole number from 1 on."""
    try:
        number = operator.index(given)
    except TypeError:
        number = 0
    if number < 1:
        raise InputError(name, given, "a whole number of at least 1")
    return number


def rate_below_one(given: float) -> float:
    """ρ, where it must be below 1."""
    rho = number("rho", given, 0, 1)
    if rho == 1:
        raise InputError(
            "rho", given, "below 1: with a client that never gets through, no bound holds"
        )
    return rho


def steepest(given: ArrayLike, low: int) -> float:
    """The largest of the clients' Lipschitz constants."""
    constants = array_of("lipschitz", given).astype(np.float64)
    right = "one number of at least 0, or one a client"
    if constants.ndim > 1 or not constants.size:
        raise InputError("lipschitz", Verbatim(f"of shape {constants.shape}"), right)
    if constants.min() < 0:
        raise InputError("lipschitz", float(constants.min()), right)
    largest = float(constants.max())
    if largest < low:
        raise InputError(
            "lipschitz", largest, "at least 1 for some client: the theorem assumes L ≥ 1"
        )
    return largest
