from __future__ import annotations

from fedpbc.links import Setting, Timetable
from tests.links.drawing import dense


def test_every_link_is_up_and_no_probabilities_are_needed() -> None:
    table = Timetable.draw("always", Setting(seed=1, clients=11, rounds=4))
    assert dense(table).all()
    assert table.shares().tolist() == [1.0] * 11
    assert [p.tolist() for p in table.probabilities()] == [[1.0] * 11] * 4
