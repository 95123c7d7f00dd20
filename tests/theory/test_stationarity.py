"""The tests of stationarity: exact values, and by simulation their level and their power."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest

from fedpbc.links import Setting, Timetable
from fedpbc.theory.stationarity import (
    LEVEL,
    ClientTests,
    client_tests,
    peak_p_values,
    share_test,
    tail,
)


def drawn(scheme: str, clients: int, rounds: int, seed: int, **options: object) -> np.ndarray:
    p = np.random.default_rng(seed).uniform(0.1, 0.9, clients)
    setting = Setting(seed=seed, clients=clients, rounds=rounds, base_probabilities=p)
    return Timetable.draw(scheme, setting, options).block(rounds, clients)


def drifting(seed: int, clients: int, rounds: int, loss: float) -> np.ndarray:
    random = np.random.default_rng(seed)
    p = random.uniform(0.2, 0.7, clients) * (1 - loss * np.arange(rounds)[:, None] / rounds)
    return random.random((rounds, clients)) < p


def share_p(block: np.ndarray) -> float:
    test = share_test(block.sum(axis=1), block)
    assert test is not None
    return test.p


STATIONARY = [
    ("bernoulli", {}, 50, 300),
    ("bernoulli", {}, 10, 60),
    ("markov", {}, 50, 300),
    ("group", {}, 50, 500),
    ("group", {"groups": 1}, 50, 500),
]


@pytest.mark.long
@pytest.mark.parametrize(("scheme", "options", "clients", "rounds"), STATIONARY)
def test_the_level_of_the_shares_test(scheme, options, clients, rounds):
    p = [share_p(drawn(scheme, clients, rounds, seed, **options)) for seed in range(100)]
    # At 5 %, more than 11 of 100 have a probability of 0.4 %.
    assert sum(each <= LEVEL for each in p) <= 11


@pytest.mark.parametrize(("clients", "rounds"), [(5, 100), (10, 30)])
def test_the_level_of_the_shares_test_with_few_long_outages(clients, rounds):
    p = [share_p(drawn("markov", clients, rounds, 9000 + k)) for k in range(200)]
    # At 5 %, more than 17 of 200 have a probability of 1 %.
    assert sum(each <= LEVEL for each in p) <= 17


def test_few_clients_that_drift_are_found():
    p = [share_p(drifting(seed, 5, 300, 0.8)) for seed in range(40)]
    assert sum(each <= LEVEL for each in p) >= 32


def test_a_drift_that_is_small_beside_the_noise_of_a_sample_is_found():
    block = drifting(1, 4000, 200, 0.05)
    counts, sample = block.sum(axis=1), block[:, :100]
    assert share_test(sample.sum(axis=1), sample).p > LEVEL
    result = share_test(counts, sample, clients=4000)
    assert result.p < 0.01
    assert result.cycles == 1


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "rounds"), [("bernoulli", 200), ("markov", 400)])
def test_the_level_of_the_clients_test(scheme, rounds):
    p = np.concatenate([client_tests(drawn(scheme, 20, rounds, k), k).p for k in range(10)])
    p = p[np.isfinite(p)]
    assert len(p) > 100
    # Exact: the share of rejections is at most the level, but for chance.
    assert (p <= LEVEL).mean() <= LEVEL + 3 * (LEVEL * 0.95 / len(p)) ** 0.5
    assert (p <= 0.5).mean() == pytest.approx(0.5, abs=0.12)


def test_the_power_of_the_shares_test():
    for scheme in ("bernoulli_varying", "markov_varying"):
        tests = [drawn(scheme, 50, 400, seed) for seed in range(5)]
        results = [share_test(block.sum(axis=1), block) for block in tests]
        assert all(result.p < 0.001 for result in results)
        assert np.mean([result.period for result in results]) == pytest.approx(40, abs=1)
    p = [share_p(drifting(seed, 50, 300, 0.3)) for seed in range(20)]
    assert sum(each <= LEVEL for each in p) >= 16
    slow = drifting(1, 50, 300, 0.6)
    assert share_test(slow.sum(axis=1), slow).cycles == 1


def test_a_cycle_between_two_ordinates_is_found():
    # 12.5 cycles of 40 rounds: its power lies between two ordinates.
    block = drawn("bernoulli_varying", 100, 500, 0)
    result = share_test(block.sum(axis=1), block)
    assert result.p < 1e-6
    assert result.period == pytest.approx(40, rel=0.02)


def test_the_power_of_the_clients_test():
    drift = [client_tests(drifting(seed, 20, 300, 0.8), seed) for seed in range(3)]
    assert all(test.combined <= LEVEL and test.changing > 5 for test in drift)
    # By the clock: no order of outages differs from the others, so it is the regularity.
    clock = client_tests(drawn("cyclic", 10, 1000, 3))
    assert clock.tested == 10
    assert clock.combined <= LEVEL
    assert clock.changing == 10


def test_too_little_to_test():
    assert share_test(np.full(100, 3), np.ones((100, 3), dtype=bool)) is None
    assert share_test(np.arange(19), np.eye(19, dtype=bool)) is None
    tests = client_tests(np.zeros((50, 3), dtype=bool))
    assert (tests.tested, tests.combined, tests.changing) == (0, None, 0)


def test_the_p_value_is_that_of_all_orders():
    """A client with few outages: the drawn orders come close to all of them."""
    outages, contacts = (1, 5, 9, 14), (2, 3, 4)
    text = "1" + "".join("0" * d + "1" * u for d, u in zip(outages, (*contacts, 1), strict=True))
    column = np.array([[c == "1" for c in text + "0"]]).T
    rounds = len(column)

    def statistics(downs, ups):
        order = "1" + "".join("0" * d + "1" * u for d, u in zip(downs, ups, strict=True)) + "0"
        links = np.array([c == "1" for c in order], dtype=float)
        edges = np.linspace(0, rounds, min(64, rounds // 2) + 1).astype(int)
        totals = np.concatenate([[0], links.cumsum()])[edges]
        drift = np.abs(totals - totals[-1] * edges / rounds).max()
        return drift, np.abs(np.fft.rfft(links))[1 : rounds // 2 + 1] ** 2

    # The last contact ends within the log, so it may change places, too.
    ups = sorted(set(permutations((*contacts, 1))))
    values = [statistics(d, u) for d, u in product(permutations(outages), ups)]
    drifts = np.round([v[0] for v in values], 9)
    spectra = np.array([v[1] for v in values])
    peaks = np.round((spectra / spectra.mean(axis=0)).max(axis=1), 9)
    rank = lambda x: (x[None, :] >= x[:, None]).mean(axis=1)  # noqa: E731
    smaller = np.minimum(rank(drifts), rank(peaks))
    observed = next(
        k
        for k, (d, u) in enumerate(product(permutations(outages), ups))
        if d == outages and u == (*contacts, 1)
    )
    exact = (smaller <= smaller[observed]).mean()
    assert client_tests(column).p[0] == pytest.approx(exact, abs=0.07)


def test_many_small_p_values_count_together():
    tests = ClientTests(np.array([0.5, np.nan, 0.002]), 0.01, 1)
    assert tests.tested == 2


def test_the_tail_is_that_of_exponential_numbers():
    assert tail(3.0, 3) == 0.125
    random = np.random.default_rng(0)
    ratio = random.exponential(size=50_000) / random.exponential(size=(10, 50_000)).mean(axis=0)
    assert (ratio >= 4).mean() == pytest.approx(tail(4.0, 10), rel=0.05)
    assert peak_p_values(np.ones(3)).tolist() == [1.0, 1.0, 1.0]  # No neighbours.
