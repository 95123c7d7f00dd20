"""What a client keeps: which version counts is decided by the server's requests alone."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpbc.deployment.device import trainer as trainer_module
from fedpbc.deployment.device.trainer import Trainer
from fedpbc.deployment.protocol.messages import MessageError, TrainReply, TrainRequest
from fedpbc.deployment.protocol.tensors import initial_checksum, to_vector, to_vectors
from fedpbc.engines.segment import Segment
from fedpbc.engines.serial import train, train_model
from fedpbc.errors import FedpbcError
from fedpbc.simulation.build import make_algorithm
from fedpbc.storage.tensors import load_state, save_state
from tests.deployment.fake_network import ROUND, Killed, restarted, small_task
from tests.deployment.rules import STATEFUL

TASK = small_task()
T = 200


class Client:
    """A server's view of one client, and what the client should keep and upload."""

    def __init__(self, name="scaffold", job="j"):
        self.algorithm = make_algorithm(STATEFUL[name], TASK)
        self.rule, self.job = self.algorithm.client_rule(), job
        self.initial = self.rule.initial_state(TASK.init())
        # After counted replies only.
        self.counted, self.state, self.start = -1, self.initial, TASK.init()
        self.replied = None

    def segment(self, round):
        algorithm = self.algorithm
        first = self.counted + 1 if algorithm.client_models else round
        received = {name: vector + 0.1 for name, vector in algorithm.message(1).items()}
        return Segment(1, self.start, first, round - first + 1, 2 * first, 1.0, self.rule, received)

    def request(self, round, **rest):
        segment = self.segment(round)
        fields = {
            "job": self.job,
            "round": round,
            "client": 1,
            "first_round": segment.first_round,
            "rounds": segment.rounds,
            "first_batch": segment.first_batch,
            "scale": 1.0,
            "everyone": self.algorithm.everyone_trains,
            "settings": "{}",
            "round_seconds": ROUND,
            "age": 0.0,
            "job_rounds": T,
            "counted": self.counted,
            "start_over": -1,
            "initial": initial_checksum(self.initial),
            "start": to_vector(segment.start),
            "received": to_vectors(segment.received),
        }
        return TrainRequest(**{**fields, **rest})

    def expected(self, round):
        """What the simulator's engine computes."""
        return train(TASK, replace(self.segment(round), state=self.state))

    def count(self, round):
        """The server counts the reply to this round, and sends another model from now on."""
        trained = self.expected(round)
        end = trained.upload.get("model", trained.segment.start + 0.01)
        self.counted, self.state, self.start = round, trained.state, (self.start + end) / 2


def make(folder, client, **options):
    return Trainer(1, folder, lambda settings: TASK, lambda s, t: client.rule, **options)


def asked(trainer, request):
    reply = TrainReply.unpack(trainer.handle(request.pack()))
    assert (reply.job, reply.round, reply.client) == (request.job, request.round, 1)
    return {name: torch.from_numpy(vector.array()) for name, vector in reply.upload.items()}


def assert_equal(upload, expected):
    assert set(upload) == set(expected.upload)
    for name, vector in expected.upload.items():
        assert torch.equal(upload[name], vector), name


@pytest.fixture(params=["scaffold", "mifa", "focus", "drift"])
def client(request):
    return Client(request.param)


def test_a_state_counts_once_the_server_has_counted_its_reply(tmp_path, client):
    trainer = make(tmp_path, client)
    for round, counts in enumerate([True, False, False, True, True, False, True, False, False]):
        assert_equal(asked(trainer, client.request(round)), client.expected(round))
        if counts:
            client.count(round)
    # Of the reply, of the last counted one, and of the one before.
    assert sorted(trainer.state.kept) == [4, 6, 8]
    for name, vector in trainer.state.kept[6].items():
        assert torch.equal(vector, client.state[name])


def test_nothing_else_than_the_file_is_needed(tmp_path, client):
    for round, counts in enumerate([True, False, True, True, False]):
        assert_equal(asked(make(tmp_path, client), client.request(round)), client.expected(round))
        if counts:
            client.count(round)


