from __future__ import annotations

import json
import logging
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from fedpbc.deployment.protocol.messages import Payload
from fedpbc.deployment.server import server_directory
from fedpbc.deployment.server.server_directory import ServerDirectory
from fedpbc.deployment.server.server_loop import NotServedError
from fedpbc.errors import FedpbcError, InputError
from fedpbc.storage import tensors
from fedpbc.storage.tensors import save_state
from tests.commandline import fedpbc, refused
from tests.deployment.fake_network import (
    ROUND,
    FakeNetwork,
    Killed,
    assert_same,
    make_server,
    make_trainers,
    simulated,
    small_task,
)

FATES = ["ok", "ok", "lost", "unheard", "late", "twice"]


def random_fates(seed):
    def fate(client, round):
        return np.random.default_rng((seed, client, round)).choice(FATES)

    return fate


def counted(fate, rounds, clients):
    """The expected A^t."""
    return [[i for i in range(clients) if fate(i, t) in ("ok", "twice")] for t in range(rounds)]


@pytest.mark.parametrize("algorithm", ["fedpbc", "fedavg", "fedawe", "mifa", "scaffold"])
@pytest.mark.parametrize("lazy", [True, False])
def test_the_result_is_the_simulators_whatever_the_network_does(tmp_path, algorithm, lazy):
    task, fate = small_task(), random_fates(1)
    network = FakeNetwork([], fate)
    network.trainers = make_trainers(task, tmp_path, algorithm, lazy=lazy, now=network.now)
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, algorithm, folder, network, rounds=10)
        server.run()
        lines = folder.lines
        assert_same(server, simulated(task, algorithm, lines))
    assert [line["active"] for line in lines] == counted(fate, 10, 3)
    # One request per round and node.
    assert sorted(network.requests) == [(i, t) for i in range(3) for t in range(10)]


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6))
def test_for_any_fates_fedpbc_is_exact(seed, tmp_path_factory):
    task, fate = small_task(), random_fates(seed)
    path = tmp_path_factory.mktemp("fleet")
    network = FakeNetwork(make_trainers(task, path, lazy=True), fate)
    with ServerDirectory(path / "server") as folder:
        server = make_server(task, "fedpbc", folder, network, rounds=6)
        server.run()
        assert_same(server, simulated(task, "fedpbc", folder.lines))


def test_a_round_ends_at_its_deadline_or_when_all_have_replied(tmp_path):
    task = small_task()
    network = FakeNetwork(
        make_trainers(task, tmp_path), lambda i, t: "lost" if (i, t) == (1, 1) else "ok"
    )
    with ServerDirectory(tmp_path / "server") as folder:
        make_server(task, "fedpbc", folder, network, rounds=3).run()
        took = [line["ended_s"] - line["began_s"] for line in folder.lines]
    assert took[0] < 1
    assert took[1] == pytest.approx(10.0)
    assert took[2] < 1


def test_a_server_killed_anywhere_resumes_to_the_same_models(tmp_path, monkeypatch):
    """Before and after each checkpoint, and before and after each line of the log."""
    task, fate = small_task(), random_fates(4)
    network = FakeNetwork(make_trainers(task, tmp_path), fate)
    add_line = ServerDirectory.add_line
    steps = {"n": 0, "kill": -1}

    def step(function, *arguments):
        for part in (None, function):
            if part is not None:
                part(*arguments)
            steps["n"] += 1
            if steps["n"] == steps["kill"]:
                raise Killed

    monkeypatch.setattr(server_directory, "save_state", lambda *a: step(save_state, *a))
    monkeypatch.setattr(ServerDirectory, "add_line", lambda *a: step(add_line, *a))
    kills = 0
    for attempt in range(40):
        steps.update(n=0, kill=3 + attempt % 5)
        try:
            with ServerDirectory(tmp_path / "server") as folder:
                server = make_server(task, "fedpbc", folder, network, rounds=8)
                server.run()
                log = (tmp_path / "server/rounds.jsonl").read_text().splitlines()
                lines = [json.loads(line) for line in log]
                assert [line["round"] for line in lines] == list(range(8))
                assert_same(server, simulated(task, "fedpbc", lines))
                break
        except Killed:
            kills += 1
    assert kills >= 4


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, caplog):
    task, fate = small_task(), random_fates(2)
    network = FakeNetwork(make_trainers(task, tmp_path), fate)
    with ServerDirectory(tmp_path / "server") as folder:
        make_server(task, "fedpbc", folder, network, rounds=5).run()
    newest = tmp_path / "server/checkpoint-1.safetensors"
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "fedpbc", folder, network, rounds=7)
        assert server.state.round == 4
        server.run()
        assert_same(server, simulated(task, "fedpbc", folder.lines))
    assert "ignored checkpoint-1.safetensors" in caplog.text
    for path in (tmp_path / "server").glob("checkpoint-*"):
        path.write_bytes(b"no")
    with (
        ServerDirectory(tmp_path / "server") as folder,
        pytest.raises(FedpbcError, match=r"all checkpoints .* are damaged"),
    ):
        make_server(task, "fedpbc", folder, network, rounds=7)


