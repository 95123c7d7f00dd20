from __future__ import annotations

import errno
import json
import os
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpbc.deployment.device import trainer as trainer_module
from fedpbc.deployment.device.trainer import Trainer
from fedpbc.deployment.protocol.messages import MessageError, TrainReply, TrainRequest, Vector
from fedpbc.deployment.protocol.tensors import to_vector
from fedpbc.engines.segment import Segment
from fedpbc.engines.serial import train, train_model
from fedpbc.errors import DivergedError, InputError
from fedpbc.storage.tensors import save_state
from tests.deployment.fake_network import ROUND, Killed, small_task

TASK = small_task()
T = 200


def train_request(round, first_round, start=None, **rest):
    return TrainRequest(
        **{
            "job": "j",
            "round": round,
            "client": 1,
            "first_round": first_round,
            "rounds": round - first_round + 1,
            "first_batch": 2 * first_round,
            "scale": 1.0,
            "everyone": True,
            "settings": "{}",
            "round_seconds": ROUND,
            "age": 0.0,
            "job_rounds": T,
            "counted": -1,
            "start_over": -1,
            "initial": "",
            "start": to_vector(TASK.init() if start is None else start),
            **rest,
        }
    )


def simulated(first_round, rounds, start=None, scale=1.0):
    """The model that the simulator's engine computes."""
    start = TASK.init() if start is None else start
    return train(TASK, Segment(1, start, first_round, rounds, 2 * first_round, scale)).end


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def make(folder, **options):
    return Trainer(1, folder, lambda settings: TASK, **options)


def reply_model(trainer, request):
    reply = TrainReply.unpack(trainer.handle(request.pack()))
    assert (reply.job, reply.round, reply.client) == (request.job, request.round, 1)
    return torch.from_numpy(reply.upload["model"].array())


@pytest.fixture
def trained(monkeypatch):
    """The number of rounds of each segment that is trained."""
    rounds = []

    def noted(task, segment, correction):
        rounds.append(segment.rounds)
        return train_model(task, segment, correction)

    monkeypatch.setattr(trainer_module, "train_model", noted)
    return rounds


def test_missed_rounds_are_trained_on_the_next_request(tmp_path, trained):
    trainer = make(tmp_path, lazy=True)
    assert torch.equal(reply_model(trainer, train_request(2, 0)), simulated(0, 3))
    # The reply did not count: the trainer continues its own model, with the new rounds only.
    assert torch.equal(reply_model(trainer, train_request(4, 0)), simulated(0, 5))
    assert trained == [3, 2]


def test_a_new_model_replaces_the_old_and_an_old_request_changes_nothing(tmp_path):
    trainer = make(tmp_path)
    reply_model(trainer, train_request(2, 0))
    synced = torch.ones_like(TASK.init())
    new = train_request(4, 3, synced)
    assert torch.equal(reply_model(trainer, new), simulated(3, 2, synced))
    # A replayed request gets the same bits, and does not affect later ones.
    assert torch.equal(reply_model(trainer, train_request(2, 0)), simulated(0, 3))
    assert torch.equal(reply_model(trainer, train_request(5, 3, synced)), simulated(3, 3, synced))


def test_a_repeated_request_is_trained_once(tmp_path, trained):
    trainer = make(tmp_path)
    first = reply_model(trainer, train_request(1, 0))
    assert torch.equal(reply_model(trainer, train_request(1, 0)), first)
    assert torch.equal(reply_model(make(tmp_path), train_request(1, 0)), first)
    assert trained == [2]


def test_eta_g_is_applied_to_each_round(tmp_path):
    model = reply_model(make(tmp_path), train_request(2, 0, scale=0.5))
    assert torch.equal(model, simulated(0, 3, scale=0.5))


def test_work_of_another_app_or_of_other_data_is_not_gone_on_with(tmp_path, trained):
    """A device is given another app, also offline, and then the first again."""
    clock = Clock()

    class Sorted:
        """The same samples in another order: other data, with results of its own."""

        def __getattr__(self, name):
            return getattr(TASK, name)

        def client_fingerprint(self, client):
            return "sorted"

    def trainer(app, task=TASK):
        return Trainer(1, tmp_path, lambda settings: task, app=app, now=clock)

    reply_model(trainer("a"), train_request(2, 0))
    clock.now += 2 * ROUND
    for other in (trainer("b"), trainer("a", Sorted())):
        # What it makes of the first's work would be the work of neither.
        assert not other.tick()
        del trained[:]
        reply_model(other, train_request(3, 0))
        assert trained == [4]
        clock.now += ROUND
        del trained[:]
        assert torch.equal(reply_model(trainer("a"), train_request(4, 0)), simulated(0, 5))
        assert trained == [5]


