from __future__ import annotations

import math

import numpy as np

from tests.links.drawing import draw


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
