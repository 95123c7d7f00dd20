"""Links, arguments and all subsets of clients, for the tests of the theory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

probability = st.floats(0, 1)
links = st.lists(probability, min_size=1, max_size=8)
quick = settings(deadline=None, max_examples=60)

GRADIENT: dict[str, Any] = {
    "gap": 1.0,
    "step_size": 0.01,
    "local_steps": 3,
    "rounds": 100,
    "lipschitz": 2.0,
    "rho": 0.5,
    "sigma": 1.0,
    "zeta": 2.0,
}
CONSENSUS: dict[str, Any] = {
    "step_size": 0.01,
    "local_steps": 3,
    "rho": 0.25,
    "sigma": 1.0,
    "zeta": 2.0,
    "beta": 3.0,
    "mean_squared_gradient": 0.5,
}


def subsets(p: list[float]) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Every possible A with its probability."""
    for size in range(len(p) + 1):
        for chosen in combinations(range(len(p)), size):
            up = math.prod(p[i] for i in chosen)
            yield up * math.prod(1 - p[i] for i in range(len(p)) if i not in chosen), chosen
