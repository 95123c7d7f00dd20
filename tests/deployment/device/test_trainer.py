from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpbc.deployment.device import trainer as trainer_module
from fedpbc.deployment.device.trainer import Trainer
from fedpbc.deployment.protocol.messages import MessageError, TrainReply, TrainRequest, Vector
from fedpbc.deployment.server.server_loop import to_vector
from fedpbc.engines.segment import Segment
from fedpbc.engines.serial import train
from fedpbc.errors import DivergedError
from fedpbc.storage.tensors import save_state
from tests.deployment.streets import ROUND, Killed, small_task

TASK = small_task()
T = 200


def work(round, first_round, start=None, **rest):
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
            "start": to_vector(TASK.init() if start is None else start),
            **rest,
        }
    )


def direct(first_round, rounds, start=None, scale=1.0):
    """What the simulator's engine makes of it."""
    start = TASK.init() if start is None else start
    return train(TASK, Segment(1, start, first_round, rounds, 2 * first_round, scale)).end


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def make(folder, **options):
    return Trainer(1, folder, lambda settings: TASK, **options)


def answer(trainer, wanted):
    found = TrainReply.unpack(trainer.handle(wanted.pack()))
    assert (found.job, found.round, found.client) == (wanted.job, wanted.round, 1)
    return torch.from_numpy(found.end.array())


@pytest.fixture
def trained(monkeypatch):
    """How many rounds were really trained."""
    rounds = []
    original = train
    monkeypatch.setattr(
        trainer_module, "train", lambda task, s: rounds.append(s.rounds) or original(task, s)
    )
    return rounds


def test_rounds_missed_are_caught_up_on_contact(tmp_path, trained):
    trainer = make(tmp_path, lazy=True)
    assert torch.equal(answer(trainer, work(2, 0)), direct(0, 3))
    # Its answer did not count: it goes on from its own model, and only with what is new.
    assert torch.equal(answer(trainer, work(4, 0)), direct(0, 5))
    assert trained == [3, 2]


def test_a_new_model_is_installed_and_an_old_message_changes_nothing(tmp_path):
    trainer = make(tmp_path)
    answer(trainer, work(2, 0))
    synced = torch.ones_like(TASK.init())
    new = work(4, 3, synced)
    assert torch.equal(answer(trainer, new), direct(3, 2, synced))
    # Replayed: answered again, to the bit, and what follows is as if it had never come.
    assert torch.equal(answer(trainer, work(2, 0)), direct(0, 3))
    assert torch.equal(answer(trainer, work(5, 3, synced)), direct(3, 3, synced))


def test_the_same_message_twice_is_trained_once(tmp_path, trained):
    trainer = make(tmp_path)
    first = answer(trainer, work(1, 0))
    assert torch.equal(answer(trainer, work(1, 0)), first)
    assert torch.equal(answer(make(tmp_path), work(1, 0)), first)
    assert trained == [2]


def test_eta_g_is_applied_to_each_round(tmp_path):
    found = answer(make(tmp_path), work(2, 0, scale=0.5))
    assert torch.equal(found, direct(0, 3, scale=0.5))


def test_it_trains_on_by_its_own_clock_and_no_round_before_it_is_over(tmp_path, trained):
    clock = Clock()
    trainer = make(tmp_path, now=clock)
    assert not trainer.tick()
    answer(trainer, work(0, 0, age=2.0))
    # Round 0 began at 998, so round 1 is over at 1018: until then its message may come.
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
    # Rounds 1 to 3 passed without a link: only round 4 is left to train.
    assert torch.equal(answer(trainer, work(4, 0)), direct(0, 5))
    assert trained[4:] == [1]


def test_its_clock_goes_on_after_a_restart(tmp_path):
    clock = Clock()
    answer(make(tmp_path, now=clock), work(0, 0))
    clock.now += 2 * ROUND
    again = make(tmp_path, now=clock)
    assert again.tick()
    clock.now += ROUND
    third = make(tmp_path, now=clock)
    assert third.tick()
    assert third.progress.next_round == 3


@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_that_ran_ahead_of_the_server_costs_no_more_than_what_it_trained(
    tmp_path, trained, restarted
):
    clock = Clock()
    trainer = make(tmp_path, now=clock)
    answer(trainer, work(9, 0))
    clock.now += 100 * ROUND
    for _ in range(5):
        assert trainer.tick()
    if restarted:
        trainer = make(tmp_path, now=clock)
    del trained[:]
    # Rounds 10 to 14 are done here, but the server is in round 11: it goes on from round 9.
    assert torch.equal(answer(trainer, work(11, 0)), direct(0, 12))
    assert trained == [2]
    # From there on its clock is right again.
    assert not trainer.tick()
    assert torch.equal(answer(trainer, work(12, 0)), direct(0, 13))
    assert trained == [2, 1]


def test_after_the_jobs_last_round_there_is_nothing_to_train(tmp_path, trained):
    clock = Clock()
    trainer = make(tmp_path, now=clock)
    answer(trainer, work(2, 0, job_rounds=5))
    clock.now += 10**6 * ROUND
    while trainer.tick():
        assert trainer.progress.next_round <= 5
    assert trained == [3, 1, 1]
    assert not make(tmp_path, now=clock).tick()
    # The job was given more rounds.
    assert torch.equal(answer(trainer, work(5, 0, job_rounds=7)), direct(0, 6))
    clock.now += 10**6 * ROUND
    assert trainer.tick()
    assert not trainer.tick()
    assert trained == [3, 1, 1, 1, 1]


