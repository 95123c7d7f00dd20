from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpbc.errors import InputError
from tests.links.drawing import draw, timetable


def runs_of(links: np.ndarray) -> list[int]:
    """The rounds in which the link comes up."""
    return np.flatnonzero(links & ~np.append(False, links[:-1])).tolist()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.integers(1, 30), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_one_stretch_of_the_right_length_in_every_cycle(
    p: list[float], cycle: int, seed: int
) -> None:
    for name in ("cyclic", "cyclic_reset"):
        up = draw(name, p, 3 * cycle, seed=seed, cycle=cycle)
        for client, chance in enumerate(p):
            length = max(1, round(chance * cycle))
            for part in up[:, client].reshape(3, cycle):
                assert part.sum() == length
                assert len(runs_of(part)) == 1


def test_every_cycle_is_like_the_first() -> None:
    up = draw("cyclic", np.linspace(0, 1, 60), 350, cycle=100)
    assert (up[:100] == up[100:200]).all()
    assert (up[:100] == up[200:300]).all()
    assert (up[:50] == up[300:]).all()


@pytest.mark.parametrize("name", ["cyclic", "cyclic_reset"])
def test_the_wait_is_uniform_over_the_down_time(name: str) -> None:
    clients, cycle, length = 8000, 10, 7
    up = draw(name, np.full(clients, 0.7), cycle, cycle=cycle)
    waits = np.bincount(up.argmax(axis=0), minlength=cycle)
    # Waits of 0, 1, 2 and 3 rounds, a quarter of the clients each.
    assert waits[cycle - length + 1 :].sum() == 0
    error = math.sqrt(0.25 * 0.75 / clients)
    assert (np.abs(waits[: cycle - length + 1] / clients - 0.25) < 5 * error).all()


def test_up_times_are_rounded_as_python_rounds() -> None:
    # 2.5 and 3.5 go to the even neighbour; less than half a round is still one.
    p = [0.0, 0.04, 0.25, 0.35, 1.0]
    for name in ("cyclic", "cyclic_reset"):
        assert draw(name, p, 10, cycle=10).sum(axis=0).tolist() == [1, 1, 2, 4, 10]


def test_probabilities_are_the_ratio_of_active_rounds() -> None:
    for name in ("cyclic", "cyclic_reset"):
        table = timetable(name, [0.0, 0.26, 0.5], 30, cycle=10)
        for p in table.probabilities():
            assert p.tolist() == [0.1, 0.3, 0.5]
            assert p.tolist() == table.shares().tolist()


@pytest.mark.parametrize("wrong", [0, -5, 2.5, True, "ten"])
@pytest.mark.parametrize("name", ["cyclic", "cyclic_reset"])
def test_wrong_cycle(name: str, wrong: object) -> None:
    with pytest.raises(InputError, match=r"^links\.cycle is .*, but should be "):
        timetable(name, [0.5], 5, cycle=wrong)
