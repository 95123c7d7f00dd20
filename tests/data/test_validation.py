from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.data import hold_out
from fedpbc.errors import InputError


@given(st.lists(st.integers(5, 40), min_size=1, max_size=8), st.floats(0.2, 0.8), st.integers(0, 9))
def test_every_client_gives_up_its_share(sizes, share, seed):
    ends = np.cumsum(sizes)
    parts = np.split(np.random.default_rng(seed).permutation(ends[-1]), ends[:-1])
    kept, held_out = hold_out(parts, share, seed)
    assert [len(p) - len(k) for p, k in zip(parts, kept, strict=True)] == [
        int(share * size) for size in sizes
    ]
    assert sorted([*np.concatenate(kept), *held_out]) == list(range(ends[-1]))
    again, same = hold_out(parts, share, seed)
    assert (held_out == same).all()
    assert all((a == b).all() for a, b in zip(kept, again, strict=True))
    # In the order that they had.
    for part, left in zip(parts, kept, strict=True):
        assert [s for s in part if s in set(left)] == list(left)


def test_a_sample_of_several_clients_is_taken_from_all():
    shared = np.arange(10)
    kept, held_out = hold_out([shared, shared], 0.3, seed=1)
    assert not np.isin(np.concatenate(kept), held_out).any()


def test_too_few_samples():
    with pytest.raises(
        InputError, match=r"validation is 0.2, but should be larger, or clients fewer: none has 5"
    ):
        hold_out([np.arange(3)], 0.2, 0)
    with pytest.raises(InputError, match="smaller: client 1 has no samples left"):
        hold_out([np.arange(10), np.arange(0)], 0.5, 0)
