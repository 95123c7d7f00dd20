from __future__ import annotations

import numpy as np
import pytest

from fedpbc.theory.client_correlation import client_correlation, mean_correlation
from tests.theory.test_stationarity import drawn


def correlation(block: np.ndarray, **options):
    return client_correlation(block.sum(axis=1), block.mean(axis=0), block, **options)


def test_the_mean_of_all_pairs() -> None:
    block = np.random.default_rng(1).random((50, 6)) < 0.4
    pairs = np.corrcoef(block.T)[np.triu_indices(6, 1)]
    assert mean_correlation(block.T) == pytest.approx(pairs.mean(), rel=1e-12)
    assert correlation(block).plain == pytest.approx(pairs.mean(), abs=1e-6)


def test_by_hand() -> None:
    # Two clients that are always up together, and one that is up half of the time on its own.
    block = np.array([[1, 1, 0], [0, 0, 0], [1, 1, 1], [0, 0, 1]], dtype=bool)
    result = correlation(block)
    assert result.plain == pytest.approx(1 / 3, abs=1e-6)
    # Numbers up: 2, 0, 3, 1, of variance 5/4; independent ones have three times 1/4.
    assert result.overdispersion == pytest.approx(5 / 3)
    assert result.beyond_course is None


def test_clients_that_never_change_are_left_out() -> None:
    block = np.array([[1, 0, 1], [1, 0, 0]], dtype=bool)
    assert correlation(block).clients == 1
    assert correlation(block).plain_p is None
    assert correlation(np.ones((5, 3), dtype=bool)).overdispersion is None


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["bernoulli", "markov"])
def test_the_level(scheme) -> None:
    results = [correlation(drawn(scheme, 16, 200, seed), seed=seed) for seed in range(60)]
    # At 5 %, more than 8 of 60 have a probability of 0.5 %.
    assert sum(result.plain_p <= 0.05 for result in results) <= 8
    assert sum(result.beyond_course_p <= 0.05 for result in results) <= 8
    assert np.mean([result.plain for result in results]) == pytest.approx(0, abs=0.005)
    assert np.mean([result.beyond_course for result in results]) == pytest.approx(0, abs=0.01)


def test_failing_together_and_a_common_course_are_told_apart() -> None:
    # In every fifth round, at random, all are down.
    random = np.random.default_rng(0)
    together = (random.random((400, 30)) < 0.5) & (random.random((400, 1)) < 0.8)
    result = correlation(together)
    assert result.plain_p == 0.002
    assert result.beyond_course_p <= 0.01
    assert result.beyond_course == pytest.approx(result.plain, rel=0.3)
    course = correlation(drawn("bernoulli_varying", 40, 800, 0), period=40)
    assert course.plain_p == 0.002
    assert course.plain > 0.05
    assert course.beyond_course < course.plain / 10
