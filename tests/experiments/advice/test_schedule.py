from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.experiments.advice.schedule import Speed, affordable_finalists, choose_schedule

NAMES = ["fedavg", "fedau", "mimic", "fedpbc", *(f"other{k}" for k in range(10))]


def speeds(round_seconds, evaluation=0.01):
    found = {name: Speed(round_seconds, evaluation) for name in NAMES}
    return {**found, "fedpbc": Speed(10 * round_seconds, evaluation)}


def chosen(round_seconds, minutes=10.0, *, fixed=True, rounds=300, tuned=False, slowdown=1.0):
    return choose_schedule(
        speeds(round_seconds),
        Speed(10 * round_seconds, 0.01),
        rounds=rounds,
        seconds=60 * minutes,
        jobs=2,
        fixed_rounds=fixed,
        tuned=tuned,
        slowdown=slowdown,
    )


def test_a_quick_task_gets_everything():
    plan = chosen(0.0005)
    assert plan.complete
    assert plan.algorithms == tuple(NAMES)
    assert (plan.candidates, plan.finalists, plan.seeds, plan.ceiling) == (18, 8, 10, True)


def test_the_search_has_its_part_of_the_time():
    """What is slower than it was expected to be must not take the comparison's time."""
    plan = chosen(0.02)
    assert plan.candidates > 1
    assert 0 < plan.tuning_seconds < 480
    # It is told with which part of the time it was planned, of all but the reserve.
    assert chosen(0.02, 20).tuning_seconds > plan.tuning_seconds
    assert chosen(0.02, tuned=True).tuning_seconds == 0


def test_a_busy_machine_gets_less_done():
    idle, busy = chosen(0.02), chosen(0.02, slowdown=4.0)
    assert busy.seconds <= 480  # as it will take there
    assert busy.tuning_seconds <= 480
    assert (busy.candidates, busy.seeds) < (idle.candidates, idle.seeds)
    assert busy == replace(
        chosen(0.02, 10 / 4),
        seconds=4 * chosen(0.02, 10 / 4).seconds,
        tuning_seconds=4 * chosen(0.02, 10 / 4).tuning_seconds,
    )


def test_a_slow_task_gets_what_fits():
    plan = chosen(0.3)
    assert not plan.complete
    assert plan.algorithms[:3] == ("fedavg", "fedau", "mimic")
    assert "fedpbc" not in plan.algorithms
    assert plan.rounds == 300
    assert plan.seconds <= 480


def test_rounds_are_only_given_up_if_they_were_not_given():
    assert chosen(3.0, fixed=True).rounds == 300
    assert chosen(3.0, fixed=False).rounds == 75


def test_rounds_are_given_up_before_tuning():
    assert chosen(0.4, fixed=True).candidates == 1
    plan = chosen(0.4, fixed=False)
    assert plan.candidates > 1
    assert plan.rounds == 150


def test_known_settings_are_not_tuned():
    assert chosen(0.0005, tuned=True).candidates == 1
    assert chosen(0.02, tuned=True).seeds >= chosen(0.02).seeds


def test_the_price_of_a_hand_worked_plan():
    """One algorithm, nothing tuned: a round of 0.1 s, 20 evaluations of 0.5 s, 0.6 s to start."""
    plan = choose_schedule(
        {"fedavg": Speed(0.1, 0.5)},
        Speed(0.2, 0.5),
        rounds=100,
        seconds=10_000,
        jobs=1,
        fixed_rounds=True,
        tuned=True,
    )
    # FedAvg once as finalist and once as baseline, and the ceiling; ten seeds.
    assert plan.seconds == pytest.approx(10 * (2 * (10 + 10 + 0.6) + (20 + 10 + 0.6)))


def test_the_price_of_a_search_with_a_ceiling_of_its_own():
    """18 rounds, scored after 2, 6 and 18: 18, 6 and 2 candidates of FedAvg, 4, 2 and 2 of it."""
    plan = choose_schedule(
        {"fedavg": Speed(0.1, 0.0, scoring=0.01)},
        Speed(1.0, 0.0, scoring=0.02),
        rounds=18,
        seconds=10_000,
        jobs=1,
        fixed_rounds=True,
    )
    assert (plan.candidates, plan.ceiling_candidates) == (18, 4)
    usual = (18 * 2 + 6 * 4 + 2 * 12) * (0.1 + 0.01) + 26 * 0.6
    ceiling = (4 * 2 + 2 * 4 + 2 * 12) * (1.0 + 0.02) + 8 * 0.6
    compared = 10 * (2 * (1.8 + 0.6) + (18 + 0.6))
    assert plan.seconds == pytest.approx(usual + ceiling + compared)
    # Where nothing is tuned, it has FedAvg's settings.
    assert chosen(0.0005, tuned=True).ceiling_candidates == 0


@given(st.floats(1e-4, 5.0), st.floats(0.5, 500.0), st.booleans(), st.booleans())
def test_a_plan_fits_or_is_the_smallest(round_seconds, minutes, fixed, tuned):
    plan = chosen(round_seconds, minutes, fixed=fixed, tuned=tuned)
    larger = chosen(round_seconds, 2 * minutes, fixed=fixed, tuned=tuned)
    assert plan.seconds <= 0.8 * 60 * minutes or plan.seconds <= larger.seconds
    assert plan.seeds >= 2
    assert plan.algorithms[0] == "fedavg"
    assert plan.rounds >= 50


@pytest.mark.parametrize(
    ("available", "seeds", "names", "has_ceiling"),
    [
        # Two seeds of 20 s and of 60 s with every link up, on two cores: 80 s.
        (81, 2, ["fedavg", "mifa"], True),
        (79, 2, ["fedavg", "mifa"], False),
        # It was not planned: only if there is time for all ten seeds.
        (401, 10, ["fedavg", "mifa"], True),
        (399, 10, ["fedavg", "mifa"], False),
        # The baseline and the best are compared in any case.
        (1, 2, ["fedavg", "mifa"], False),
    ],
)
def test_the_ceiling_is_compared_if_there_is_time(available, seeds, names, has_ceiling):
    found = affordable_finalists(
        ["fedavg", "mifa"],
        {"fedavg": 5.0, "mifa": 15.0},
        available=available,
        jobs=2,
        ceiling=60.0,
        ceiling_seeds=seeds,
    )
    assert found == (names, has_ceiling)