def test_work_that_was_refused_is_begun_again_once(tmp_path, trained):
    trainer = make(tmp_path, lazy=True)
    reply_model(trainer, train_request(2, 0))
    again = train_request(3, 0, start_over=2)
    assert torch.equal(reply_model(trainer, again), simulated(0, 4))
    # That answer got lost, and the next message says the same.
    reply_model(trainer, train_request(4, 0, start_over=2))
    assert trained == [3, 4, 1]
    reply_model(make(tmp_path), train_request(5, 0, start_over=4))
    assert trained == [3, 4, 1, 6]


def test_progress_from_which_training_diverges_is_discarded(tmp_path, trained):
    trainer = make(tmp_path, lazy=True)
    reply_model(trainer, train_request(2, 0))
    poisoned = torch.full_like(trainer.state.model, 3e38)
    trainer._save(replace(trainer.state, model=poisoned, asked_model=poisoned))
    assert torch.equal(reply_model(make(tmp_path), train_request(3, 0)), simulated(0, 4))


def test_missed_rounds_are_trained_by_the_clock_after_their_deadline(tmp_path, trained):
    clock = Clock()
    trainer = make(tmp_path, now=clock)
    assert not trainer.tick()
    reply_model(trainer, train_request(0, 0, age=2.0))
    # Round 0 began at 998, so round 1 is over at 1018: until then its request may come.
    clock.now = 1017.9
    assert not trainer.tick()
    clock.now = 1018.0
    assert trainer.tick()
    assert not trainer.tick()
    clock.now = 1040.0
    assert trainer.tick()
    assert trainer.tick()
    assert not trainer.tick()
    assert trained == [1, 1, 1, 1]
    # Rounds 1 to 3 were trained offline: only round 4 is left.
    assert torch.equal(reply_model(trainer, train_request(4, 0)), simulated(0, 5))
    assert trained[4:] == [1]


def test_the_clock_continues_after_a_restart(tmp_path):
    clock = Clock()
    reply_model(make(tmp_path, now=clock), train_request(0, 0))
    clock.now += 2 * ROUND
    again = make(tmp_path, now=clock)
    assert again.tick()
    clock.now += ROUND
    third = make(tmp_path, now=clock)
    assert third.tick()
    assert third.state.next_round == 3


@pytest.mark.parametrize("restarted", [False, True])
def test_rounds_trained_too_early_are_discarded_and_nothing_else(tmp_path, trained, restarted):
    clock = Clock()
    trainer = make(tmp_path, now=clock)
    reply_model(trainer, train_request(9, 0))
    clock.now += 100 * ROUND
    for _ in range(5):
        assert trainer.tick()
    if restarted:
        trainer = make(tmp_path, now=clock)
    del trained[:]
    # Rounds 10 to 14 are done, but the server is in round 11: training resumes after round 9.
    assert torch.equal(reply_model(trainer, train_request(11, 0)), simulated(0, 12))
    assert trained == [2]
    # From here on the clock is right again.
    assert not trainer.tick()
    assert torch.equal(reply_model(trainer, train_request(12, 0)), simulated(0, 13))
    assert trained == [2, 1]


def test_nothing_is_trained_after_the_jobs_last_round(tmp_path, trained):
    clock = Clock()
    trainer = make(tmp_path, now=clock)
    reply_model(trainer, train_request(2, 0, job_rounds=5))
    clock.now += 10**6 * ROUND
    while trainer.tick():
        assert trainer.state.next_round <= 5
    assert trained == [3, 1, 1]
    assert not make(tmp_path, now=clock).tick()
    # The job is extended.
    assert torch.equal(reply_model(trainer, train_request(5, 0, job_rounds=7)), simulated(0, 6))
    clock.now += 10**6 * ROUND
    assert trainer.tick()
    assert not trainer.tick()
    assert trained == [3, 1, 1, 1, 1]


def test_setting_the_time_of_day_misses_no_rounds(tmp_path, monkeypatch):
    trainer = make(tmp_path)
    reply_model(trainer, train_request(0, 0))
    now = time.time
    monkeypatch.setattr("time.time", lambda: now() + 10**9)
    assert not trainer.tick()
    # A new process starts from the new time of day.
    assert make(tmp_path).tick()


