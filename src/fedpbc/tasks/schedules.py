"""Step-size schedules: by what factor η_0 is multiplied in round t.

All are above 0 in every round: SCAFFOLD and others divide by η_t.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

__all__ = ["HORIZONS", "SCHEDULES", "ScheduleName"]

ScheduleName = Literal[
    "constant", "inverse_sqrt", "inverse", "exponential", "step", "linear", "cosine"
]


def constant(t: int, rounds: int) -> float:
    """1."""
    return 1.0


def inverse_sqrt(t: int, rounds: int) -> float:
    """1/√(t/10 + 1), the paper's."""
    return 1 / math.sqrt(t / 10 + 1)


def inverse(t: int, rounds: int) -> float:
    """1/(t/R + 1)."""
    return 1 / (t / rounds + 1)


def exponential(t: int, rounds: int) -> float:
    """Halved every R rounds, little by little; no smaller than a millionth."""
    return max(math.pow(0.5, min(t / rounds, 64.0)), 1e-6)


def step(t: int, rounds: int) -> float:
    """Divided by ten every R rounds; no smaller than a millionth."""
    return math.pow(0.1, min(t // rounds, 6))


def linear(t: int, rounds: int) -> float:
    """From 1 to 1/R over R rounds, and 1/R from there on."""
    return 1 - min(t, rounds - 1) / rounds


def cosine(t: int, rounds: int) -> float:
    """Half a cosine from 1 towards 0 over R rounds; its last value from there on."""
    return (1 + math.cos(math.pi * min(t, rounds - 1) / rounds)) / 2


SCHEDULES: dict[str, Callable[[int, int], float]] = {
    function.__name__: function
    for function in (constant, inverse_sqrt, inverse, exponential, step, linear, cosine)
}
"""The schedules by name, as functions of the round and R."""
HORIZONS = ("inverse", "exponential", "step", "linear", "cosine")
"""Those that use R."""
