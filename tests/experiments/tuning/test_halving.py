from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.errors import InputError
from fedpbc.experiments.tuning.halving import Halving, promoted, rungs_of


def test_a_hand_worked_search():
    halving = Halving.of(18, 300, every=5)
    assert halving.rungs == (30, 100, 300)
    assert halving.sizes == (18, 6, 2)
    assert halving.cost() == 18 * 30 + 6 * 70 + 2 * 200


def test_the_choice_is_between_two_that_ran_to_the_end():
    assert Halving.of(2, 90).sizes == (2, 2, 2)
    assert Halving.of(1, 90).sizes == (1, 1, 1)
    with pytest.raises(InputError, match="candidates is 0"):
        Halving.of(0, 90)


@pytest.mark.parametrize(
    ("rounds", "every", "rungs"),
    [(1, 1, (1,)), (2, 1, (1, 2)), (9, 1, (1, 3, 9)), (300, 7, (28, 98, 300)), (20, 30, (20,))],
)
def test_rungs(rounds, every, rungs):
    assert rungs_of(rounds, every) == rungs


@given(st.integers(1, 60), st.integers(1, 2000), st.integers(1, 50))
def test_rungs_rise_and_candidates_fall(candidates, rounds, every):
    halving = Halving.of(candidates, rounds, every)
    assert halving.rungs[-1] == rounds
    assert list(halving.rungs) == sorted(set(halving.rungs))
    assert all(rung % every == 0 for rung in halving.rungs[:-1])
    assert halving.sizes[0] == candidates
    assert list(halving.sizes) == sorted(halving.sizes, reverse=True)
    assert halving.sizes[-1] >= min(2, candidates)
    assert halving.cost() <= candidates * rounds


def test_what_diverged_is_never_promoted():
    assert promoted([None, 0.1, None, 0.3], 3) == [1, 3]
    assert promoted([None, None], 2) == []


def test_scores_below_zero_are_ranked_too():
    assert promoted([-3.0, -1.0, -2.0], 1) == [1]


@given(st.lists(st.none() | st.floats(-1, 1), max_size=20), st.integers(1, 20))
def test_promoted_are_the_best(scores, count):
    kept = promoted(scores, count)
    assert len(kept) == min(count, sum(score is not None for score in scores))
    left = [scores[k] for k in range(len(scores)) if k not in kept and scores[k] is not None]
    assert not kept or not left or min(scores[k] for k in kept) >= max(left)
