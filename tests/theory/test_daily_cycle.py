from __future__ import annotations

import numpy as np
import pytest

from fedpbc.theory.daily_cycle import daily_cycle
from tests.theory.test_stationarity import drawn


def cycle(block: np.ndarray, seconds: float):
    return daily_cycle(block.sum(axis=1), block.shape[1], block, seconds)


def nights(seed: int, days: int, share: float, swing: float) -> np.ndarray:
    """100 clients in rounds of an hour, most of them up at 6, fewest at 18."""
    hours = np.arange(24 * days) + 1
    p = share + swing * np.sin(2 * np.pi * hours / 24)
    return np.random.default_rng(seed).random((24 * days, 100)) < p[:, None]


def test_hours_amplitude_and_p() -> None:
    day = cycle(nights(0, 5, 0.5, 0.3), 3600)
    assert day.days == 5
    assert day.amplitude == pytest.approx(0.3, abs=0.02)
    assert day.p <= 0.002
    assert abs(day.most - 6) <= 1
    assert abs(day.fewest - 18) <= 1
    assert day.profile[day.most] == pytest.approx(0.8, abs=0.05)
    # Round t ends at hour t + 1, so hour 0 has the rounds that end with a day.
    counts = np.tile(np.arange(24), 2)
    exact = daily_cycle(counts, 100, np.zeros((48, 1), dtype=bool), 3600)
    assert exact.profile.tolist() == [0.23, *np.arange(23) / 100]
    assert (exact.most, exact.fewest) == (0, 1)


def test_a_log_that_is_too_short_or_too_coarse() -> None:
    block = nights(0, 2, 0.5, 0.3)
    assert cycle(block[:47], 3600) is None
    assert cycle(block, 3600) is not None
    assert cycle(block, 12 * 3600) is None


def test_hours_without_a_round() -> None:
    day = cycle(nights(0, 5, 0.5, 0.3)[::3], 3 * 3600)
    assert np.isnan(day.profile).sum() == 16


@pytest.mark.parametrize("scheme", ["bernoulli", "markov"])
def test_the_level(scheme) -> None:
    p = [cycle(drawn(scheme, 40, 288, seed), 900).p for seed in range(100)]
    # At 5 %, more than 11 of 100 have a probability of 0.4 %.
    assert sum(each <= 0.05 for each in p) <= 11


def test_one_event_is_no_day() -> None:
    # Many come up once, for ten hours, in the middle of two days.
    share = np.full(288, 0.1)
    share[120:180] = 0.3
    block = np.random.default_rng(0).random((288, 100)) < share[:, None]
    assert cycle(block, 600).p > 0.05


def test_days_that_agree() -> None:
    # Of two days, the p value is that of the difference of their hours.
    p = [cycle(nights(seed, 2, 0.5, 0.3), 3600).p for seed in range(5)]
    assert max(p) < 0.1


def test_a_drift_is_no_day() -> None:
    random = np.random.default_rng(0)
    p = np.linspace(0.2, 0.8, 240)[:, None]
    assert cycle(random.random((240, 80)) < p, 1800).p > 0.05
