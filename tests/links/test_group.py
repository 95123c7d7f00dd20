from __future__ import annotations

import math

import numpy as np
import pytest

from fedpbc.errors import InputError
from fedpbc.links import SCHEMES
from tests.links.drawing import dense, draw, probabilities, timetable, within_error

NO_OUTAGES = {"mean_down": 0.0}


def group_states(rounds: int, groups: int, **options: object) -> np.ndarray:
    """Whether each group is up: one client of each, whose own link always is."""
    return draw("group", np.ones(groups), rounds, groups=groups, **options)


def test_groups_fail_together_and_only_together() -> None:
    up = draw("group", np.ones(30), 300, groups=3)
    for number in range(3):
        assert (up[:, number::3] == up[:, [number]]).all()
    states = up[:, :3]
    assert not (states == states[:, [0]]).all()
    assert (states != states[0]).any(axis=0).all()


def test_mean_times_up_and_down() -> None:
    groups, rounds, mean_up, mean_down = 400, 1500, 12.0, 4.0
    up = group_states(rounds, groups, mean_up=mean_up, mean_down=mean_down)
    before, after = up[:-1], up[1:]
    assert within_error((~after & before).sum() / before.sum(), 1 / mean_up, before.sum())
    assert within_error((after & ~before).sum() / (~before).sum(), 1 / mean_down, (~before).sum())
    # Stationary from the first round on.
    assert within_error(up[0].mean(), 0.75, groups)
    correlation = 1 - 1 / mean_up - 1 / mean_down
    draws = up.size * (1 - correlation) / (1 + correlation)
    assert within_error(up.mean(), 0.75, draws)


def test_groups_that_alternate() -> None:
    up = group_states(20, 50, mean_up=1.0, mean_down=1.0)
    assert (up[1:] != up[:-1]).all()
    assert 0 < up[0].sum() < 50


def test_without_outages_it_is_bernoulli() -> None:
    p = np.linspace(0, 1, 50)
    assert (draw("group", p, 60, **NO_OUTAGES) == draw("bernoulli", p, 60)).all()
    assert probabilities(timetable("group", p, 60, **NO_OUTAGES)).tolist() == [p.tolist()] * 60


def test_a_link_is_its_own_and_its_groups() -> None:
    p = np.linspace(0, 1, 50)
    both = draw("group", p, 200)
    assert (both == (draw("bernoulli", p, 200) & draw("group", np.ones(50), 200))).all()
    assert not SCHEMES["group"].independent


def groups_of(assign: str, clients: int, groups: int, **data: object) -> list[set[int]]:
    """The clients with the same history, the largest set first."""
    up = draw("group", np.ones(clients), 600, groups=groups, assign=assign, mean_up=5.0, **data)
    same: dict[bytes, set[int]] = {}
    for client, link in enumerate(up.T):
        same.setdefault(link.tobytes(), set()).add(client)
    return sorted(same.values(), key=lambda clients: (-len(clients), min(clients)))


def test_who_is_in_which_group() -> None:
    assert groups_of("round_robin", 7, 3) == [{0, 3, 6}, {1, 4}, {2, 5}]
    assert groups_of("round_robin", 2, 5) == [{0}, {1}]
    shares = [[0.9, 0.1, 0], [0, 0.4, 0.6], [0.5, 0.5, 0], [0.1, 0.8, 0.1], [0, 0, 1]]
    assert groups_of("class", 5, 3, class_shares=shares) == [{0, 2}, {1, 4}, {3}]
    # Classes 0 and 2 of three share a group if there are two.
    assert groups_of("class", 5, 2, class_shares=shares) == [{0, 1, 2, 4}, {3}]


def test_random_groups() -> None:
    found = groups_of("random", 3000, 3)
    assert len(found) == 3
    sizes = np.array([len(clients) for clients in found]) / 3000
    assert within_error(sizes, np.full(3, 1 / 3), 3000)


def test_away_for_a_while() -> None:
    clients, rounds, away, mean_away = 1000, 400, 0.05, 5.0
    table = timetable(
        "group", np.ones(clients), rounds, away=away, mean_away=mean_away, **NO_OUTAGES
    )
    present = dense(table)
    before, after = present[:-1], present[1:]
    assert within_error((~after & before).sum() / before.sum(), away, before.sum())
    assert within_error((after & ~before).sum() / (~before).sum(), 1 / mean_away, (~before).sum())
    # 1 / (1 + 0.05 · 5) = 0.8, from the first round on; everyone comes back.
    assert probabilities(table) == pytest.approx(np.full((rounds, clients), 0.8))
    assert within_error(present[0].mean(), 0.8, clients)
    assert (present.any(axis=0) & ~present.all(axis=0)).all()
    # Clients go away on their own, not together.
    rest = present - 0.8
    limit = 5 * 0.16 / math.sqrt(rest.size * (1 - 0.75) / (1 + 0.75))
    assert abs((rest[:, 1:] * rest[:, :-1]).mean()) < limit


