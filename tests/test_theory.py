from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpbc import theory
from fedpbc.errors import InputError

probability = st.floats(0, 1)
links = st.lists(probability, min_size=1, max_size=8)
quick = settings(deadline=None, max_examples=60)

GRADIENT = {
    "gap": 1.0,
    "step_size": 0.01,
    "local_steps": 3,
    "rounds": 100,
    "lipschitz": 2.0,
    "rho": 0.5,
    "sigma": 1.0,
    "zeta": 2.0,
}
CONSENSUS = {
    "step_size": 0.01,
    "local_steps": 3,
    "rho": 0.25,
    "sigma": 1.0,
    "zeta": 2.0,
    "beta": 3.0,
    "mean_squared_gradient": 0.5,
}


def subsets(p: list[float]) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Every possible A with its probability."""
    for size in range(len(p) + 1):
        for chosen in combinations(range(len(p)), size):
            up = math.prod(p[i] for i in chosen)
            yield up * math.prod(1 - p[i] for i in range(len(p)) if i not in chosen), chosen


# Bias of FedAvg


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
    # Who gets through more often counts more.
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

    def share(own: Fraction, others_low: int, others_high: int) -> float:
        count = np.convolve(chances(others_low, low), chances(others_high, high))
        return float(own) * float((count / np.arange(1, m + 1)).sum())

    np.testing.assert_allclose(weights[:500], share(low, 499, 500), rtol=1e-11)
    np.testing.assert_allclose(weights[500:], share(high, 500, 499), rtol=1e-11)


def test_weights_agree_with_sampled_rounds() -> None:
    rng = np.random.default_rng(7)
    p = rng.uniform(0.05, 0.9, size=30)
    active = rng.random((50_000, 30)) < p
    active = active[active.any(axis=1)]
    shares = active / active.sum(axis=1, keepdims=True)
    error = shares.std(axis=0) / math.sqrt(len(shares))
    # 30 comparisons within 4.5 standard errors: a right formula fails once in 5,000 seeds.
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


# Mixing


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


# Staleness and consensus


def test_staleness_by_hand() -> None:
    timetable = [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert theory.staleness(timetable).tolist() == [
        [1, 1, 1],
        [1, 2, 2],
        [1, 3, 3],
        [2, 1, 4],
        [3, 2, 5],
    ]
    assert theory.staleness(np.array(timetable, dtype=bool)).dtype == np.int64


@quick
@given(
    st.integers(1, 12).flatmap(
        lambda m: st.lists(st.lists(st.booleans(), min_size=m, max_size=m), min_size=1)
    )
)
def test_staleness_is_one_after_contact_and_grows_by_one_without(
    timetable: list[list[bool]],
) -> None:
    ages = theory.staleness(timetable)
    assert (ages[0] == 1).all()
    np.testing.assert_array_equal(ages[1:], np.where(timetable, 1, ages[:-1] + 1))


def test_staleness_stays_below_its_bound_on_average() -> None:
    rng = np.random.default_rng(5)
    c = 0.1
    p = c + 0.3 * rng.random((400, 300))  # differs by round and client, never below c
    ages = theory.staleness(rng.random((400, 300)) < p)
    assert ages.mean() < theory.expected_staleness_bound(c) == pytest.approx(10)
    # With every link exactly at c the bound is what it tends to: the mean of 300 independent
    # clients' ages (deviation √90) within 4 standard errors.
    last = theory.staleness(rng.random((400, 300)) < c)[-1]
    assert abs(last.mean() - 10) < 4 * math.sqrt(90 / 300)


def test_consensus_error_by_hand() -> None:
    assert theory.consensus_error([[1.0, 2.0]]) == 0
    assert theory.consensus_error(np.full((5, 3), 0.1)) == pytest.approx(0, abs=1e-30)
    assert theory.consensus_error([[1, 0], [-1, 0], [0, 3], [0, -3]]) == 5


def test_consensus_error_of_single_precision_models_keeps_its_digits() -> None:
    models = np.array([[1e4], [1e4 + 1 / 128]], dtype=np.float32)
    assert theory.consensus_error(models) == 1 / 256**2


def test_consensus_error_is_the_papers_matrix_form() -> None:
    models = np.random.default_rng(0).normal(size=(6, 4))
    centring = np.eye(6) - np.full((6, 6), 1 / 6)
    expected = np.linalg.norm(models.T @ centring) ** 2 / 6
    assert theory.consensus_error(models) == pytest.approx(expected, rel=1e-13)


# Theorem 1


def test_kappa_by_hand() -> None:
    assert theory.kappa(0.3, 5.0, 1) == 0
    assert theory.kappa(0.3, 5.0, 2) == 1
    # s = 3, x = ηL: ((1+x)³ - 1 - 3x) / (3x²) = 1 + x/3
    assert theory.kappa(0.3, 5.0, 3) == pytest.approx(1.5, rel=1e-15)


@quick
@given(st.floats(1e-12, 2), st.integers(2, 60))
def test_kappa_is_its_definition(x: float, steps: int) -> None:
    exact = Fraction(x)
    expected = ((1 + exact) ** steps - 1 - steps * exact) / (math.comb(steps, 2) * exact**2)
    assert theory.kappa(x, 1.0, steps) == pytest.approx(float(expected), rel=1e-13)


def test_kappa_of_many_steps() -> None:
    x, steps = Fraction(1, 4), 1000
    expected = ((1 + x) ** steps - 1 - steps * x) / (math.comb(steps, 2) * x**2)
    assert theory.kappa(0.25, 1.0, steps) == pytest.approx(float(expected), rel=1e-12)
    assert theory.kappa(1e-15, 1.0, 10**6) == pytest.approx(1, rel=1e-8)
    assert theory.kappa(1.0, 1e300, 5) == math.inf


def test_kappa_takes_the_worst_client() -> None:
    assert theory.kappa(0.1, [1.0, 7.0, 0.0], 4) == theory.kappa(0.1, 7.0, 4)
    assert theory.kappa(0.1, [1.0, 7.0], 4) > theory.kappa(0.1, 1.0, 4) > 1


@quick
@given(st.floats(0, 0.999999), st.floats(1, 100), st.integers(1, 50), st.floats(0, 10))
def test_largest_step_size_meets_the_condition_and_no_larger_one_does(
    rho: float, lipschitz: float, steps: int, beta: float
) -> None:
    def slack(step: float) -> float:
        k = theory.kappa(step, lipschitz, steps)
        fixed = 108 * lipschitz**2 * steps**3 * (beta**2 + 1)
        return (1 - math.sqrt(rho)) / (fixed * (1 + k**2 * lipschitz**2)) / step - 1

    step = theory.largest_step_size(rho, lipschitz, steps, beta)
    assert slack(step) == pytest.approx(0, abs=1e-9 if rho > 0.999 else 1e-11)
    assert slack(step * (1 - 1e-8)) > 0 > slack(step * (1 + 1e-8))


def test_largest_step_size_by_hand() -> None:
    # s = 1: κ = 0, so (1 - 1/2) / (108·4·(3²+1)); of several clients the largest L counts.
    assert theory.largest_step_size(0.25, [1.0, 2.0], 1, 3.0) == pytest.approx(
        0.5 / 4320, rel=1e-15
    )
    # s = 2: κ = 1 for every η.
    assert theory.largest_step_size(0.0, 1.0, 2) == pytest.approx(1 / (108 * 8 * 2), rel=1e-15)


def test_gradient_bound_by_hand() -> None:
    # s = 2: κ = 1. 6·3/(0.01·2·100) + 54·0.01·2·2·(4 + 1 + 2)·(1 + 4)
    values = {**GRADIENT, "gap": 3.0, "local_steps": 2, "rho": 0.25}
    assert theory.gradient_bound(**values) == pytest.approx(9 + 75.6, rel=1e-14)
    exact = theory.gradient_bound(**{**values, "sigma": 0.0, "zeta": 0.0})
    assert exact == pytest.approx(9, rel=1e-14)


def test_gradient_bound_uses_kappa_of_its_own_step() -> None:
    k = theory.kappa(0.01, 2.0, 3)
    expected = (
        6 / (0.01 * 3 * 100) + 54 * 0.01 * 3 * 2 * (4 * k**2 + 1 + 1 / (1 - math.sqrt(0.5))) * 5
    )
    assert theory.gradient_bound(**GRADIENT) == pytest.approx(expected, rel=1e-13)
    assert theory.gradient_bound(**{**GRADIENT, "lipschitz": [1.0, 2.0]}) == pytest.approx(expected)


def test_gradient_bound_falls_with_rounds_and_rises_with_worse_links() -> None:
    bound = theory.gradient_bound(**GRADIENT)
    assert theory.gradient_bound(**{**GRADIENT, "rounds": 1000}) < bound
    assert theory.gradient_bound(**{**GRADIENT, "rho": 0.9}) > bound
    assert theory.gradient_bound(**{**GRADIENT, "step_size": 1e200}) == math.inf


def test_consensus_bound_by_hand() -> None:
    # ρη²s²/(1-√ρ)² = 0.25·0.0009/0.25; times 12 + 54·4 + 54·10·0.5
    assert theory.consensus_bound(**CONSENSUS) == pytest.approx(0.0009 * 498, rel=1e-13)
    assert theory.consensus_bound(**{**CONSENSUS, "rho": 0.0}) == 0


def test_fedpbc_on_quadratics_keeps_both_promises() -> None:
    """Exact gradients on ½‖x − u_i‖²: L = 1, σ = 0, and ∇F_i − ∇F = ū − u_i, so β = 0."""
    rng = np.random.default_rng(1)
    m, steps, rounds, p = 10, 3, 2000, np.linspace(0.2, 0.9, 10)
    targets = rng.normal(size=(m, 4)) + np.arange(m)[:, None]
    centre = targets.mean(axis=0)
    zeta = math.sqrt(np.square(targets - centre).sum(axis=1).mean())
    rho = theory.mixing_rate(p)
    step = theory.largest_step_size(rho, 1.0, steps)
    models, apart, slopes = np.zeros((m, 4)), [], []
    for active in rng.random((rounds, m)) < p:
        apart.append(theory.consensus_error(models))
        slopes.append(float(np.square(models.mean(axis=0) - centre).sum()))
        models = targets + (1 - step) ** steps * (models - targets)
        models = theory.mixing_matrix(np.flatnonzero(active).tolist(), m) @ models
    assert np.mean(slopes) <= theory.gradient_bound(
        gap=slopes[0] / 2,
        step_size=step,
        local_steps=steps,
        rounds=rounds,
        lipschitz=1.0,
        rho=rho,
        sigma=0.0,
        zeta=zeta,
    )
    assert np.mean(apart) <= theory.consensus_bound(
        step_size=step,
        local_steps=steps,
        rho=rho,
        sigma=0.0,
        zeta=zeta,
        beta=0.0,
        mean_squared_gradient=float(np.mean(slopes)),
    )


# Wrong input


@pytest.mark.parametrize(
    "p",
    [
        [],
        0.5,
        [[0.5]],
        [1.1],
        [-0.1, 0.5],
        [math.nan],
        [math.inf],
        ["a"],
        [[0.1], [0.1, 0.2]],
        None,
    ],
)
@pytest.mark.parametrize(
    "function",
    [
        theory.fedavg_weights,
        theory.mean_square_mixing,
        theory.mixing_rate,
        lambda p: theory.fedavg_limit(p, [1.0]),
    ],
)
def test_wrong_probabilities(function: Callable[[Any], Any], p: Any) -> None:
    with pytest.raises(InputError, match=r"^p is ") as caught:
        function(p)
    assert "\n" not in str(caught.value)


def test_no_link_ever_up_leaves_fedavg_undefined() -> None:
    with pytest.raises(InputError, match="0 for every client"):
        theory.fedavg_weights([0.0, 0.0])
    with pytest.raises(InputError, match="0 for every client"):
        theory.fedavg_limit([0.0], [1.0])


def test_the_message_names_the_client() -> None:
    with pytest.raises(InputError, match=r"p is 1\.5 for client 2, but should be a probability"):
        theory.fedavg_weights([0.1, 0.2, 1.5])


@pytest.mark.parametrize("targets", [1.0, [1.0], [1.0, math.nan], [[1.0, 2.0]], ["a", "b"]])
def test_wrong_targets(targets: Any) -> None:
    with pytest.raises(InputError, match=r"^targets is "):
        theory.fedavg_limit([0.5, 0.5], targets)


@pytest.mark.parametrize("active", [[3], [-1], [0, 0], [0.5], [True, False, True], None, ["a"]])
def test_wrong_active_clients(active: Any) -> None:
    with pytest.raises(InputError, match=r"^active is "):
        theory.mixing_matrix(active, 3)


@pytest.mark.parametrize("clients", [0, -1, 2.5, None])
def test_wrong_client_counts(clients: Any) -> None:
    with pytest.raises(InputError, match=r"^clients is "):
        theory.mixing_matrix([], clients)
    with pytest.raises(InputError, match=r"^clients is "):
        theory.mixing_rate_bound(0.5, clients)


@pytest.mark.parametrize("c", [-0.1, 1.1, math.nan, None, "a"])
def test_wrong_lowest_probabilities(c: Any) -> None:
    with pytest.raises(InputError, match=r"^c is "):
        theory.mixing_rate_bound(c, 3)
    with pytest.raises(InputError, match=r"^c is "):
        theory.expected_staleness_bound(c)


def test_a_link_that_may_never_be_up_has_no_staleness_bound() -> None:
    with pytest.raises(InputError, match="above 0 and at most 1"):
        theory.expected_staleness_bound(0)


@pytest.mark.parametrize(
    "timetable", [[], [[]], [True], [[0, 2]], [[0.5]], [[math.nan]], [["a"]], np.zeros((0, 3))]
)
def test_wrong_timetables(timetable: Any) -> None:
    with pytest.raises(InputError, match=r"^timetable is "):
        theory.staleness(timetable)


@pytest.mark.parametrize("models", [[], [1.0], [[]], [[math.inf]], [["a"]], [[1.0], [1.0, 2.0]]])
def test_wrong_models(models: Any) -> None:
    with pytest.raises(InputError, match=r"^models is "):
        theory.consensus_error(models)


@pytest.mark.parametrize("lipschitz", [[], [[1.0]], [1.0, -1.0], math.nan, "a", None])
def test_wrong_lipschitz_constants(lipschitz: Any) -> None:
    for call in (
        lambda: theory.kappa(0.1, lipschitz, 3),
        lambda: theory.largest_step_size(0.5, lipschitz, 3),
        lambda: theory.gradient_bound(**{**GRADIENT, "lipschitz": lipschitz}),
    ):
        with pytest.raises(InputError, match=r"^lipschitz is "):
            call()


def test_the_theorem_assumes_a_lipschitz_constant_of_at_least_one() -> None:
    with pytest.raises(InputError, match="L ≥ 1"):
        theory.largest_step_size(0.5, 0.9, 3)
    with pytest.raises(InputError, match="L ≥ 1"):
        theory.gradient_bound(**{**GRADIENT, "lipschitz": [0.5, 0.9]})


@pytest.mark.parametrize("rho", [1, 1.5, -0.1, math.nan, None])
def test_wrong_rates(rho: Any) -> None:
    for call in (
        lambda: theory.largest_step_size(rho, 1.0, 3),
        lambda: theory.gradient_bound(**{**GRADIENT, "rho": rho}),
        lambda: theory.consensus_bound(**{**CONSENSUS, "rho": rho}),
    ):
        with pytest.raises(InputError, match=r"^rho is "):
            call()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *[(name, bad) for name in ("step_size", "local_steps", "rounds") for bad in (0, -1, None)],
        *[
            (name, bad)
            for name in ("gap", "sigma", "zeta")
            for bad in (-1, math.nan, math.inf, "a")
        ],
        ("local_steps", 1.5),
    ],
)
def test_wrong_arguments_of_the_gradient_bound(name: str, wrong: Any) -> None:
    with pytest.raises(InputError, match=f"^{name} is "):
        theory.gradient_bound(**{**GRADIENT, name: wrong})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *[(name, bad) for name in ("step_size", "local_steps") for bad in (0, -1, None)],
        *[
            (name, bad)
            for name in ("sigma", "zeta", "beta", "mean_squared_gradient")
            for bad in (-1, math.nan, math.inf)
        ],
    ],
)
def test_wrong_arguments_of_the_consensus_bound(name: str, wrong: Any) -> None:
    with pytest.raises(InputError, match=f"^{name} is "):
        theory.consensus_bound(**{**CONSENSUS, name: wrong})


def test_wrong_arguments_of_kappa_and_the_step_size() -> None:
    with pytest.raises(InputError, match=r"^step_size is 0"):
        theory.kappa(0, 1.0, 3)
    with pytest.raises(InputError, match=r"^local_steps is 0"):
        theory.kappa(0.1, 1.0, 0)
    with pytest.raises(InputError, match=r"^local_steps is "):
        theory.largest_step_size(0.5, 1.0, 0)
    with pytest.raises(InputError, match=r"^beta is "):
        theory.largest_step_size(0.5, 1.0, 3, -1)
