from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc import theory
from fedpbc.theory.empirical import EmpiricalLinks
from tests.theory.cases import quick

tables = st.integers(1, 7).flatmap(
    lambda m: st.lists(st.lists(st.booleans(), min_size=m, max_size=m), min_size=1, max_size=20)
)


def test_a_timetable_by_hand() -> None:
    measured = EmpiricalLinks.from_rows(
        np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 1, 1]], dtype=bool)
    )
    assert (measured.rounds, measured.empty_rounds) == (4, 1)
    assert measured.shares.tolist() == [0.75, 0.5, 0.25]
    # Of three rounds that were not empty: 1, 1/2, 1/3; 0, 1/2, 1/3; 0, 0, 1/3.
    np.testing.assert_allclose(measured.weights, [11 / 18, 5 / 18, 2 / 18], rtol=1e-15)
    # Ages at t = 0 … 4: 1 1 1 2 1; 1 2 1 2 1; 1 2 3 4 1.
    np.testing.assert_allclose(measured.staleness, [6 / 5, 7 / 5, 11 / 5], rtol=1e-15)
    assert measured.staleness_max == 4
    # Off the diagonal of the mean W: 0-1 has (1/2 + 1/3)/4, the others (1/3)/4.
    mean = np.array([[0, 5, 2], [5, 0, 2], [2, 2, 0]]) / 24
    mean += np.diag(1 - mean.sum(axis=1))
    assert measured.mixing_rate == pytest.approx(np.linalg.eigvalsh(mean)[-2], rel=1e-14)


def test_no_link_is_ever_up() -> None:
    measured = EmpiricalLinks.from_rows(np.zeros((5, 2), dtype=bool))
    assert measured.weights is None
    assert measured.mixing_rate == 1
    assert measured.staleness.tolist() == [3.5, 3.5]


@quick
@given(tables)
def test_it_agrees_with_the_functions_for_whole_tables(rows: list[list[bool]]) -> None:
    table = np.array(rows)
    measured = EmpiricalLinks.from_rows(iter(table))
    ages = theory.staleness(table)
    np.testing.assert_allclose(measured.staleness, ages.mean(axis=0), rtol=1e-13)
    assert measured.staleness_max == ages.max()
    clients = table.shape[1]
    matrices = [theory.mixing_matrix(np.flatnonzero(row).tolist(), clients) for row in table]
    if clients > 1:
        second = np.linalg.eigvalsh(np.mean(matrices, axis=0))[-2]
        assert measured.mixing_rate == pytest.approx(second, abs=1e-13)
    if measured.weights is not None:
        assert measured.weights.sum() == pytest.approx(1, rel=1e-13)
    else:
        assert not table.any()


def test_long_timetables_are_read_in_blocks() -> None:
    table = np.random.default_rng(2).random((1300, 5)) < 0.3
    whole, halves = (
        EmpiricalLinks.from_rows(table),
        [EmpiricalLinks.from_rows(part) for part in (table[:512], table[512:])],
    )
    counts = [half.rounds - half.empty_rounds for half in halves]
    together = sum(half.weights * n for half, n in zip(halves, counts, strict=True)) / sum(counts)
    np.testing.assert_allclose(whole.weights, together, rtol=1e-13)
    np.testing.assert_allclose(whole.staleness, theory.staleness(table).mean(axis=0), rtol=1e-13)


def test_without_mixing_there_is_no_matrix() -> None:
    assert EmpiricalLinks.from_rows(np.ones((2, 3), dtype=bool), mixing=False).mixing_rate is None


@quick
@given(st.lists(st.floats(0.2, 1), min_size=2, max_size=12), st.integers(0, 2**32))
def test_sampled_matrices_mix_within_the_bound(p: list[float], seed: int) -> None:
    """Even two links of 0.2 are up together 80 times in 2,000 rounds: ρ is far below its bound."""
    table = np.random.default_rng(seed).random((2000, len(p))) < np.array(p)
    rate = EmpiricalLinks.from_rows(table).mixing_rate
    assert rate is not None
    assert rate < theory.mixing_rate_bound(min(p), len(p))
    # λ₂ moves by at most the Frobenius norm of the error, whose square has a mean of at most m²
    # times an entry's variance, 1/4 at most; three times its root.
    assert rate == pytest.approx(theory.mixing_rate(p), abs=3 * len(p) * 0.5 / math.sqrt(2000))
