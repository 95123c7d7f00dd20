from __future__ import annotations

import math

import numpy as np
import pytest

from fedpbc.errors import InputError
from fedpbc.links import SCHEMES
from tests.links.drawing import draw, probabilities, timetable, within_error


def original(p: float, t: int) -> float:
    """The authors' rule, as their code writes it."""
    value = (0.3 * math.sin(2 * math.pi / 20 * t) + 0.7) * p
    return 0.0 if value < 0.1 else value


def test_probabilities_by_hand() -> None:
    # At t = 0, 5, 10 and 15 the sine is 0, 1, 0 and −1: factors of 0.7, 1, 0.7 and 0.4.
    p = probabilities(timetable("interleaved_sine", [1.0, 0.3, 0.2, 0.12, 0.05], 16))[::5]
    assert p == pytest.approx(
        np.array(
            [
                [0.7, 0.21, 0.14, 0, 0],
                [1.0, 0.30, 0.20, 0.12, 0],
                [0.7, 0.21, 0.14, 0, 0],
                [0.4, 0.12, 0, 0, 0],
            ]
        )
    )


@pytest.mark.parametrize("chance", [1.0, 0.5, 0.2601, 0.2, 0.11, 0.09])
def test_the_authors_rule(chance: float) -> None:
    p = probabilities(timetable("interleaved_sine", [chance], 60))[:, 0]
    assert p == pytest.approx([original(chance, t) for t in range(60)])


def test_who_is_cut() -> None:
    # The sine's least factor is 0.4: from 0.25 nobody is cut, below 0.1 everybody always.
    p = probabilities(timetable("interleaved_sine", [0.251, 0.249, 0.0999], 20))
    assert (p[:, 0] > 0).all()
    assert np.flatnonzero(p[:, 1] == 0).tolist() == [15]
    assert not p[:, 2].any()


def test_the_cut_itself_stays() -> None:
    # Only what is below it is cut: 0.5 · 1 at the crest.
    p = probabilities(timetable("interleaved_sine", [0.5], 20, cut=0.5))[:, 0]
    assert np.flatnonzero(p).tolist() == [5]


def test_the_figures_numbers() -> None:
    # The notebook of the authors' figure has γ = 0.4 and a cut of 0.2.
    p = probabilities(timetable("interleaved_sine", [0.5], 16, gamma=0.4, cut=0.2))[::5, 0]
    assert p == pytest.approx([0.3, 0.5, 0.3, 0.0])


def test_without_a_cut_it_is_a_sine() -> None:
    p = np.linspace(0, 1, 50)
    same = {"gamma": 0.7, "period": 30.0}
    sine = draw("bernoulli_varying", p, 60, **same)
    assert (draw("interleaved_sine", p, 60, cut=0.0, **same) == sine).all()
    # γ above 1/2 takes the sine below 0, where it is clipped.
    assert not probabilities(timetable("interleaved_sine", [1.0], 40, gamma=1.0, cut=0.0))[15]


def test_every_rounds_rate() -> None:
    clients = 5000
    table = timetable("interleaved_sine", np.full(clients, 0.2), 60)
    shares = np.array([table.up(t).mean() for t in range(60)])
    expected = probabilities(table)[:, 0]
    assert (expected == 0).any()
    assert within_error(shares, expected, clients)
    assert SCHEMES["interleaved_sine"].independent


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cut": 1.5}, "links.cut is 1.5, but should be at most 1"),
        ({"cut": -1}, "links.cut is -1, but should be at least 0"),
        ({"gamma": 2}, "links.gamma is 2, but should be at most 1"),
        ({"period": 0}, "links.period is 0, but should be at least 1"),
        ({"low": 0.4}, "links.low is unknown: use one of gamma, period, cut"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        timetable("interleaved_sine", [0.5], 5, **options)
    assert str(caught.value).startswith(message)
