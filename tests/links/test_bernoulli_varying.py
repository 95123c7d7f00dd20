from __future__ import annotations

import math

import numpy as np
import pytest

from fedpbc.errors import InputError
from tests.links.drawing import draw, timetable


def test_every_rounds_rate_follows_the_sine() -> None:
    clients, p = 5000, 0.5
    up = draw("bernoulli_varying", np.full(clients, p), 90, gamma=0.4, period=30.0)
    for t in range(90):
        chance = p * (0.6 + 0.4 * math.sin(2 * math.pi * t / 30))
        error = math.sqrt(chance * (1 - chance) / clients)
        assert abs(up[t].mean() - chance) < 5 * error


def test_probabilities_by_hand() -> None:
    probabilities = [
        p.tolist() for p in timetable("bernoulli_varying", [0.5, 1.0], 31).probabilities()
    ]
    assert np.array(probabilities)[[0, 10, 20, 30]] == pytest.approx(
        np.array([[0.3, 0.6], [0.5, 1.0], [0.3, 0.6], [0.1, 0.2]])
    )


def test_without_variation_it_is_bernoulli() -> None:
    p = np.linspace(0, 1, 50)
    assert (draw("bernoulli_varying", p, 60, gamma=0.0) == draw("bernoulli", p, 60)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 1.5}, "links.gamma is 1.5, but should be at most 1"),
        ({"gamma": -0.1}, "links.gamma is -0.1, but should be at least 0"),
        ({"gamma": "much"}, "links.gamma is 'much', but should be a valid number"),
        ({"period": 0.0}, "links.period is 0.0, but should be at least 1"),
        ({"period": math.inf}, "links.period is inf"),
        ({"gama": 0.4}, "links.gama is unknown: use one of gamma, period"),
    ],
)
@pytest.mark.parametrize("name", ["bernoulli_varying", "markov_varying"])
def test_wrong_options(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        timetable(name, [0.5], 5, **options)
    assert message in str(caught.value)
