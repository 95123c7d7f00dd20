from __future__ import annotations

import math

import numpy as np
import pytest

from fedpbc.links.markov import step
from tests.links.drawing import draw, timetable


def transitions(p: float) -> tuple[float, float]:
    """OFF→ON and ON→OFF, as the specification writes them."""
    if 0.05 * (1 - p) <= p:
        return 0.05, 0.05 * (1 - p) / p
    return p / (1 - p), 1.0


# 1/21 is where the two cases meet.
PROBABILITIES = [0.01, 1 / 21, 0.1, 0.5, 0.9]


@pytest.mark.parametrize("p", PROBABILITIES)
def test_transitions(p: float) -> None:
    up = draw("markov", np.full(1000, p), 600)
    before, after = up[:-1], up[1:]
    on, off = transitions(p)
    for q, moved, chances in (
        (on, (after & ~before).sum(), (~before).sum()),
        (off, (~after & before).sum(), before.sum()),
    ):
        # Given the states before, moves are independent: a share of n has error √(q(1−q)/n).
        assert chances > 1000
        assert abs(moved / chances - q) <= 5 * math.sqrt(max(0, q * (1 - q)) / chances) + 1e-12


@pytest.mark.parametrize("p", PROBABILITIES)
def test_the_share_of_rounds_is_p(p: float) -> None:
    clients, rounds = 1000, 600
    up = draw("markov", np.full(clients, p), rounds)
    # A chain's mean has (1+λ)/(1−λ) times the variance of independent draws, λ = 1 − q* − q.
    correlation = 1 - sum(transitions(p))
    factor = (1 + correlation) / (1 - correlation)
    error = math.sqrt(p * (1 - p) / (clients * rounds) * factor)
    assert abs(up.mean() - p) < 5 * error
    # It starts there too, instead of drifting towards it.
    assert abs(up[0].mean() - p) < 5 * math.sqrt(p * (1 - p) / clients)


def test_never_and_always() -> None:
    up = draw("markov", [0.0, 1.0, 1e-310], 300)
    assert not up[:, 0].any()
    assert up[:, 1].all()
    assert not up[:, 2].any()


def test_probabilities_are_p() -> None:
    p = [0.02, 0.6]
    assert [row.tolist() for row in timetable("markov", p, 4).probabilities()] == [p] * 4


def test_one_step_of_the_chain() -> None:
    up, p = np.array([False, True, True]), np.array([0.5, 0.5, 0.5])
    assert step(up, p, draws=np.array([0.04, 0.94, 0.96])).tolist() == [True, True, False]