def test_a_bad_reply_is_rejected_and_the_others_count(tmp_path, caplog):
    task = small_task()

    class Bad(FakeNetwork):
        def reply(self, client, payload):
            reply = super().reply(client, payload)
            if client != 1 or payload.kind == "hello":
                return reply
            vector = reply.vectors["upload model"]
            not_finite = bytes([0, 0, 192, 127]) + vector.data[4:]
            return Payload(reply.header, {"upload model": type(vector)(vector.dtype, not_finite)})

    network = Bad(make_trainers(task, tmp_path), lambda i, t: "ok")
    with caplog.at_level(logging.WARNING), ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "fedpbc", folder, network, rounds=2)
        server.run()
        assert [line["active"] for line in folder.lines] == [[0, 2], [0, 2]]
        assert [line["refused"] for line in folder.lines] == [[1], [1]]
        assert_same(server, simulated(task, "fedpbc", folder.lines))
    assert caplog.messages == ["rejected node 101 (client 1): model is not finite"] * 2


def test_a_node_that_claims_anothers_client_is_rejected(tmp_path, caplog):
    task = small_task()
    trainers = make_trainers(task, tmp_path)
    trainers[2].client = 0
    network = FakeNetwork(trainers, lambda i, t: "ok")
    with caplog.at_level(logging.WARNING), ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "fedavg", folder, network, rounds=1)
        object.__setattr__(server.fleet, "wait_for", 2)
        server.run()
        assert [line["active"] for line in folder.lines] == [[0, 1]]
    assert "rejected node 102: claims to be client 0, which is node 100" in caplog.text


def test_models_load_in_plain_pytorch(tmp_path):
    task = small_task()
    network = FakeNetwork(make_trainers(task, tmp_path), lambda i, t: "ok")
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "fedpbc", folder, network, rounds=2)
        server.run()
        models = server.state.view_models()
    for view, model in models.items():
        parameters = load_file(tmp_path / f"server/models/{view}.safetensors")
        task.module.load_state_dict(parameters)
        flat = torch.cat([p.detach().reshape(-1) for p in task.module.parameters()])
        assert torch.equal(flat, model)


def test_a_folder_belongs_to_one_server_and_one_job(tmp_path):
    task = small_task()
    network = FakeNetwork(make_trainers(task, tmp_path), lambda i, t: "ok")
    with ServerDirectory(tmp_path / "server") as folder:
        make_server(task, "fedpbc", folder, network, rounds=1).run()
        with pytest.raises(FedpbcError, match="in use"), ServerDirectory(tmp_path / "server"):
            pass
    with (
        ServerDirectory(tmp_path / "server") as folder,
        pytest.raises(InputError, match="algorithm is fedavg"),
    ):
        make_server(task, "fedavg", folder, network, rounds=1)


@pytest.mark.parametrize(
    ("left", "message"),
    [
        (["rounds.jsonl"], "but rounds.jsonl of an earlier job: .* delete rounds.jsonl$"),
        (["finished.json"], "but finished.json of an earlier job"),
        (
            ["rounds.jsonl", "finished.json"],
            "but rounds.jsonl and finished.json of .* delete rounds.jsonl and finished.json$",
        ),
    ],
    ids=str,
)
def test_a_new_job_does_not_continue_the_log_of_an_old_one(tmp_path, left, message):
    folder = tmp_path / "server"
    run_fedau(tmp_path, rounds=2)
    for path in folder.iterdir():
        if path.name not in left and path.is_file():
            path.unlink()
    before = {name: (folder / name).read_bytes() for name in left}
    with pytest.raises(FedpbcError, match=message):
        run_fedau(tmp_path, rounds=2)
    assert {name: (folder / name).read_bytes() for name in left} == before
    assert not list(folder.glob("checkpoint-*"))
    # The launcher starts nothing.
    assert "take a new folder" in refused(fedpbc("fleet", "server", folder))
    for name in left:
        (folder / name).unlink()
    run_fedau(tmp_path, rounds=2)


