from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpbc.flower.folder import ServerFolder
from fedpbc.links import Setting, Timetable


def logged(table, seconds=7.0):
    return [
        {
            "round": t,
            "began_s": t * seconds,
            "ended_s": (t + 1) * seconds,
            "active": np.flatnonzero(row).tolist(),
        }
        for t, row in enumerate(table)
    ]


@given(table=arrays(bool, st.tuples(st.integers(1, 12), st.integers(1, 4))))
def test_the_schemes_find_the_rounds_again(table, tmp_path_factory):
    # Who is never heard has no line, and the trace ends with the last answer.
    table[0] = table[-1] = True
    rounds, clients = table.shape
    with ServerFolder(tmp_path_factory.mktemp("log")) as folder:
        folder.lines = logged(table)
        folder.save_links(clients)
    setting = Setting(seed=0, clients=clients, rounds=rounds)
    for name, file, more in (
        ("trace", "links.csv", {"round_seconds": 7.0}),
        ("table", "timetable.csv", {}),
    ):
        found = Timetable.draw(name, setting, {"file": str(folder.path / file), **more})
        assert (found.block(rounds, clients) == table).all(), name