def test_coming_late() -> None:
    clients = 20_000
    table = timetable("group", np.ones(clients), 30, late=0.4, late_rounds=20, **NO_OUTAGES)
    up = dense(table)
    # Once there, they stay.
    assert (up[1:] >= up[:-1]).all()
    assert up[20:].all()
    expected = [0.6 + 0.4 * min(t, 20) / 20 for t in range(30)]
    assert probabilities(table)[:, 0] == pytest.approx(expected)
    assert within_error(up.mean(axis=1), expected, clients)
    # Uniform over rounds 1 to 20.
    arrivals = np.bincount(up.argmax(axis=0), minlength=21) / clients
    assert within_error(arrivals, [0.6] + [0.02] * 20, clients)


def test_everyone_late() -> None:
    up = draw("group", np.ones(100), 10, late=1.0, late_rounds=5, **NO_OUTAGES)
    assert not up[0].any()
    assert up[5:].all()


def test_leaving_for_good() -> None:
    clients = 20_000
    table = timetable("group", np.ones(clients), 40, leave=0.1, **NO_OUTAGES)
    up = dense(table)
    assert up[0].all()
    # Once gone, they stay away.
    assert (up[1:] <= up[:-1]).all()
    expected = [0.9**t for t in range(40)]
    assert probabilities(table)[:, 0] == pytest.approx(expected)
    assert within_error(up.mean(axis=1), expected, clients)


def test_leaving_at_once() -> None:
    up = draw("group", np.ones(100), 12, late=0.5, late_rounds=10, leave=1.0, **NO_OUTAGES)
    # Everyone is there for exactly one round.
    assert up[:11].sum(axis=0).tolist() == [1] * 100
    assert not up[11].any()


def test_leaving_counts_from_the_arrival() -> None:
    clients, leave = 20_000, 0.2
    table = timetable(
        "group", np.ones(clients), 12, late=0.8, late_rounds=4, leave=leave, **NO_OUTAGES
    )
    # By hand: 20 % there at first, and 20 % more in each of rounds 1 to 4.
    expected = [
        sum(0.2 * (1 - leave) ** (t - arrival) for arrival in range(min(t, 4) + 1))
        for t in range(12)
    ]
    assert probabilities(table)[:, 0] == pytest.approx(expected)
    assert within_error(dense(table).mean(axis=1), expected, clients)


def test_everything_at_once_has_the_exact_probability() -> None:
    clients, rounds, seeds = 400, 30, 40
    p = np.linspace(0.1, 1, clients)
    options = {"groups": 400, "mean_up": 6.0, "mean_down": 2.0, "away": 0.1, "mean_away": 2.5}
    options |= {"late": 0.5, "late_rounds": 10, "leave": 0.02}
    tables = [timetable("group", p, rounds, seed=seed, **options) for seed in range(seeds)]
    shares = np.mean([dense(table) for table in tables], axis=0)
    exact = probabilities(tables[0])
    # 0.75 of the groups are up, 0.8 of the clients present, half of them there at first.
    assert exact[0] == pytest.approx(p * 0.75 * 0.8 * 0.5)
    assert exact[1] == pytest.approx(p * 0.75 * 0.8 * (0.5 * 0.98 + 0.05))
    # Each client has a group of its own here: clients are independent.
    error = np.sqrt((exact * (1 - exact)).sum(axis=1) / seeds) / clients
    assert (np.abs(shares.mean(axis=1) - exact.mean(axis=1)) < 5 * error).all()


def test_rates_of_outages() -> None:
    # A group's state is shared: over seeds, and over groups of few clients.
    p, seeds = np.linspace(0.2, 0.9, 6), 3000
    up = np.array([draw("group", p, 4, groups=2, seed=seed) for seed in range(seeds)])
    exact = probabilities(timetable("group", p, 4, groups=2))
    assert exact == pytest.approx(np.tile(0.8 * p, (4, 1)))
    assert within_error(up.mean(axis=0), exact, seeds)


def test_it_needs_classes_only_for_groups_by_class() -> None:
    with pytest.raises(InputError) as caught:
        timetable("group", [0.5, 0.5], 3, assign="class")
    assert str(caught.value) == (
        "links.assign is 'class', but should be 'round_robin' or 'random': this task has no classes"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 0}, "links.groups is 0, but should be at least 1"),
        ({"groups": 2.5}, "links.groups is 2.5, but should be a valid integer"),
        ({"assign": "block"}, "links.assign is 'block', but should be 'round_robin', 'random' or"),
        ({"mean_up": 0.5}, "links.mean_up is 0.5, but should be at least 1"),
        ({"mean_down": 0.5}, "links.mean_down is 0.5, but should be 0 (no outages), or at least"),
        ({"mean_down": -1}, "links.mean_down is -1, but should be at least 0"),
        ({"away": 1.5}, "links.away is 1.5, but should be at most 1"),
        ({"mean_away": 0}, "links.mean_away is 0, but should be at least 1"),
        ({"late": -0.5}, "links.late is -0.5, but should be at least 0"),
        ({"late_rounds": 0}, "links.late_rounds is 0, but should be at least 1"),
        ({"leave": 2}, "links.leave is 2, but should be at most 1"),
        ({"outage": 0.1}, "links.outage is unknown: use one of groups, assign, mean_up"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        timetable("group", [0.5], 5, **options)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("tiny", [5e-324, 1e-300, 1e-17])
@pytest.mark.filterwarnings("error")
def test_tiny_probabilities(tiny: float) -> None:
    p = np.ones(20)
    for option in ("late", "leave", "away"):
        assert draw("group", p, 20, **NO_OUTAGES, **{option: tiny}).all()