def test_the_same_request_gets_the_same_bits_and_changes_nothing(tmp_path, client):
    trainer = make(tmp_path, client)
    asked(trainer, client.request(0))
    client.count(0)
    first = asked(trainer, client.request(2))
    before = load_state(tmp_path / "trainer.safetensors")
    for again in (trainer, restarted(trainer)):
        assert_equal(asked(again, client.request(2, age=7.0)), client.expected(2))
    after = load_state(tmp_path / "trainer.safetensors")
    assert after["kept"].keys() == before["kept"].keys() == {0, 2}
    for round in (0, 2):
        for name, vector in before["kept"][round].items():
            assert torch.equal(after["kept"][round][name], vector)
    client.count(2)
    assert_equal(asked(trainer, client.request(3)), client.expected(3))
    assert first.keys() == set(client.rule.uploads)


def test_an_older_request_is_refused_and_changes_nothing(tmp_path, client):
    trainer = make(tmp_path, client)
    old = client.request(0)
    asked(trainer, old)
    client.count(0)
    newer = client.request(1)
    asked(trainer, client.request(3))
    before = (tmp_path / "trainer.safetensors").read_bytes()
    log = (tmp_path / "answers.jsonl").read_bytes()
    for late in (old, newer):
        with pytest.raises(MessageError, match=f"of round {late.round}, .* replied to round 3$"):
            trainer.handle(late.pack())
    assert (tmp_path / "trainer.safetensors").read_bytes() == before
    assert (tmp_path / "answers.jsonl").read_bytes() == log
    client.count(3)
    assert_equal(asked(trainer, client.request(4)), client.expected(4))


def test_there_is_one_reply_to_a_round(tmp_path, client):
    """A server with two histories: only one of its requests of a round is replied to."""
    trainer = make(tmp_path, client)
    asked(trainer, client.request(0))
    client.count(0)
    asked(trainer, client.request(2))
    other = client.request(2, start=to_vector(torch.ones_like(TASK.init())))
    with pytest.raises(MessageError, match=r"has replied to another request of round 2$"):
        trainer.handle(other.pack())
    along = {name: to_vector(torch.ones(1)) for name in other.received}
    if along:
        with pytest.raises(MessageError, match=r"another request of round 2$"):
            trainer.handle(client.request(2, received=along).pack())
    client.count(2)
    assert_equal(asked(trainer, client.request(3)), client.expected(3))


def test_a_server_that_fell_back_one_round_finds_the_state_before(tmp_path, client):
    trainer = make(tmp_path, client)
    asked(trainer, client.request(0))
    client.count(0)
    asked(trainer, client.request(1))
    kept = client.counted, client.state, client.start
    client.count(1)
    asked(trainer, client.request(2))
    # Its newest checkpoint was damaged: it does not know of round 1.
    client.counted, client.state, client.start = kept
    with pytest.raises(MessageError, match="of round 1, but"):
        trainer.handle(client.request(1).pack())
    assert_equal(asked(trainer, client.request(3)), client.expected(3))
    client.count(3)
    assert_equal(asked(trainer, client.request(4)), client.expected(4))


@pytest.mark.parametrize("loss", ["gone", "damaged", "foreign", "another job", "too old"])
def test_a_device_without_the_state_says_so_and_changes_nothing(tmp_path, loss, client):
    trainer, path = make(tmp_path, client), tmp_path / "trainer.safetensors"
    for round in range(4):
        asked(trainer, client.request(round))
        if round == 0:
            first = path.read_bytes()
        client.count(round)
    if loss == "gone":
        path.unlink()
    elif loss == "damaged":
        path.write_bytes(path.read_bytes()[:-1])
    elif loss == "foreign":
        save_state(path, {"other": 1})
    elif loss == "another job":
        asked(trainer, Client(client.algorithm.name, job="k").request(0))
    else:
        path.write_bytes(first)
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(MessageError) as refused:
        make(tmp_path, client).handle(client.request(5).pack())
    assert str(refused.value) == (
        "this device has lost what client 1 keeps: the server counted its answer to round 3; put "
        "back the folder 'state' of the device that gave it, or start a new job; this job goes on "
        "without the client"
    )
    assert (path.read_bytes() if path.exists() else None) == before


