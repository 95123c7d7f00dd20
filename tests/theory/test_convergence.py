from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc import theory
from tests.theory.cases import GRADIENT, quick


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
