from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc import theory
from tests.theory.cases import links, probability, quick, subsets


@quick
@given(st.integers(1, 9).flatmap(lambda m: st.tuples(st.just(m), st.sets(st.integers(0, m - 1)))))
def test_mixing_matrix_averages_the_active_and_leaves_the_others(
    case: tuple[int, set[int]],
) -> None:
    m, active = case
    w = theory.mixing_matrix(active, m)
    models = np.arange(3.0 * m).reshape(m, 3) ** 2
    expected = models.copy()
    if active:
        expected[list(active)] = models[list(active)].mean(axis=0)
    np.testing.assert_allclose(w @ models, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(w @ w, w, atol=1e-15)
    np.testing.assert_array_equal(w, w.T)
    np.testing.assert_allclose(w.sum(axis=0), 1, rtol=1e-14)
    if len(active) < 2:
        np.testing.assert_array_equal(w, np.eye(m))


@quick
@given(links)
def test_mean_square_mixing_is_the_average_over_all_subsets(p: list[float]) -> None:
    expected = np.zeros((len(p), len(p)))
    for chance, active in subsets(p):
        w = theory.mixing_matrix(active, len(p))
        expected += chance * (w @ w)
    np.testing.assert_allclose(theory.mean_square_mixing(p), expected, rtol=1e-11, atol=1e-14)


@quick
@given(st.lists(probability, min_size=1, max_size=60))
def test_mean_square_mixing_is_symmetric_and_doubly_stochastic(p: list[float]) -> None:
    mixed = theory.mean_square_mixing(p)
    np.testing.assert_array_equal(mixed, mixed.T)
    np.testing.assert_allclose(mixed.sum(axis=1), 1, rtol=1e-12)
    assert (mixed >= 0).all()
    assert np.linalg.eigvalsh(mixed).min() > -1e-12


def test_mean_square_mixing_agrees_with_sampled_rounds() -> None:
    rng = np.random.default_rng(11)
    p = rng.uniform(0.1, 0.9, size=12)
    samples = np.array(
        [
            theory.mixing_matrix(np.flatnonzero(row).tolist(), 12)
            for row in rng.random((10_000, 12)) < p
        ]
    )
    error = samples.std(axis=0) / math.sqrt(len(samples))
    # 78 different entries within 5 standard errors: fails once in 20,000 seeds.
    assert (np.abs(samples.mean(axis=0) - theory.mean_square_mixing(p)) < 5 * error).all()


@pytest.mark.parametrize("p", [0.02, 0.5, 1.0])
def test_equal_links_mix_at_a_rate_known_in_closed_form(p: float) -> None:
    """With all p equal, M's off-diagonal is one number q, and λ₂ = 1 − m·q."""
    m, q = 20, Fraction(p)
    pair = sum(
        math.comb(m - 2, k) * q ** (k + 2) * (1 - q) ** (m - 2 - k) / (k + 2) for k in range(m - 1)
    )
    assert theory.mixing_rate([p] * m) == pytest.approx(float(1 - m * pair), abs=1e-13)


@quick
@given(probability, probability)
def test_two_clients_mix_when_both_are_up(p: float, q: float) -> None:
    assert theory.mixing_rate([p, q]) == pytest.approx(1 - p * q, abs=1e-14)


def test_rate_at_the_extremes() -> None:
    assert theory.mixing_rate([1.0] * 7) == pytest.approx(0, abs=1e-14)
    assert theory.mixing_rate([0.5, 0.5, 0.0]) == pytest.approx(1, abs=1e-15)
    assert theory.mixing_rate([0.0, 0.0]) == 1
    assert theory.mixing_rate([0.3]) == 0
    # Far below what 1 - λ could resolve if λ₂ were taken from M itself.
    assert 1 - theory.mixing_rate([1e-7, 1e-7]) == pytest.approx(1e-14, rel=0.02)


@quick
@given(st.lists(probability, min_size=1, max_size=40))
def test_rate_is_the_second_eigenvalue_and_within_its_bound(p: list[float]) -> None:
    rate = theory.mixing_rate(p)
    assert 0 <= rate <= theory.mixing_rate_bound(min(p), len(p)) + 1e-12
    if len(p) > 1:
        second = np.linalg.eigvalsh(theory.mean_square_mixing(p))[-2]
        assert rate == pytest.approx(second, abs=1e-12)


def test_sampled_matrices_mix_within_the_bound_and_at_the_exact_rate() -> None:
    rng = np.random.default_rng(3)
    p = rng.uniform(0.3, 0.9, size=10)
    samples = [
        theory.mixing_matrix(np.flatnonzero(row).tolist(), 10)
        for row in rng.random((10_000, 10)) < p
    ]
    mean = np.mean([w @ w for w in samples], axis=0)
    rate = np.linalg.eigvalsh(mean)[-2]
    assert rate < theory.mixing_rate_bound(float(p.min()), 10)
    # An entry's standard error is at most 0.5/√10000 = 0.005, and an eigenvalue moves by at most
    # the norm of the error, m = 10 times that if all entries erred alike.
    assert rate == pytest.approx(theory.mixing_rate(p), abs=0.05)


def test_disagreement_shrinks_by_at_least_the_rate() -> None:
    p = [0.9, 0.4, 0.6, 0.3]
    models = np.array([[1.0, 0.0], [0.0, 5.0], [-2.0, 1.0], [4.0, 4.0]])
    after = sum(
        chance * theory.consensus_error(theory.mixing_matrix(active, 4) @ models)
        for chance, active in subsets(p)
    )
    assert after <= theory.mixing_rate(p) * theory.consensus_error(models)


def test_rate_bound_by_hand() -> None:
    assert theory.mixing_rate_bound(1, 5) == 7 / 8
    assert theory.mixing_rate_bound(0, 5) == 1
    # c = 1/2, m = 2: 1 - (1/16)(3/4)²/8
    assert theory.mixing_rate_bound(0.5, 2) == 1 - 9 / 2048


def test_a_thousand_clients_mix() -> None:
    p = np.random.default_rng(0).uniform(0.02, 1, size=1000)
    p[:3] = 0, 1, 1
    mixed = theory.mean_square_mixing(p)
    np.testing.assert_allclose(mixed.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_array_equal(mixed, mixed.T)
    assert theory.mixing_rate(p) == pytest.approx(1, abs=1e-14)
    assert theory.mixing_rate(p[1:]) < theory.mixing_rate_bound(0.02, 999)
