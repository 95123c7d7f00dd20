from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpbc.algorithms import FedAvg, ServerInit
from fedpbc.deployment.protocol.messages import Payload, TrainReply, Vector, refusal
from fedpbc.deployment.server.round_state import RoundState
from fedpbc.deployment.server.upload_check import UploadCheck


def reply(round=5, client=0, job="job", values=(1.0, 2.0), dtype=np.float32, name="model"):
    upload = {name: Vector.of(np.array(values, dtype=dtype))}
    return TrainReply(job, round, client, upload).pack()


@pytest.fixture
def current():
    state = RoundState("job", 5, UploadCheck(FedAvg(ServerInit(torch.zeros(2), clients=2))))
    state.add_request("m0", 100, 0)
    state.add_request("m1", 101, 1)
    return state


def test_a_reply_counts_once(current):
    assert current.add_reply("m0", 100, reply()) is None
    again = current.add_reply("m0", 100, reply(values=(7.0, 7.0)))
    assert again == "client 0 has already replied in round 5"
    assert current.uploads[0]["model"].tolist() == [1.0, 2.0]
    assert current.pending == ["m1"]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (reply(round=4), "reply for round 4; this is round 5"),
        (reply(round=6), "reply for round 6; this is round 5"),
        (reply(job="old"), "reply for another job, 'old'"),
        (reply(client=1), "replies as client 1, but is client 0"),
        (reply(values=(1.0,)), "vector of 1 values, not 2"),
        (reply(dtype=np.float64), "vector of type float64, not float32"),
        (reply(values=(1.0, np.nan)), "model is not finite"),
        (reply(values=(np.inf, 0.0)), "model is not finite"),
        (reply(name="control"), "uploads control, not model"),
        (TrainReply("job", 5, 0, {}).pack(), "uploads nothing, not model"),
        (Payload({"kind": "answer"}), "job is None, not a string"),
        (Payload({"kind": "work"}), "message of kind 'work', not 'answer'"),
        (refusal("the disk is full"), "the disk is full"),
    ],
)
def test_a_wrong_reply_is_rejected_with_its_reason(current, wrong, reason):
    assert current.add_reply("m0", 100, wrong) == reason
    assert current.uploads == {}
    # The round does not wait for it.
    assert current.add_reply("m1", 101, reply(client=1)) is None
    assert current.is_over([0, 1])
    assert list(current.uploads) == [1]


def test_a_foreign_or_late_reply_changes_nothing(current):
    assert "late, or unsolicited" in current.add_reply("m7", 100, reply())
    assert current.add_reply("m0", 101, reply()) == "replies for node 100"
    assert current.uploads == {}
    assert not current.rejected
    assert current.add_reply("m0", 100, reply()) is None


def test_a_round_is_over_when_all_clients_have_replied(current):
    assert not current.is_over([])
    current.add_reply("m0", 100, reply())
    assert not current.is_over([0, 1])
    assert current.is_over([0])
    current.reject("m1", "late")
    assert current.is_over([0, 1])
