"""With many clients only the segments that are due first are submitted; the bits stay the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpbc.algorithms import FedPBC, ServerInit
from fedpbc.engines import SerialEngine, StackedEngine
from fedpbc.links import from_table
from fedpbc.simulation import lookahead
from fedpbc.simulation.lookahead import Lookahead
from fedpbc.simulation.loop import Simulation
from fedpbc.simulation.membership import MembershipChange
from tests import small_runs as small

SOME_VIEWS = ["server", "averaged", "reported", "corrected"]


@given(st.integers(0, 1000), st.integers(1, 12), st.sampled_from([0.02, 0.2, 0.7]))
@settings(deadline=None)
def test_every_contact_s_segment_is_submitted_once_and_in_time(seed, limit, density):
    table = np.random.default_rng(seed).random((25, 9)) < density
    submitted: list[tuple[int, int]] = []
    done = [-1] * 9

    def submit(client, last):
        # Its start model exists, and it ends with the next contact.
        assert not table[done[client] + 1 : last, client].any()
        submitted.append((last, client))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookahead, "SUBMITTED", limit)
        ahead = Lookahead(from_table(table), submit)
        ahead.begin(range(9), 0)
        for t in range(25):
            ahead.extend(9, t)
            ended = ahead.ended(t)
            assert ended == np.flatnonzero(table[t]).tolist()
            for client in ended:
                done[client] = t
            ahead.submit_next(ended, t + 1)
    assert sorted(submitted) == [tuple(contact) for contact in np.argwhere(table).tolist()]


@pytest.mark.parametrize("engine", [SerialEngine, StackedEngine], ids=lambda e: e.name)
@pytest.mark.parametrize("name", ["fedpbc", "fedawe"])
@pytest.mark.parametrize("down", [None, small.lossy()], ids=["heard", "lossy"])
def test_few_segments_at_a_time_give_the_same_bits(monkeypatch, engine, name, down):
    task, up = small.network(), small.random_table()
    options = {"engine": engine, "down": down, "views": SOME_VIEWS}
    wanted = small.views(task, name, up, **options)
    monkeypatch.setattr(lookahead, "SUBMITTED", 2)
    monkeypatch.setattr("fedpbc.engines.stacked.STACK_BYTES", 1)
    monkeypatch.setattr("fedpbc.engines.stacked.MIN_ROWS", 2)
    assert small.same_bits(small.views(task, name, up, **options), wanted)


def test_clients_that_join_and_leave_are_submitted_in_time(monkeypatch):
    task, up = small.network(), small.random_table()
    up[:8, 6], up[12:, 0] = False, False
    changes = {8: MembershipChange(joined=1), 12: MembershipChange(left=(0,))}

    def finished():
        made = Simulation(
            task,
            FedPBC(ServerInit(task.init(), 6)),
            SerialEngine(task),
            from_table(up),
            views=SOME_VIEWS,
            membership=changes,
        )
        list(made.run())
        return made.view_models()

    wanted = finished()
    monkeypatch.setattr(lookahead, "SUBMITTED", 2)
    assert small.same_bits(finished(), wanted)


def test_the_stack_holds_no_more_rows_than_it_may_unless_they_are_needed(monkeypatch):
    monkeypatch.setattr("fedpbc.engines.stacked.STACK_BYTES", 1)
    monkeypatch.setattr("fedpbc.engines.stacked.MIN_ROWS", 2)
    task = small.network()
    engine = StackedEngine(task)
    made = small.simulation(
        task, "fedpbc", small.random_table(), engine=lambda _: engine, views=["server"]
    )
    for _ in made.steps():
        # At most the two that are allowed, and two that were needed when these were in the way.
        assert len(engine._rows) + len(engine._finished) <= 4
