from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc import InputError
from fedpbc.experiments.seeds import seed_list, seeds_text


@pytest.mark.parametrize(
    ("given", "seeds"),
    [
        ("0-4", [0, 1, 2, 3, 4]),
        ("0-2,7", [0, 1, 2, 7]),
        (" 3 , 5 - 6 ", [3, 5, 6]),
        ("9", [9]),
        (["0-1", 4], [0, 1, 4]),
        (range(3), [0, 1, 2]),
        (np.arange(2), [0, 1]),
        ((5, 2), [5, 2]),
    ],
)
def test_numbers_lists_and_ranges(given, seeds):
    assert seed_list(given) == seeds


@pytest.mark.parametrize(
    "given",
    [
        *("", ",", "4-0", "a", "0-", "-1", "1.5", "0-2,2", "²", "0-999999999", "9" * 30, "0-1-2"),
        *([], [True], [1.0], [-1], [0, 0], [None], ["x"], [[0, 1]]),
        *(3, None, {}, {"0-4": 1}),
    ],
)
def test_what_is_no_seed_is_one_line(given):
    with pytest.raises(InputError, match=r"^seeds is "):
        seed_list(given)


@given(st.lists(st.integers(0, 40), unique=True, min_size=1).map(sorted))
def test_the_short_text_stands_for_the_same_seeds(seeds):
    assert seed_list(seeds_text(seeds)) == seeds
