from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.theory.run_lengths import run_lengths, runs_of
from tests.theory.cases import quick


def columns(*texts: str) -> np.ndarray:
    """Clients as texts of 0 and 1, as rounds x clients."""
    return np.array([[c == "1" for c in text] for text in texts]).T


def test_a_log_by_hand() -> None:
    # Outages: 2 (cut off at the start), 1, 3; 1 (start), 2, 1 (cut off at the end).
    block = columns("0010111000" + "1", "0100111" + "1110")
    outages = run_lengths(block, state=False)
    assert (outages.runs, outages.complete, outages.kept) == (6, 3, 0)
    # All ten rounds down, and five of the six outages end.
    assert outages.mean == 10 / 5
    # That begin in the log: 1, 3, 2 and one of at least 1. Of four at risk, one ends after one
    # round: 3/4 last longer; of the two left at two rounds one ends: 3/8; then none.
    assert outages.lengths.tolist() == [1, 2, 3]
    assert outages.longer.tolist() == [0.75, 0.375, 0.0]
    assert outages.quantiles == (2, 3, 3)
    assert (outages.longest, outages.longest_complete) == (3, True)
    contacts = run_lengths(block, state=True)
    assert (contacts.runs, contacts.complete, contacts.longest) == (5, 4, 6)
    assert contacts.mean == 12 / 4


def test_ends_that_the_log_cuts_off_are_said() -> None:
    outages = run_lengths(columns("0000", "1000", "0001"), state=False)
    assert (outages.runs, outages.complete, outages.kept) == (3, 0, 1)
    assert outages.mean == 10.0  # One of them ended.
    assert outages.quantiles == (None, None, None)
    assert (outages.longest, outages.longest_complete) == (4, False)
    never_up = run_lengths(columns("0000"), state=True)
    assert (never_up.runs, never_up.mean, never_up.longest) == (0, None, 0)


@quick
@given(
    st.integers(1, 5).flatmap(
        lambda m: st.lists(st.lists(st.booleans(), min_size=m, max_size=m), min_size=1, max_size=30)
    )
)
def test_runs_make_up_the_log(rows) -> None:
    block = np.array(rows)
    client, first, length, state = runs_of(block)
    again = np.zeros_like(block)
    for i, t, n, up in zip(client, first, length, state, strict=True):
        assert not again[t : t + n, i].any()
        again[t : t + n, i] = up
    assert (again == block).all()
    assert length.sum() == block.size
    outages, contacts = (run_lengths(block, state=s) for s in (False, True))
    assert outages.runs + contacts.runs == len(length)
    assert (np.diff(outages.longer) <= 0).all()
