from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc import theory
from fedpbc.links import Setting, Timetable
from fedpbc.theory.independent_links import IndependentLinks
from tests.theory.cases import quick, subsets


def test_constant_links_follow_proposition_one() -> None:
    p = np.array([0.5, 0.25, 0.9])
    expected = IndependentLinks.from_probabilities([p] * 7)
    assert expected.constant
    assert expected.rounds == 7
    np.testing.assert_allclose(expected.weights, theory.fedavg_weights(p), rtol=1e-14)
    assert expected.mixing_rate == theory.mixing_rate(p)
    assert expected.mixing_rate_attained
    assert expected.mixing_rate_bound == theory.mixing_rate_bound(0.25, 3)
    assert expected.staleness_limit.tolist() == [2, 4, 1 / 0.9]


def test_expected_staleness_by_hand() -> None:
    # t = 0: 1; then 1 + (1 - p)·age: 1.5, 1.75, 1.875 for p = 1/2, and 1 always for p = 1.
    expected = IndependentLinks.from_probabilities([np.array([0.5, 1.0])] * 3)
    assert expected.staleness.tolist() == [(1 + 1.5 + 1.75 + 1.875) / 4, 1]
    # Up for certain after a round that was down for certain: 1, 2, 1.
    expected = IndependentLinks.from_probabilities([np.array([0.0, 0.5]), np.array([1.0, 0.5])])
    assert expected.staleness[0] == 4 / 3
    assert expected.staleness_limit is None


def test_expected_staleness_tends_to_its_limit_and_stays_below_the_bound() -> None:
    expected = IndependentLinks.from_probabilities([np.array([0.2, 0.5])] * 5000)
    np.testing.assert_allclose(expected.staleness, [5, 2], rtol=2e-3)
    assert (expected.staleness < theory.expected_staleness_bound(0.2)).all()


def test_expected_staleness_is_the_mean_of_sampled_ones() -> None:
    rng = np.random.default_rng(4)
    p = rng.uniform(0.1, 0.6, size=30)
    samples = [theory.staleness(rng.random((30, 200)) < p[:, None]).mean(axis=0)]
    expected = IndependentLinks.from_probabilities([np.full(1, x) for x in p]).staleness[0]
    error = np.std(samples) / math.sqrt(200)
    assert abs(np.mean(samples) - expected) < 4 * error


def test_weights_of_changing_links_count_the_rounds_that_are_not_empty() -> None:
    rounds = [[0.9, 0.1], [0.2, 0.6], [0.0, 0.0], [0.2, 0.6]]
    sums, nonempty = np.zeros(2), 0.0
    for p in rounds:
        for chance, active in subsets(p):
            sums[list(active)] += chance / max(len(active), 1)
            nonempty += chance * bool(active)
    expected = IndependentLinks.from_probabilities(map(np.array, rounds))
    assert not expected.constant
    np.testing.assert_allclose(expected.weights, sums / nonempty, rtol=1e-13)
    np.testing.assert_allclose(expected.p, [0.325, 0.325])


@quick
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12))
def test_the_rate_falls_when_any_link_gets_better(pairs: list[tuple[float, float]]) -> None:
    """Why the lowest probabilities have the largest ρ."""
    low, high = (np.array([f(pair) for pair in pairs]) for f in (min, max))
    assert theory.mixing_rate(high) <= theory.mixing_rate(low) + 1e-12


def test_the_rate_is_the_largest_of_any_round() -> None:
    setting = Setting(1, clients=6, rounds=80, base_probabilities=np.linspace(0.2, 0.9, 6))
    timetable = Timetable.draw("bernoulli_varying", setting)
    expected = IndependentLinks.from_probabilities(timetable.probabilities())
    rates = [theory.mixing_rate(p) for p in timetable.probabilities()]
    assert expected.mixing_rate_attained
    assert expected.mixing_rate == pytest.approx(max(rates), rel=1e-12)
    np.testing.assert_allclose(timetable.lowest_probabilities(), expected.lowest)


def test_where_no_round_is_the_lowest_the_rate_is_above_all() -> None:
    expected = IndependentLinks.from_probabilities([np.array([0.2, 0.9]), np.array([0.9, 0.2])])
    assert not expected.mixing_rate_attained
    assert expected.mixing_rate == pytest.approx(1 - 0.04)
    assert expected.mixing_rate > theory.mixing_rate([0.2, 0.9])


def test_many_clients_have_a_bound_only() -> None:
    expected = IndependentLinks.from_probabilities([np.full(1001, 0.5)])
    assert expected.mixing_rate is None
    assert expected.mixing_rate_bound == theory.mixing_rate_bound(0.5, 1001)
    np.testing.assert_allclose(expected.weights, 1 / 1001, rtol=1e-12)


def test_links_that_are_never_up_have_no_weights() -> None:
    expected = IndependentLinks.from_probabilities([np.zeros(3)] * 2)
    assert expected.weights is None
    assert expected.mixing_rate == 1
    assert np.isinf(expected.staleness_limit).all()