EVENTS = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 3)),
    st.tuples(st.just("clock"), st.floats(-100 * ROUND, 100 * ROUND)),
    st.tuples(st.just("replay"), st.integers(0, 20)),
    st.sampled_from([("sync", 0), ("restart", 0)]),
)


@settings(max_examples=40)
@given(st.lists(EVENTS, max_size=12))
def test_replies_are_the_simulators_whatever_clocks_and_messages_do(tmp_path_factory, events):
    folder, clock, end = tmp_path_factory.mktemp("trainer"), Clock(), 8
    trainer = make(folder, now=clock)
    round, first, start = 0, 0, TASK.init()
    sent = []
    for kind, number in events:
        if kind == "ask":
            # The server's round is independent of the device's clock.
            round = min(round + number, end - 1)
            sent.append(
                (
                    train_request(round, first, start, job_rounds=end),
                    simulated(first, round - first + 1, start),
                )
            )
        elif kind == "sync" and sent and round + 1 < end:
            # The last reply counted.
            start = (sent[-1][1] + start) / 2
            first = round = round + 1
        elif kind == "restart":
            trainer = make(folder, now=clock)
        elif kind == "clock":
            clock.now += number
            while trainer.tick():
                assert trainer.state.next_round <= end
        if kind in ("ask", "replay") and sent:
            request, expected = sent[-1 if kind == "ask" else number % len(sent)]
            assert torch.equal(reply_model(trainer, request), expected)


def test_a_lazy_trainer_and_one_without_client_models_do_not_train_offline(tmp_path):
    clock = Clock()
    lazy = make(tmp_path / "a", now=clock, lazy=True)
    reply_model(lazy, train_request(0, 0))
    idle = make(tmp_path / "b", now=clock)
    reply_model(idle, train_request(0, 0, everyone=False))
    clock.now += 10 * ROUND
    assert not lazy.tick()
    assert not idle.tick()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_before_or_after_saving_loses_nothing(tmp_path, monkeypatch, when):
    """Between training and saving, and between saving and replying."""
    trainer = make(tmp_path)
    reply_model(trainer, train_request(0, 0))
    original = save_state

    def killed(path, state):
        if when == "after":
            original(path, state)
        raise Killed

    monkeypatch.setattr(trainer_module, "save_state", killed)
    with pytest.raises(Killed):
        trainer.handle(train_request(2, 0).pack())
    monkeypatch.setattr(trainer_module, "save_state", original)
    again = make(tmp_path)
    assert again.state.done == (1 if when == "before" else 3)
    assert torch.equal(reply_model(again, train_request(2, 0)), simulated(0, 3))


@pytest.mark.parametrize("loss", ["gone", "damaged", "foreign"])
def test_lost_state_costs_only_time(tmp_path, loss):
    reply_model(make(tmp_path), train_request(2, 0))
    path = tmp_path / "trainer.safetensors"
    if loss == "gone":
        path.unlink()
    elif loss == "damaged":
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(content)
    else:
        save_state(path, {"other": 1})
    assert torch.equal(reply_model(make(tmp_path), train_request(3, 0)), simulated(0, 4))


def test_another_job_starts_from_scratch(tmp_path, trained):
    trainer = make(tmp_path)
    reply_model(trainer, train_request(2, 0))
    assert torch.equal(reply_model(trainer, train_request(2, 0, job="k")), simulated(0, 3))
    assert trained == [3, 3]


def test_a_request_for_another_device_is_refused(tmp_path):
    trainer = make(tmp_path)
    with pytest.raises(MessageError, match="this is client 1, not 2"):
        trainer.handle(train_request(0, 0, client=2).pack())
    short = Vector("float32", bytes(4))
    with pytest.raises(MessageError, match="does not match this device's: vector of 1 values"):
        trainer.handle(
            train_request(0, 0, start=None)
            .pack()
            .__class__(train_request(0, 0).pack().header, {"start": short})
        )
    assert trainer.state is None


def test_a_model_that_diverges_is_refused_and_not_saved(tmp_path):
    trainer = make(tmp_path)
    reply_model(trainer, train_request(0, 0))
    huge = torch.full_like(TASK.init(), 3e38)
    with pytest.raises(DivergedError, match="client 1's model"):
        trainer.handle(train_request(1, 1, huge).pack())
    assert trainer.state.round == 0


