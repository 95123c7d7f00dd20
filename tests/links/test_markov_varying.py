from __future__ import annotations

import math

import numpy as np
import pytest

from tests.links.drawing import draw, timetable
from tests.links.test_markov import transitions


def chance(p: float, t: int) -> float:
    return p * (0.6 + 0.4 * math.sin(2 * math.pi * t / 40))


@pytest.mark.parametrize("p", [0.05, 0.5, 1.0])
def test_every_rounds_rate_follows_the_chain(p: float) -> None:
    clients, rounds = 4000, 120
    up = draw("markov_varying", np.full(clients, p), rounds)
    rate = chance(p, 0)
    for t in range(rounds):
        if t > 0:
            on, off = transitions(chance(p, t))
            rate = rate * (1 - off) + (1 - rate) * on
        error = math.sqrt(max(0, rate * (1 - rate)) / clients)
        assert abs(up[t].mean() - rate) <= 5 * error + 1e-12


def test_the_state_is_carried() -> None:
    p, clients = 0.5, 4000
    up = draw("markov_varying", np.full(clients, p), 120)
    independent = draw("bernoulli_varying", np.full(clients, p), 120)
    for t in range(1, 120):
        stay = 1 - transitions(chance(p, t))[1]
        for links, expected in ((up, stay), (independent, chance(p, t))):
            before = links[t - 1].sum()
            error = math.sqrt(expected * (1 - expected) / before)
            assert abs((links[t] & links[t - 1]).sum() / before - expected) < 5 * error
    # The two differ by far more than that error: links that are up mostly stay up.
    assert (up[1:] & up[:-1]).sum() / up[:-1].sum() > 0.8
    assert (independent[1:] & independent[:-1]).sum() / independent[:-1].sum() < 0.45


def test_without_variation_it_is_markov() -> None:
    p = np.linspace(0, 1, 50)
    assert (draw("markov_varying", p, 80, gamma=0.0) == draw("markov", p, 80)).all()


def test_p_of_zero_and_gamma_of_one() -> None:
    up = draw("markov_varying", [0.0] * 100 + [1.0] * 100, 80, gamma=1.0)
    assert not up[:, :100].any()
    # p^t = max(0, sin): 0 in the second half of each period, so links are down then.
    assert up[19, 100:].any()
    assert not up[21:40].any()
    assert up[59, 100:].any()


def test_probabilities_are_the_papers() -> None:
    given = np.array([p[0] for p in timetable("markov_varying", [0.5], 50).probabilities()])
    assert given == pytest.approx([chance(0.5, t) for t in range(50)])
