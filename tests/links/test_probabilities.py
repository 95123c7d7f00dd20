from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.errors import InputError
from fedpbc.links import class_rates, from_data, varying


@given(st.integers(0, 2**63 - 1), st.integers(1, 200), st.floats(0, 1e6))
def test_rates_are_shares(seed: int, classes: int, sigma: float) -> None:
    rates = class_rates(seed, classes, sigma)
    assert rates.shape == (classes,)
    assert (rates >= 0).all()
    assert rates.sum() == pytest.approx(1)


def test_rates_are_lognormal() -> None:
    # log r_c − mean(log r) is normal with variance σ²(1 − 1/C); over n = C draws the sample
    # variance has a standard error of σ² √(2/n).
    n, sigma = 20_000, 3.0
    logs = np.log(class_rates(7, n, sigma))
    centred = logs - logs.mean()
    assert abs(centred.var() - sigma**2) < 5 * sigma**2 * math.sqrt(2 / n)
    # A normal's third standardised moment is 0, with a standard error of √(6/n).
    assert abs((centred**3).mean() / centred.std() ** 3) < 5 * math.sqrt(6 / n)


def test_rates_depend_on_the_seed() -> None:
    assert class_rates(1, 10).tolist() == class_rates(1, 10).tolist()
    assert class_rates(1, 10).tolist() != class_rates(2, 10).tolist()


def test_from_data_by_hand() -> None:
    r = class_rates(3, 2, sigma=1.0)
    p = from_data(3, [[1, 0], [0, 1], [0.25, 0.75]], sigma=1.0, delta=0.0)
    assert p == pytest.approx([r[0], r[1], 0.25 * r[0] + 0.75 * r[1]])


def test_delta_is_a_floor() -> None:
    shares = np.eye(10)
    free, floored = from_data(1, shares, delta=0.0), from_data(1, shares, delta=0.02)
    assert (free < 0.02).any()
    assert floored == pytest.approx(np.maximum(free, 0.02))


def test_from_data_does_not_depend_on_the_other_clients() -> None:
    shares = np.random.default_rng(0).dirichlet(np.full(10, 0.1), size=1000)
    assert from_data(1, shares)[:7].tolist() == from_data(1, shares[:7]).tolist()


@given(
    st.floats(0, 1), st.integers(0, 10_000), st.floats(0, 1), st.floats(1, 1000)
)  # what may be set
def test_varying_is_a_probability(p: float, t: int, gamma: float, period: float) -> None:
    assert 0 <= varying(np.array([p]), t, gamma, period)[0] <= 1


def test_varying_by_hand() -> None:
    p = np.array([0.1, 1.0])
    assert varying(p, 0, 0.4, 40) == pytest.approx([0.06, 0.6])
    assert varying(p, 10, 0.4, 40) == pytest.approx([0.1, 1.0])
    assert varying(p, 30, 0.4, 40) == pytest.approx([0.02, 0.2])
    assert varying(p, 13, 0.0, 40) == pytest.approx(p)
    # With gamma 1 the sine falls below 0, and p is clipped.
    assert varying(p, 30, 1.0, 40).tolist() == [0.0, 0.0]


def test_varying_repeats_after_a_period() -> None:
    p = np.array([0.3])
    assert varying(p, 3, 0.4, 25) == pytest.approx(varying(p, 28, 0.4, 25))


@pytest.mark.parametrize(
    ("shares", "options", "message"),
    [
        ([0.5, 0.5], {}, "class_shares has shape (2,), but should be clients x classes"),
        (np.zeros((0, 3)), {}, "shape (0, 3)"),
        ([[2, 3]], {}, "class_shares must be at least 0 and add up to 1 for each client"),
        ([[1.5, -0.5]], {}, "must be at least 0 and add up to 1"),
        ([[math.nan, 1]], {}, "class_shares is not finite everywhere"),
        ([[1, 0]], {"delta": 1.5}, "delta is 1.5, but should be at most 1"),
        ([[1, 0]], {"sigma": -1}, "sigma is -1, but should be at least 0"),
        ([[1, 0]], {"sigma": math.nan}, "sigma is nan"),
    ],
)
def test_wrong_input(shares: object, options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError) as caught:
        from_data(1, shares, **options)
    assert message in str(caught.value)


def test_no_classes() -> None:
    with pytest.raises(InputError, match="classes is 0"):
        class_rates(1, 0)
