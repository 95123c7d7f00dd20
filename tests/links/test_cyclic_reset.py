from __future__ import annotations

import math

import numpy as np
import pytest

from fedpbc.errors import InputError
from tests.links.drawing import dense, draw, probabilities, timetable


def test_the_place_is_drawn_anew_in_every_cycle() -> None:
    clients, cycle = 8000, 10
    up = draw("cyclic_reset", np.full(clients, 0.7), 3 * cycle, cycle=cycle)
    places = up.reshape(3, cycle, clients).argmax(axis=1)
    # Four places, independent: the same in two cycles for a quarter of the clients.
    error = math.sqrt(0.25 * 0.75 / clients)
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert abs((places[one] == places[other]).mean() - 0.25) < 5 * error


def test_a_run_may_end_within_a_cycle() -> None:
    p = np.linspace(0, 1, 20)
    whole = draw("cyclic_reset", p, 200, cycle=100)
    assert (draw("cyclic_reset", p, 150, cycle=100) == whole[:150]).all()


def test_by_default_the_up_time_is_that_of_the_papers_text() -> None:
    p = np.linspace(0, 1, 20)
    assert (draw("cyclic_reset", p, 300) == draw("cyclic_reset", p, 300, gamma=0.0)).all()
    assert (draw("cyclic_reset", p, 300).sum(axis=0) == 3 * np.maximum(1, np.rint(100 * p))).all()


def test_the_up_time_is_that_of_p_at_the_start_of_its_cycle() -> None:
    """A cycle of 25 rounds with P = 100 begins where the sine is 0, 1, 0 and -1."""
    p, cycle = np.array([0.0, 0.02, 0.25, 0.6, 1.0]), 25
    table = timetable("cyclic_reset", p, 100, cycle=cycle, gamma=0.4, period=100.0)
    up = dense(table).reshape(4, cycle, len(p))
    for number, factor in enumerate((0.6, 1.0, 0.6, 0.2)):
        wanted = np.maximum(1, np.rint(p * factor * cycle))
        assert (up[number].sum(axis=0) == wanted).all()
        # In one piece, within its cycle: it begins once.
        begins = up[number] & ~np.vstack([np.zeros(len(p), bool), up[number][:-1]])
        assert (begins.sum(axis=0) == 1).all()
        # What fedavg_known divides by.
        shares = probabilities(table)[number * cycle : (number + 1) * cycle]
        assert (shares == wanted / cycle).all()


def test_the_papers_table_has_a_share_of_1_minus_gamma() -> None:
    """100 is a multiple of P/2: every cycle begins where the sine is 0."""
    p = np.arange(0.05, 1.01, 0.05)
    up = draw("cyclic_reset", p, 500, gamma=0.4)
    assert (up.sum(axis=0) == 5 * np.rint(60 * p)).all()


@pytest.mark.parametrize("wrong", [{"gamma": 1.5}, {"gamma": -0.1}, {"period": 0.5}])
def test_wrong_gamma_and_period(wrong: dict[str, float]) -> None:
    [name] = wrong
    with pytest.raises(InputError, match=rf"^links\.{name} is "):
        draw("cyclic_reset", [0.5], 5, **wrong)