def test_a_time_of_day_that_is_set_makes_no_rounds_pass(tmp_path, monkeypatch):
    trainer = make(tmp_path)
    answer(trainer, work(0, 0))
    now = time.time
    monkeypatch.setattr("time.time", lambda: now() + 10**9)
    assert not trainer.tick()
    # Another process has nothing else to go by.
    assert make(tmp_path).tick()


EVENTS = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 3)),
    st.tuples(st.just("clock"), st.floats(-100 * ROUND, 100 * ROUND)),
    st.tuples(st.just("replay"), st.integers(0, 20)),
    st.sampled_from([("sync", 0), ("restart", 0)]),
)


@settings(max_examples=40)
@given(st.lists(EVENTS, max_size=12))
def test_whatever_clocks_and_messages_do_answers_are_the_simulators(tmp_path_factory, events):
    place, clock, end = tmp_path_factory.mktemp("trainer"), Clock(), 8
    trainer = make(place, now=clock)
    round, first, start = 0, 0, TASK.init()
    sent = []
    for kind, number in events:
        if kind == "ask":
            # The server's rounds are its own: whatever the device's clock makes of them.
            round = min(round + number, end - 1)
            sent.append(
                (work(round, first, start, job_rounds=end), direct(first, round - first + 1, start))
            )
        elif kind == "sync" and sent and round + 1 < end:
            # Its last answer counted.
            start = (sent[-1][1] + start) / 2
            first = round = round + 1
        elif kind == "restart":
            trainer = make(place, now=clock)
        elif kind == "clock":
            clock.now += number
            while trainer.tick():
                assert trainer.progress.next_round <= end
        if kind in ("ask", "replay") and sent:
            wanted, expected = sent[-1 if kind == "ask" else number % len(sent)]
            assert torch.equal(answer(trainer, wanted), expected)


def test_a_lazy_trainer_and_one_of_an_algorithm_without_own_models_wait(tmp_path):
    clock = Clock()
    lazy = make(tmp_path / "a", now=clock, lazy=True)
    answer(lazy, work(0, 0))
    idle = make(tmp_path / "b", now=clock)
    answer(idle, work(0, 0, everyone=False))
    clock.now += 10 * ROUND
    assert not lazy.tick()
    assert not idle.tick()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_around_the_moment_of_persisting_loses_nothing(tmp_path, monkeypatch, when):
    """Between computing and persisting, and between persisting and replying."""
    trainer = make(tmp_path)
    answer(trainer, work(0, 0))
    original = save_state

    def killed(path, state):
        if when == "after":
            original(path, state)
        raise Killed

    monkeypatch.setattr(trainer_module, "save_state", killed)
    with pytest.raises(Killed):
        trainer.handle(work(2, 0).pack())
    monkeypatch.setattr(trainer_module, "save_state", original)
    again = make(tmp_path)
    assert again.progress.done == (1 if when == "before" else 3)
    assert torch.equal(answer(again, work(2, 0)), direct(0, 3))


@pytest.mark.parametrize("loss", ["gone", "damaged", "foreign"])
def test_a_lost_disk_costs_time_only(tmp_path, loss):
    answer(make(tmp_path), work(2, 0))
    place = tmp_path / "trainer.safetensors"
    if loss == "gone":
        place.unlink()
    elif loss == "damaged":
        content = bytearray(place.read_bytes())
        content[-3] ^= 1
        place.write_bytes(content)
    else:
        save_state(place, {"other": 1})
    assert torch.equal(answer(make(tmp_path), work(3, 0)), direct(0, 4))


def test_another_job_begins_anew(tmp_path, trained):
    trainer = make(tmp_path)
    answer(trainer, work(2, 0))
    assert torch.equal(answer(trainer, work(2, 0, job="k")), direct(0, 3))
    assert trained == [3, 3]


def test_what_is_not_for_this_device_is_refused(tmp_path):
    trainer = make(tmp_path)
    with pytest.raises(MessageError, match="this is client 1, not 2"):
        trainer.handle(work(0, 0, client=2).pack())
    short = Vector("float32", bytes(4))
    with pytest.raises(MessageError, match="another than this device's: its vector has 1 values"):
        trainer.handle(
            work(0, 0, start=None).pack().__class__(work(0, 0).pack().header, {"start": short})
        )
    assert trainer.progress is None


def test_a_model_that_diverges_is_refused_and_not_kept(tmp_path):
    trainer = make(tmp_path)
    answer(trainer, work(0, 0))
    huge = torch.full_like(TASK.init(), 3e38)
    with pytest.raises(DivergedError, match="client 1's model"):
        trainer.handle(work(1, 1, huge).pack())
    assert trainer.progress.round == 0


def test_every_answer_is_logged(tmp_path):
    trainer = make(tmp_path)
    answer(trainer, work(2, 0))
    answer(trainer, replace(work(2, 0)))
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [(line["round"], line["trained_now"]) for line in lines] == [(2, 3), (2, 0)]
    assert lines[0]["checksum"] == lines[1]["checksum"]
