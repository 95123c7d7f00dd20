from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc import theory
from tests.theory.cases import links, probability, quick, subsets


@pytest.mark.parametrize("p2", np.linspace(0, 1, 41))
def test_two_clients_give_the_papers_curve(p2: float) -> None:
    limit = theory.fedavg_limit([0.5, p2], [0.0, 100.0])
    assert float(limit) == pytest.approx(150 * p2 / (p2 + 1), rel=1e-12, abs=1e-12)


@quick
@given(links.filter(lambda p: sum(p) > 1e-3))
def test_weights_are_the_average_over_all_subsets(p: list[float]) -> None:
    expected = np.zeros(len(p))
    for chance, active in subsets(p):
        for i in active:
            expected[i] += chance / len(active)
    expected /= 1 - math.prod(1 - x for x in p)
    np.testing.assert_allclose(theory.fedavg_weights(p), expected, rtol=1e-11, atol=1e-13)


@quick
@given(st.lists(st.fractions(0, 1, max_denominator=97), min_size=1, max_size=6).filter(any))
def test_weights_are_the_papers_formula_with_client_i_left_out(p: list[Fraction]) -> None:
    weights = theory.fedavg_weights([float(x) for x in p])
    nonempty = 1 - math.prod(1 - x for x in p)
    for i, weight in enumerate(weights):
        others = [x for k, x in enumerate(p) if k != i]
        bracket = Fraction(1)
        for j in range(2, len(p) + 1):
            products = sum(math.prod(chosen) for chosen in combinations(others, j - 1))
            bracket += Fraction((-1) ** (j + 1), j) * products
        assert weight == pytest.approx(float(p[i] * bracket / nonempty), rel=1e-12)


@quick
@given(st.lists(probability, min_size=1, max_size=60).filter(lambda p: max(p) > 1e-300))
def test_weights_sum_to_one_and_follow_the_links(p: list[float]) -> None:
    weights = theory.fedavg_weights(p)
    assert weights.sum() == pytest.approx(1, rel=1e-13)
    assert (weights >= 0).all()
    # A client that is up more often counts more.
    assert (np.diff(weights[np.argsort(p)]) >= -1e-14).all()


@pytest.mark.parametrize("m", [1, 2, 3, 10, 101, 1000])
@pytest.mark.parametrize("p", [1e-9, 0.02, 0.5, 1.0])
def test_equal_links_give_equal_weights(m: int, p: float) -> None:
    np.testing.assert_allclose(theory.fedavg_weights([p] * m), 1 / m, rtol=1e-13)


def test_certain_and_dead_links() -> None:
    assert theory.fedavg_weights([1, 0, 0]).tolist() == [1, 0, 0]
    np.testing.assert_allclose(theory.fedavg_weights([1, 1, 0]), [0.5, 0.5, 0], rtol=1e-14)
    # Client 1 shares with client 0 whenever it is up: p/2 for it and 1 - p/2 for the other.
    np.testing.assert_allclose(theory.fedavg_weights([1, 0.3]), [0.85, 0.15], rtol=1e-14)


def test_a_thousand_clients_of_two_kinds() -> None:
    """By exchangeability the weights follow from two binomials, summed exactly."""
    m, low, high = 1000, Fraction(1, 50), Fraction(9, 10)
    weights = theory.fedavg_weights([float(low)] * 500 + [float(high)] * 500)

    def chances(n: int, p: Fraction) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([float(math.comb(n, k) * p**k * (1 - p) ** (n - k)) for k in range(n + 1)])

    def share(p: Fraction, others_low: int, others_high: int) -> float:
        count = np.convolve(chances(others_low, low), chances(others_high, high))
        return float(p) * float((count / np.arange(1, m + 1)).sum())

    np.testing.assert_allclose(weights[:500], share(low, 499, 500), rtol=1e-11)
    np.testing.assert_allclose(weights[500:], share(high, 500, 499), rtol=1e-11)


def test_weights_agree_with_sampled_rounds() -> None:
    rng = np.random.default_rng(7)
    p = rng.uniform(0.05, 0.9, size=30)
    active = rng.random((50_000, 30)) < p
    active = active[active.any(axis=1)]
    shares = active / active.sum(axis=1, keepdims=True)
    error = shares.std(axis=0) / math.sqrt(len(shares))
    # 30 comparisons within 4.5 standard errors: a correct formula fails once in 5,000 seeds.
    assert (np.abs(shares.mean(axis=0) - theory.fedavg_weights(p)) < 4.5 * error).all()


def test_limit_is_where_simulated_fedavg_settles() -> None:
    """FedAvg itself on ½‖x − u_i‖², its expectation carried exactly from round to round."""
    p, step, local_steps = [0.9, 0.2, 0.5], 0.1, 3
    targets = np.array([[0.0, 1.0], [10.0, -1.0], [3.0, 2.0]])
    keep = (1 - step) ** local_steps
    x = np.zeros(2)
    for _ in range(300):
        after = np.zeros(2)
        for chance, active in subsets(p):
            moved = keep * x + (1 - keep) * targets[list(active)].mean(axis=0) if active else x
            after += chance * moved
        x = after
    np.testing.assert_allclose(theory.fedavg_limit(p, targets), x, rtol=1e-10)


def test_limit_has_the_shape_of_a_target() -> None:
    assert theory.fedavg_limit([0.5, 0.5], [1, 3]).shape == ()
    assert theory.fedavg_limit([0.5, 0.5], np.ones((2, 3))).shape == (3,)
    assert theory.fedavg_limit([0.5, 0.5], np.ones((2, 3, 4))).shape == (3, 4)
    np.testing.assert_allclose(theory.fedavg_limit([0.5, 0.5], [[1, 2], [3, 4]]), [2, 3])