def test_before_the_first_counted_reply_a_lost_disk_costs_only_time(tmp_path, client):
    asked(make(tmp_path, client), client.request(0))
    (tmp_path / "trainer.safetensors").unlink()
    assert_equal(asked(make(tmp_path, client), client.request(3)), client.expected(3))


def test_another_job_starts_from_the_initial_state(tmp_path, client):
    trainer = make(tmp_path, client)
    for round in range(3):
        asked(trainer, client.request(round))
        client.count(round)
    again = Client(client.algorithm.name, job="k")
    assert_equal(asked(trainer, again.request(0)), again.expected(0))
    assert sorted(trainer.state.kept) == [0]


def test_an_initial_state_that_is_not_the_servers_is_refused(tmp_path):
    """Of a rule that starts from x⁰, which need not be the same on all machines."""
    client = Client("area")
    client.initial = {"delivered": TASK.init() + 1e-3}
    with pytest.raises(MessageError, match="is not what the server expects: the initial model"):
        make(tmp_path, client).handle(client.request(0).pack())
    assert not (tmp_path / "trainer.safetensors").exists()


def test_a_client_with_its_own_model_trains_on_while_offline(tmp_path, monkeypatch):
    client, rounds, now = Client("drift"), [], [1000.0]

    def noted(task, segment, correction):
        rounds.append(segment.rounds)
        return train_model(task, segment, correction)

    monkeypatch.setattr(trainer_module, "train_model", noted)
    trainer = make(tmp_path, client, now=lambda: now[0])
    asked(trainer, client.request(0))
    client.count(0)
    asked(trainer, client.request(1))
    now[0] += 10 * ROUND
    for _ in range(3):
        assert trainer.tick()
    trainer = restarted(trainer)
    # Rounds 2 to 4 are trained: the correction stays that of the counted state.
    del rounds[:]
    assert_equal(asked(trainer, client.request(5)), client.expected(5))
    assert rounds == [1]


def test_a_correction_that_depends_on_the_rounds_is_that_of_all_of_them(tmp_path):
    """What was trained while offline, with the correction of fewer rounds, is done again."""
    client, now = Client("drift"), [1000.0]

    class Impatient(type(client.rule)):
        def correction(self, work):
            return super().correction(work) * len(work.rates)

    client.rule = Impatient()
    trainer = make(tmp_path, client, now=lambda: now[0])
    for round in (0, 1, 2):
        assert_equal(asked(trainer, client.request(round)), client.expected(round))
        if round == 0:
            client.count(0)
    now[0] += 10 * ROUND
    assert trainer.tick()
    assert_equal(asked(trainer, client.request(4)), client.expected(4))


def test_steps_of_a_rules_own_are_taken_when_they_are_asked_for(tmp_path):
    client, now = Client("focus"), [1000.0]
    trainer = make(tmp_path, client, now=lambda: now[0])
    asked(trainer, client.request(0, everyone=True))
    now[0] += 10 * ROUND
    assert not trainer.tick()


def test_a_reply_that_fails_changes_nothing(tmp_path):
    client = Client("scaffold")
    trainer = make(tmp_path, client)
    asked(trainer, client.request(0))
    client.count(0)
    huge = to_vector(torch.full_like(TASK.init(), 3e38))
    before = (tmp_path / "trainer.safetensors").read_bytes()
    with pytest.raises(FedpbcError):
        trainer.handle(client.request(1, start=huge).pack())
    assert (tmp_path / "trainer.safetensors").read_bytes() == before
    assert_equal(asked(trainer, client.request(1)), client.expected(1))


STEPS = ("os.fsync", "os.write", "os.open", "os.close", "pathlib.Path.replace")


