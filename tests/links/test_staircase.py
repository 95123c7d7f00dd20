from __future__ import annotations

import numpy as np
import pytest

from fedpbc.errors import InputError
from fedpbc.links import SCHEMES
from tests.links.drawing import draw, probabilities, timetable, within_error


def test_probabilities_by_hand() -> None:
    p = probabilities(timetable("staircase", [0.5, 1.0], 45))
    for t in range(45):
        # The authors' rule: (t // 10) mod 2.
        assert p[t].tolist() == ([0.2, 0.4] if t // 10 % 2 == 1 else [0.5, 1.0])


def test_options() -> None:
    p = probabilities(timetable("staircase", [0.8], 8, low=0.0, period=4.0))
    assert p[:, 0].tolist() == [0.8, 0.8, 0.0, 0.0, 0.8, 0.8, 0.0, 0.0]
    # An odd period: the first half has the round in the middle.
    p = probabilities(timetable("staircase", [0.8], 7, low=0.5, period=5.0))
    assert p[:, 0].tolist() == [0.8, 0.8, 0.8, 0.4, 0.4, 0.8, 0.8]


def test_every_rounds_rate_follows_the_steps() -> None:
    clients = 5000
    table = timetable("staircase", np.full(clients, 0.6), 60)
    shares = np.array([table.up(t).mean() for t in range(60)])
    assert within_error(shares, probabilities(table)[:, 0], clients)


def test_corner_cases() -> None:
    p = np.linspace(0, 1, 50)
    assert (draw("staircase", p, 60, low=1.0) == draw("bernoulli", p, 60)).all()
    # With a period of one round there is no second half.
    assert (draw("staircase", p, 60, period=1.0) == draw("bernoulli", p, 60)).all()
    up = draw("staircase", [0.0, 1.0], 40, low=0.0)
    assert not up[:, 0].any()
    assert up[:, 1].tolist() == ([True] * 10 + [False] * 10) * 2


def test_links_are_independent() -> None:
    assert SCHEMES["staircase"].independent
    up = draw("staircase", np.full(100, 0.3), 2000, low=1.0) - 0.3
    limit = 5 * 0.3 * 0.7 / np.sqrt(up.size)
    assert abs((up[1:] * up[:-1]).mean()) < limit
    assert abs((up[:, 1:] * up[:, :-1]).mean()) < limit


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 1.5}, "links.low is 1.5, but should be at most 1"),
        ({"low": -0.1}, "links.low is -0.1, but should be at least 0"),
        ({"period": 0.5}, "links.period is 0.5, but should be at least 1"),
        ({"period": "day"}, "links.period is 'day', but should be a valid number"),
        ({"gamma": 0.4}, "links.gamma is unknown: use one of low, period"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        timetable("staircase", [0.5], 5, **options)
    assert str(caught.value).startswith(message)
