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


def of_given(minutes, count=17):
    """Settings given: 300 rounds of 1 s, 20 evaluations of 0.5 s; the last one is slow."""
    names = ["fedavg", *(f"other{k}" for k in range(count - 2)), "fedpbc"]
    return choose_schedule(
        {**dict.fromkeys(names, Speed(1.0, 0.5)), "fedpbc": Speed(10.0, 0.5)},
        Speed(10.0, 0.5),
        rounds=300,
        seconds=60 * minutes,
        jobs=2,
        fixed_rounds=True,
        tuned=True,
    )


def test_algorithms_whose_settings_are_given_are_all_compared_if_there_is_time():
    # All with every link up: 16 × 310.6 + 2 × 3010.6 = 10,991 s a seed, of 80 % on two cores.
    plan = of_given(600)
    assert (len(plan.algorithms), plan.finalists, plan.seeds, plan.ceiling) == (17, 16, 5, True)
    assert plan.seconds == pytest.approx(5 * 10_991 / 2, rel=1e-4)
    # Then the ceiling goes, then what is slow, and what is last only after that.
    kept = [(len(p.algorithms), p.finalists, p.seeds, p.ceiling) for p in map(of_given, (300, 200))]
    assert kept == [(17, 16, 3, False), (16, 15, 3, False)]
    plan = of_given(120)
    assert plan.algorithms == ("fedavg", *(f"other{k}" for k in range(15)))
    assert (plan.finalists, plan.seeds) == (11, 3)
    # Without tuning, as much as fits into the time is compared.
    assert plan.seconds <= 0.8 * 60 * 120 < plan.seconds + 3 * 310.6 / 2
    assert of_given(1).finalists == 2


def test_the_ceiling_is_given_up_after_seeds_and_candidates():
    """With every link up a round takes fifteen times as long: it is most of a plan."""

    def plan_of(seconds):
        names = ["fedavg", "fedau", "mimic", "mifa", "scaffold"]
        return choose_schedule(
            dict.fromkeys(names, Speed(0.01, 0.0)),
            Speed(0.15, 0.0),
            rounds=300,
            seconds=seconds,
            jobs=2,
            fixed_rounds=True,
        )

    plans = [plan_of(seconds) for seconds in range(220, 700, 20)]
    assert all(plan.ceiling for plan in plans)
    assert [plan.seeds for plan in plans] == sorted(plan.seeds for plan in plans)
    assert {plan.seeds for plan in plans} == {3, 4, 5, 6, 8, 10}
    # Where the smallest of these does not fit, there is room for more of the others.
    assert not plan_of(200).ceiling
    assert plan_of(200).candidates > plan_of(220).candidates
    # A search of four candidates, and three seeds, with every link up; all on two cores.
    of_ceiling = (4 * 33 + 2 * 67 + 2 * 200) * 0.15 + 8 * 0.6 + 3 * (45 + 0.6)
    assert of_ceiling / 2 < plan_of(220).seconds <= 0.8 * 220


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
    # FedAvg and the ceiling; ten seeds.
    assert plan.seconds == pytest.approx(10 * ((10 + 10 + 0.6) + (20 + 10 + 0.6)))


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
    compared = 10 * ((1.8 + 0.6) + (18 + 0.6))
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
