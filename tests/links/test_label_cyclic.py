from __future__ import annotations

import math

import numpy as np
import pytest

from fedpbc.errors import InputError
from fedpbc.links import SCHEMES, Setting, Timetable
from tests.links.drawing import dense, probabilities, within_error


def table(class_shares: object, rounds: int, **options: object) -> Timetable:
    shares = np.asarray(class_shares, dtype=float)
    setting = Setting(1, len(shares), rounds, class_shares=shares)
    return Timetable.draw("label_cyclic", setting, options)


def up_rounds(class_shares: object, rounds: int, **options: object) -> list[list[int]]:
    """The rounds in which each client is up."""
    up = dense(table(class_shares, rounds, **options))
    return [np.flatnonzero(link).tolist() for link in up.T]


def test_windows_by_hand() -> None:
    # Four classes share a day of eight rounds; the second day is like the first.
    assert up_rounds(np.eye(4), 16, day=8) == [
        [0, 1, 8, 9],
        [2, 3, 10, 11],
        [4, 5, 12, 13],
        [6, 7, 14, 15],
    ]


def test_the_majority_class_counts_and_of_several_the_lowest() -> None:
    shares = [[0.3, 0.4, 0.3], [0.5, 0, 0.5], [0, 0.5, 0.5]]
    assert up_rounds(shares, 3, day=3) == [[1], [0], [1]]


def test_a_day_that_the_classes_do_not_divide() -> None:
    # Ten classes and 24 rounds: windows of 2.4 rounds hold two or three, and every round is in one.
    rounds = up_rounds(np.eye(10), 24)
    assert rounds[:3] == [[0, 1, 2], [3, 4], [5, 6, 7]]
    assert sorted(t for window in rounds for t in window) == list(range(24))
    for label, window in enumerate(rounds):
        assert window == [t for t in range(24) if label <= t * 10 / 24 < label + 1]


@pytest.mark.parametrize(("classes", "day"), [(10, 24), (100, 24), (7, 3), (1, 24), (5, 1), (3, 7)])
def test_every_class_has_its_time_of_day(classes: int, day: int) -> None:
    rounds = up_rounds(np.eye(classes), day, day=day)
    assert all(rounds)
    if classes <= day:
        assert sorted(t for window in rounds for t in window) == list(range(day))
    else:
        # One round each: the first at or after the start of the window.
        assert rounds == [[math.ceil(c * day / classes) % day] for c in range(classes)]


def test_windows_of_a_given_length() -> None:
    # Half of the day, from each class's own start; past midnight it goes on in the morning.
    assert up_rounds(np.eye(4), 8, day=8, window=0.5) == [
        [0, 1, 2, 3],
        [2, 3, 4, 5],
        [4, 5, 6, 7],
        [0, 1, 6, 7],
    ]
    assert up_rounds(np.eye(2), 4, day=4, window=1.0) == [[0, 1, 2, 3]] * 2
    # However short, it has one round.
    assert up_rounds(np.eye(2), 4, day=4, window=1e-9) == [[0], [2]]
    # One over the number of classes is the default, also where it is no exact number.
    for classes in (3, 7, 10):
        eye = np.eye(classes)
        assert up_rounds(eye, 24, window=1 / classes) == up_rounds(eye, 24)


def test_probabilities_inside_and_outside() -> None:
    p = probabilities(table(np.eye(2), 4, day=4, inside=0.9, outside=0.25))
    assert p.tolist() == [[0.9, 0.25], [0.9, 0.25], [0.25, 0.9], [0.25, 0.9]]


def test_rates() -> None:
    clients, rounds = 3000, 48
    shares = np.random.default_rng(0).dirichlet(np.full(10, 0.3), size=clients)
    drawn = table(shares, rounds, inside=0.8, outside=0.3)
    up, p = dense(drawn), probabilities(drawn)
    assert set(np.unique(p)) == {0.3, 0.8}
    for chance in (0.3, 0.8):
        of_chance = up[p == chance]
        assert within_error(of_chance.mean(), chance, of_chance.size)
    # Independent, given the probabilities.
    assert SCHEMES["label_cyclic"].independent
    rest = up - p
    assert abs((rest[1:] * rest[:-1]).mean()) < 5 * 0.25 / np.sqrt(rest.size)
    assert abs((rest[:, 1:] * rest[:, :-1]).mean()) < 5 * 0.25 / np.sqrt(rest.size)


def test_equal_probabilities_are_bernoulli() -> None:
    setting = Setting(1, 50, 60, np.full(50, 0.4), class_shares=np.eye(50))
    options = {"inside": 0.4, "outside": 0.4}
    drawn = dense(Timetable.draw("label_cyclic", setting, options))
    assert (drawn == dense(Timetable.draw("bernoulli", setting))).all()


def test_it_needs_classes() -> None:
    setting = Setting(1, 2, 3, np.array([0.5, 0.5]), option="downlink")
    with pytest.raises(InputError) as caught:
        Timetable.draw("label_cyclic", setting)
    assert str(caught.value) == (
        "downlink is 'label_cyclic', but should be a scheme that needs no classes: "
        "this task has none, and downlink.p cannot replace them"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"day": 0}, "links.day is 0, but should be at least 1"),
        ({"day": 2.5}, "links.day is 2.5, but should be a valid integer"),
        ({"window": 1.5}, "links.window is 1.5, but should be at most 1"),
        ({"inside": 2}, "links.inside is 2, but should be at most 1"),
        ({"outside": -1}, "links.outside is -1, but should be at least 0"),
        ({"beta": 0.5}, "links.beta is unknown: use one of day, window, inside, outside"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        table([[1.0]], 5, **options)
    assert str(caught.value).startswith(message)