def test_every_reply_is_logged(tmp_path):
    trainer = make(tmp_path)
    reply_model(trainer, train_request(2, 0))
    reply_model(trainer, replace(train_request(2, 0)))
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [(line["round"], line["trained_now"]) for line in lines] == [(2, 3), (2, 0)]
    assert lines[0]["checksum"] == lines[1]["checksum"]


def test_the_clock_starts_at_the_time_of_day():
    now = trainer_module.steady_clock()
    assert abs(now() - time.time()) < 1


@pytest.mark.parametrize(
    "change",
    [
        {"done": "x"},
        {"done": -3},
        {"round": 10**30},
        {"began": "now"},
        {"round_seconds": float("inf")},
        {"began": float("nan")},
        {"model": [1, 2]},
        {"model": torch.zeros(1)},
        {"segment": {}},
        {"segment": 3},
        {"job": None},
        {"request": 1},
        {"correction": 1},
        {"correction": torch.zeros(1)},
        {"kept": None},
        {"kept": {"x": {}}},
        {"kept": {-1: {}}},
        {"kept": {0: torch.zeros(1)}},
        {"kept": {0: {"c": 1}}},
        {"kept": {0: {"c": torch.zeros(1, 1)}}},
        {"kept": {0: {"c": torch.zeros(0)}}},
        {"kept": {0: {"c": torch.zeros(10**4)}}},
        {"more": 1},
    ],
)
def test_a_state_that_no_trainer_saved_is_not_used(tmp_path, change, caplog):
    trainer = Trainer(1, tmp_path, lambda settings: TASK)
    before = trainer.handle(train_request(0, 0).pack())
    state = {**trainer.state.on_disk(), **change}
    save_state(tmp_path / "trainer.safetensors", state)
    trainer = Trainer(1, tmp_path, lambda settings: TASK)
    assert trainer.state is None
    assert caplog.messages[0].startswith("starts from scratch: ")
    after = trainer.handle(train_request(0, 0).pack())
    assert after.vectors["upload model"].data == before.vectors["upload model"].data


def as_before(state, **change):
    """A state as the version before clients kept anything has saved it."""
    saved = {k: v for k, v in state.on_disk().items() if k not in ("correction", "kept", "request")}
    return {**saved, "segment": {**saved["segment"], "correction": None}, **change}


def test_the_file_of_an_earlier_version_is_continued(tmp_path, trained):
    trainer = make(tmp_path)
    reply_model(trainer, train_request(2, 0))
    save_state(tmp_path / "trainer.safetensors", as_before(trainer.state))
    assert torch.equal(reply_model(make(tmp_path), train_request(4, 0)), simulated(0, 5))
    assert trained == [3, 2]


def test_the_file_of_an_earlier_version_of_scaffold_is_not(tmp_path, caplog):
    trainer = make(tmp_path)
    reply_model(trainer, train_request(2, 0))
    segment = {**trainer.state.on_disk()["segment"], "correction": torch.ones_like(TASK.init())}
    save_state(tmp_path / "trainer.safetensors", as_before(trainer.state, segment=segment))
    assert make(tmp_path).state is None
    assert caplog.messages == ["starts from scratch: the state is that of an earlier version"]


@pytest.mark.parametrize("name", ["answers.jsonl", "trainer.safetensors", ".lock"])
def test_links_out_of_the_state_are_not_followed(tmp_path, name):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / name).symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match="is a link, which is not followed"):
        Trainer(1, tmp_path / "state", lambda settings: TASK)
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_log_that_cannot_be_written_stops_no_reply_half_way(tmp_path, monkeypatch):
    """A full disk: the error is one line, and the next attempt has the same bits."""
    trainer = Trainer(1, tmp_path, lambda settings: TASK)
    write, full = os.write, [True]

    def failing(handle, content):
        if full:
            full.clear()
            write(handle, bytes(content[:5]))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, content)

    monkeypatch.setattr(os, "write", failing)
    with pytest.raises(OSError, match=r"No space left on device: '.*answers\.jsonl'"):
        trainer.handle(train_request(0, 0).pack())
    reply = trainer.handle(train_request(0, 0).pack())
    assert torch.equal(torch.from_numpy(reply.vectors["upload model"].array()), simulated(0, 1))
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 1
    assert json.loads((tmp_path / "answers.jsonl").read_text())["round"] == 0