class KilledAt:
    """Stands for SIGKILL before the n-th call of the system, or after it."""

    def __init__(self, monkeypatch, number, when):
        self.left = number
        for name in STEPS:
            module, _, attribute = name.rpartition(".")
            owner = os if module == "os" else Path
            original = getattr(owner, attribute)
            monkeypatch.setattr(owner, attribute, self.wrapped(original, when))

    def wrapped(self, original, when):
        def call(*arguments, **options):
            self.left -= 1
            if self.left == 0 and when == "before":
                raise Killed
            result = original(*arguments, **options)
            if self.left == 0:
                raise Killed
            return result

        return call


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["scaffold", "mifa", "drift"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("counted", [True, False])
def test_killed_between_any_two_steps_it_stays_exact(tmp_path, name, when, counted, monkeypatch):
    """Whether the reply before was counted or not, and whatever of the new one is on disk."""
    killed, number = 0, 0
    while True:
        number += 1
        client, folder = Client(name), tmp_path / str(number)
        trainer = make(folder, client)
        asked(trainer, client.request(0))
        client.count(0)
        asked(trainer, client.request(1))
        if counted:
            client.count(1)
        with monkeypatch.context() as patch:
            KilledAt(patch, number, when)
            try:
                trainer.handle(client.request(2).pack())
                survived = True
            except Killed:
                survived, killed = False, killed + 1
        # The new process gets the same request, or only that of the next round.
        trainer = make(folder, client)
        if number % 2:
            assert_equal(asked(trainer, client.request(2)), client.expected(2))
            client.count(2)
        assert_equal(asked(trainer, client.request(3)), client.expected(3))
        client.count(3)
        assert_equal(asked(restarted(trainer), client.request(4)), client.expected(4))
        if survived:
            break
    assert killed >= 8


EVENTS = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 3)),
    st.tuples(st.just("replay"), st.integers(0, 20)),
    st.tuples(st.just("kill"), st.integers(1, 14)),
    st.tuples(st.just("clock"), st.floats(0, 5 * ROUND)),
    st.sampled_from([("count", 0), ("count", 0), ("restart", 0)]),
)


@settings(max_examples=60)
@given(st.sampled_from(["scaffold", "mifa", "focus", "drift"]), st.lists(EVENTS, max_size=14))
def test_for_any_sequence_of_faults_counted_replies_are_the_simulators(
    tmp_path_factory, name, events
):
    """Replies that get lost, requests that come twice or late, kills, restarts, clocks."""
    client, folder, now = Client(name), tmp_path_factory.mktemp("client"), [1000.0]
    trainer = make(folder, client, now=lambda: now[0])
    round, replied, requests = -1, -1, []
    for kind, number in events:
        if kind == "count" and replied == round > client.counted:
            client.count(round)
        elif kind == "restart":
            trainer = restarted(trainer)
        elif kind == "clock":
            now[0] += number
            while trainer.tick():
                pass
        elif kind == "ask" or (kind == "kill" and round >= 0):
            # A killed trainer gets a request, and after that nobody asks again in that round.
            if kind == "ask":
                round = max(round + number, client.counted + 1)
            elif round == client.counted:
                round += 1
            requests.append(client.request(round))
            if kind == "ask":
                assert_equal(asked(trainer, requests[-1]), client.expected(round))
                replied = round
                continue
            with pytest.MonkeyPatch.context() as patch:
                KilledAt(patch, number, "before")
                try:
                    trainer.handle(requests[-1].pack())
                    replied = round
                except Killed:
                    pass
            trainer = restarted(trainer)
        elif kind == "replay" and requests:
            late = requests[number % len(requests)]
            if late.round == trainer.state.round:
                # The server has not fallen back: it is the same request.
                asked(trainer, late)
            elif late.round < trainer.state.round:
                with pytest.raises(MessageError):
                    trainer.handle(late.pack())
    round = max(round, client.counted) + 1
    assert_equal(asked(trainer, client.request(round)), client.expected(round))
