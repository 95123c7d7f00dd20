from __future__ import annotations

import numpy as np
import pytest

from fedpbc.deployment.protocol.messages import Payload, TrainReply, Vector, refusal
from fedpbc.deployment.server.round_state import Nodes, RoundState


def answer(round=5, client=0, job="job", values=(1.0, 2.0), dtype=np.float32):
    return TrainReply(job, round, client, Vector.of(np.array(values, dtype=dtype))).pack()


@pytest.fixture
def under_way():
    found = RoundState("job", 5, dtype="float32", dimension=2)
    found.ask("m0", 100, 0)
    found.ask("m1", 101, 1)
    return found


def test_an_answer_counts_once(under_way):
    assert under_way.take("m0", 100, answer()) is None
    again = under_way.take("m0", 100, answer(values=(7.0, 7.0)))
    assert again == "client 0 has answered in round 5 already"
    assert under_way.answers[0].tolist() == [1.0, 2.0]
    assert under_way.messages == ["m1"]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (answer(round=4), "its answer is of round 4; this is round 5"),
        (answer(round=6), "its answer is of round 6; this is round 5"),
        (answer(job="old"), "its answer is of another job, 'old'"),
        (answer(client=1), "it answers as client 1, but is client 0"),
        (answer(values=(1.0,)), "its vector has 1 values, not 2"),
        (answer(dtype=np.float64), "its vector is of type float64, not float32"),
        (answer(values=(1.0, np.nan)), "its model is not finite"),
        (answer(values=(np.inf, 0.0)), "its model is not finite"),
        (Payload({"kind": "answer"}), "it is a parcel of kind 'answer', not an answer"),
        (refusal("the disk is full"), "the disk is full"),
    ],
)
def test_a_wrong_answer_is_refused_with_its_reason(under_way, wrong, reason):
    assert under_way.take("m0", 100, wrong) == reason
    assert under_way.answers == {}
    # The round does not wait for it.
    assert under_way.take("m1", 101, answer(client=1)) is None
    assert under_way.is_over([0, 1])
    assert list(under_way.answers) == [1]


def test_a_foreign_or_late_answer_changes_nothing(under_way):
    assert "late, or not asked for" in under_way.take("m7", 100, answer())
    assert under_way.take("m0", 101, answer()) == "it answers for node 100"
    assert under_way.answers == {}
    assert not under_way.refused
    assert under_way.take("m0", 100, answer()) is None


def test_a_round_is_over_when_all_known_have_answered(under_way):
    assert not under_way.is_over([])
    under_way.take("m0", 100, answer())
    assert not under_way.is_over([0, 1])
    assert under_way.is_over([0])
    under_way.give_up("m1")
    assert under_way.is_over([0, 1])


def test_a_node_stays_the_client_it_was():
    nodes = Nodes(clients=2)
    assert nodes.bind(901, 0) is None
    assert nodes.bind(901, 0) is None
    assert nodes.bind(901, 1) == "it says that it is client 1, but it was client 0"
    assert nodes.bind(902, 0) == "it says that it is client 0, which is node 901"
    assert nodes.bind(902, 2) == "it says that it is client 2; there are 0 to 1"
    assert nodes.client_of == {901: 0}


def test_a_client_may_come_back_as_another_node_if_that_is_allowed():
    nodes = Nodes(clients=2, rebind=True)
    nodes.bind(901, 0)
    assert nodes.bind(902, 0) is None
    assert nodes.client_of == {902: 0}
