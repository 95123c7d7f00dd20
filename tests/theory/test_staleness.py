from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc import theory
from tests.theory.cases import quick


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
