"""Intervals: by hand, and by how often they cover what they should."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.experiments.intervals import (
    Interval,
    ratio_interval,
    seeds_to_tell,
    t_interval,
    t_quantile,
)
from fedpbc.experiments.recovered import NOT_ABOVE, recovered


@pytest.mark.parametrize(
    # From a printed table of Student's t, two-sided, 95 %.
    ("seeds", "quantile"),
    [(2, 12.706), (3, 4.303), (4, 3.182), (5, 2.776), (10, 2.262), (31, 2.042)],
)
def test_quantiles_are_those_of_the_printed_table(seeds, quantile):
    assert t_quantile(seeds) == pytest.approx(quantile, abs=5e-4)


def test_an_interval_by_hand():
    # Mean 3, deviation √((4 + 1 + 0 + 1 + 4)/4) = √2.5, by √5: 0.7071; times 2.776.
    interval = t_interval([1, 2, 3, 4, 5])
    assert interval.low == pytest.approx(3 - 2.776445 * math.sqrt(0.5))
    assert interval.high == pytest.approx(3 + 2.776445 * math.sqrt(0.5))
    # Two seeds, 12.7 × s/√2: s/√2 is half their distance.
    interval = t_interval([0.1, 0.3])
    assert interval.low == pytest.approx(0.2 - 12.7062 * 0.1, abs=1e-5)


def test_seeds_to_tell():
    # A textbook's table for paired t tests at 5 % with a power of 80 %: an effect of one deviation
    # takes 10 pairs, of half a deviation 34 (the exact power differs by less than one pair).
    assert [seeds_to_tell(d, 1.0, 100) for d in (1.0, -1.0, 0.5)] == [10, 10, 34]
    assert seeds_to_tell(0.2, 1.0, 100) is None
    assert seeds_to_tell(0.2, 1.0, 1000) == 199
    assert seeds_to_tell(0.0, 1.0, 100) is None


def test_seeds_to_tell_find_a_difference_four_times_in_five():
    values = np.random.default_rng(5).normal(0.7, 1.0, (20_000, seeds_to_tell(0.7, 1.0, 100)))
    half = t_quantile(values.shape[1]) * values.std(axis=1, ddof=1) / math.sqrt(values.shape[1])
    assert (values.mean(axis=1) > half).mean() == pytest.approx(0.8, abs=0.03)


def test_few_values():
    assert t_interval([]) is None
    assert t_interval([0.3]) is None
    assert t_interval([0.3, 0.3, 0.3]) == Interval(0.3, 0.3)


def test_numbers_near_the_largest_stay_finite():
    interval = t_interval([1.7e308, -1.7e308])
    assert math.isfinite(interval.low)
    assert math.isfinite(interval.high)
    share = ratio_interval([1.7e308, -1.7e308, 1.0], [1e-300, 1e-300, 1e-300])
    assert math.isfinite(share.low)
    assert math.isfinite(share.high)


def test_fieller_by_hand():
    # N: mean 2, variance 1; D: mean 10, variance 3/4; covariance 3/4.
    n, d = [1.0, 2.0, 3.0], [9.5, 9.5, 11.0]
    t = 4.302653
    var_d = (0.25 + 0.25 + 1) / 2
    cov = (-1 * -0.5 + 0 + 1 * 1) / 2
    k = t * t / 3
    a, b, c = 100 - k * var_d, 20 - k * cov, 4 - k * 1
    root = math.sqrt(b * b - a * c)
    interval = ratio_interval(n, d)
    assert (interval.low, interval.high) == pytest.approx(((b - root) / a, (b + root) / a))
    # At both ends the t-interval of N − r D ends at 0.
    for r in (interval.low, interval.high):
        rest = t_interval([x - r * y for x, y in zip(n, d, strict=True)])
        assert min(abs(rest.low), abs(rest.high)) == pytest.approx(0, abs=1e-9)


def test_fieller_needs_a_denominator_above_the_noise():
    # Mean 1, deviation 1/√3 × 4.303 > 1.
    assert ratio_interval([1.0, 1.0, 1.0], [0.0, 1.0, 2.0]) is None
    assert ratio_interval([1.0, 1.0, 1.0], [0.9, 1.0, 1.1]) is not None
    assert ratio_interval([1.0, 1.0, 1.0], [-0.9, -1.0, -1.1]) is None
    assert ratio_interval([1.0], [1.0]) is None
    assert ratio_interval([0.0, 0.0], [0.0, 0.0]) is None


def test_what_is_recovered():
    share = recovered([0, 1, 2], [0.01, 0.02, 0.03], [0.095, 0.095, 0.11])
    assert share.value == pytest.approx(0.2)
    assert share.interval.low < 0.2 < share.interval.high
    # One seed: the share, and no interval; undefined where the ceiling is not higher.
    assert recovered([4], [0.02], [0.1]).value == pytest.approx(0.2)
    assert recovered([4], [0.02], [0.1]).interval is None
    assert recovered([4], [0.02], [-0.1]).why_undefined == NOT_ABOVE
    # FedAvg and the ceiling are 0 and 1 by definition.
    assert recovered([0, 1], [0.0, 0.0], [0.1, 0.11], exact=True).value == 0
    one = recovered([0, 1], [0.1, 0.11], [0.1, 0.11], exact=True)
    assert (one.value, one.interval) == (1, None)
    assert recovered([], [], []).value is None


CASES = 4000
"""A coverage of 95 % is then known to 0.35 points (one deviation)."""

DRAWS: dict[str, tuple[Callable[[np.random.Generator, tuple[int, int]], np.ndarray], float]] = {
    "normal": (lambda rng, shape: rng.normal(0.02, 0.03, shape), 0.02),
    "heavy tails": (lambda rng, shape: rng.standard_t(5, shape), 0.0),
    "somewhat skewed": (lambda rng, shape: rng.gamma(8, 1, shape), 8.0),
    "accuracies of 2,000 samples": (
        lambda rng, shape: (
            (rng.binomial(2000, 0.82, shape) - rng.binomial(2000, 0.8, shape)) / 2000
        ),
        0.02,
    ),
}


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_intervals_cover_the_mean_as_often_as_they_say(seeds, draw):
    make, mean = DRAWS[draw]
    samples = make(np.random.default_rng(seeds), (CASES, seeds)).tolist()
    covered = np.mean([mean in t_interval(values) for values in samples])
    assert 0.93 <= covered <= 0.97


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("correlation", [-0.5, 0.0, 0.9])
def test_fieller_covers_the_ratio_as_often_as_it_says(seeds, correlation):
    rng = np.random.default_rng(seeds)
    first, second = rng.normal(size=(2, CASES, seeds))
    n = 0.06 + 0.02 * first
    d = 0.10 + 0.01 * (correlation * first + math.sqrt(1 - correlation**2) * second)
    intervals = [ratio_interval(*pair) for pair in zip(n.tolist(), d.tolist(), strict=True)]
    defined = [interval for interval in intervals if interval is not None]
    assert len(defined) > 0.995 * CASES
    assert 0.93 <= np.mean([0.6 in interval for interval in defined]) <= 0.97


def test_fieller_where_the_denominator_is_often_within_noise():
    """It is then undefined, and where it is defined it still covers the ratio."""
    rng = np.random.default_rng(1)
    n = 0.03 + 0.02 * rng.normal(size=(CASES, 5))
    d = 0.04 + 0.02 * rng.normal(size=(CASES, 5))
    intervals = [ratio_interval(*pair) for pair in zip(n.tolist(), d.tolist(), strict=True)]
    defined = [interval for interval in intervals if interval is not None]
    assert 0.5 * CASES < len(defined) < 0.99 * CASES
    assert 0.93 <= np.mean([0.75 in interval for interval in defined]) <= 0.97


finite = st.floats(-1, 1, allow_subnormal=False)


@given(st.lists(st.tuples(finite, finite), min_size=2, max_size=8))
def test_fieller_has_the_ratio_and_scales_with_the_numerator(pairs):
    n, d = [x for x, _ in pairs], [2 + y for _, y in pairs]
    interval = ratio_interval(n, d)
    if interval is not None:
        ratio = sum(n) / sum(d)
        assert interval.low - 1e-7 <= ratio <= interval.high + 1e-7
        double = ratio_interval([2 * x for x in n], d)
        assert double.low == pytest.approx(2 * interval.low, abs=1e-6)
        assert double.high == pytest.approx(2 * interval.high, abs=1e-6)
    assert (interval is None) == (not t_interval(d).low > 0)
