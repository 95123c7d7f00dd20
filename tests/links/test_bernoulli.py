from __future__ import annotations

import numpy as np

from fedpbc.links import Setting, Timetable
from tests.links.drawing import draw


def test_rates() -> None:
    rounds, p = 4000, np.linspace(0, 1, 101)
    # A share of n independent rounds has the standard error √(p(1−p)/n).
    error = np.sqrt(p * (1 - p) / rounds)
    assert (np.abs(draw("bernoulli", p, rounds).mean(axis=0) - p) <= 5 * error).all()


def test_rounds_and_clients_are_independent() -> None:
    up = draw("bernoulli", np.full(100, 0.3), 2000) - 0.3
    # The mean of n products of two independent deviations: standard error p(1−p)/√n.
    limit = 5 * 0.3 * 0.7 / np.sqrt(up.size)
    assert abs((up[1:] * up[:-1]).mean()) < limit
    assert abs((up[:, 1:] * up[:, :-1]).mean()) < limit


def test_probabilities_are_p() -> None:
    p = np.array([0.1, 0.7])
    table = Timetable.draw("bernoulli", Setting(1, 2, 3, p))
    assert [row.tolist() for row in table.probabilities()] == [p.tolist()] * 3