def run_fedau(path, *, rounds, global_lr=1.0, **options):
    """Run a job to its end."""
    task = small_task()
    network = FakeNetwork(make_trainers(task, path / "devices"), lambda i, t: "ok")
    algorithm = {"name": "fedau", **options}
    with ServerDirectory(path / "server") as folder:
        make_server(task, algorithm, folder, network, rounds, global_lr).run()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"cutoff": 7}, r"algorithm\.cutoff is 7, but .* started with 50$"),
        ({"global_lr": 2.0}, r"train\.global_learning_rate is 2\.0, but .* started with 1\.0$"),
    ],
    ids=["option", "rate"],
)
def test_a_job_resumes_only_with_the_options_it_started_with(tmp_path, changed, message):
    run_fedau(tmp_path, rounds=1)
    with pytest.raises(InputError, match=message):
        run_fedau(tmp_path, rounds=2, **changed)
    # More rounds are allowed, and so is a default that is now given explicitly.
    run_fedau(tmp_path, rounds=2, cutoff=50)
    for path in (tmp_path / "server").glob("checkpoint-*"):
        older = tensors.load_state(path)
        del older["options"]
        tensors.save_state(path, older)
    with pytest.raises(InputError, match=message):
        run_fedau(tmp_path, rounds=3, **changed)
    run_fedau(tmp_path, rounds=3)


def test_a_node_that_does_not_identify_itself_is_asked_again(tmp_path):
    task = small_task()

    class Shy(FakeNetwork):
        hellos = 0

        def reply(self, client, payload):
            if payload.kind == "hello" and client == 2:
                self.hellos += 1
                if self.hellos < 3:
                    return Payload({"kind": "refusal", "reason": "no trainer responds"})
            return super().reply(client, payload)

    network = Shy(make_trainers(task, tmp_path), lambda i, t: "ok")
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "fedpbc", folder, network, rounds=2)
        server.run()
        assert [line["active"] for line in folder.lines] == [[0, 1, 2]] * 2
    assert network.hellos == 3
    assert network.clock == pytest.approx(22, abs=1.5)


class LateNetwork(FakeNetwork):
    """A network in which client 1 connects a certain time after each round began."""

    def __init__(self, trainers, delay: float) -> None:
        super().__init__(trainers, lambda client, round: "ok")
        self.delay, self.sent_after = delay, []

    def nodes(self):
        is_late = self.clock % ROUND < self.delay and self.clock > 0
        return [100] if is_late else [100, 101]

    def send(self, node, payload, seconds):
        self.sent_after.append((node, seconds))
        return super().send(node, payload, seconds)

    def collect(self, messages):
        # Client 0 never replies, so that rounds take their whole time.
        return [reply for reply in super().collect(messages) if reply.node != 100]


@pytest.mark.parametrize(("delay", "is_asked"), [(7.75, True), (8.75, False), (9.75, False)])
def test_nothing_is_sent_with_less_than_two_seconds_left(tmp_path, delay, is_asked):
    """It would expire on its way, which once killed the server."""
    task = small_task(2)
    network = LateNetwork(make_trainers(task, tmp_path), delay)
    (tmp_path / "server").mkdir()
    (tmp_path / "server/nodes.json").write_text('{"pinned": {"100": 0, "101": 1}}')
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "fedpbc", folder, network, rounds=3)
        # Client 0 is never heard.
        with nullcontext() if is_asked else pytest.raises(NotServedError):
            server.run()
        assert_same(server, simulated(task, "fedpbc", folder.lines))
    late = [seconds for node, seconds in network.sent_after[2:] if node == 101]
    assert bool(late) == is_asked
    assert all(2.0 <= seconds <= ROUND for _, seconds in network.sent_after)


def test_a_failed_send_concerns_one_node(tmp_path, caplog):
    task = small_task()

    class FailingNetwork(FakeNetwork):
        def send(self, node, payload, seconds):
            if node == 101 and payload.kind == "work" and payload.integer("round") == 1:
                raise RuntimeError("Message TTL has expired")
            return super().send(node, payload, seconds)

    network = FailingNetwork(make_trainers(task, tmp_path), lambda client, round: "ok")
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "fedpbc", folder, network, rounds=3)
        server.run()
        assert [line["active"] for line in folder.lines] == [[0, 1, 2], [0, 2], [0, 1, 2]]
        assert_same(server, simulated(task, "fedpbc", folder.lines))
    assert "cannot send to node 101: RuntimeError: Message TTL has expired" in caplog.messages
