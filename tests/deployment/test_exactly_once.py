"""What clients keep counts exactly once, whatever the network, the devices and the server do."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpbc.deployment.protocol.messages import Payload, Vector
from fedpbc.deployment.server import server_directory
from fedpbc.deployment.server.server_directory import ServerDirectory
from fedpbc.storage.tensors import save_state
from tests.deployment.fake_network import (
    FakeNetwork,
    Killed,
    assert_same,
    make_server,
    make_trainers,
    simulated,
    simulation_of,
    small_task,
)
from tests.deployment.rules import STATEFUL

FATES = ["ok", "ok", "ok", "lost", "unheard", "late", "twice", "again", "delayed", "restart"]
COUNTED = ("ok", "twice", "again", "restart")


def random_fates(seed, fates=FATES):
    def fate(client, round):
        return np.random.default_rng((seed, client, round)).choice(fates)

    return fate


def make_network(task, path, algorithm, fate, *, lazy=False):
    network = FakeNetwork([], fate)
    network.trainers = make_trainers(task, path, algorithm, lazy=lazy, now=network.now)
    return network


def ticking(network):
    """A network whose devices also train by the clock, while the server waits."""
    wait = network.wait

    def wait_and_tick(seconds):
        wait(seconds)
        for trainer in network.trainers:
            trainer.tick()

    network.wait = wait_and_tick
    return network


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*STATEFUL, "ca_fed"])
@pytest.mark.parametrize("lazy", [True, False])
def test_the_result_is_the_simulators_whatever_the_network_does(tmp_path, name, lazy):
    task, fate, algorithm = small_task(), random_fates(1), STATEFUL.get(name, name)
    network = ticking(make_network(task, tmp_path, algorithm, fate, lazy=lazy))
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, algorithm, folder, network, rounds=15)
        server.run()
        assert_same(server, simulated(task, algorithm, folder.lines))
        lines = folder.lines
    assert [line["active"] for line in lines] == [
        [i for i in range(3) if fate(i, t) in COUNTED] for t in range(15)
    ]
    # Nothing of what clients keep has reached the server.
    assert server.state.client_states == {}


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), name=st.sampled_from([*STATEFUL]))
def test_for_any_fates_the_result_is_exact(seed, name, tmp_path_factory):
    task, algorithm = small_task(), STATEFUL[name]
    path = tmp_path_factory.mktemp("fleet")
    network = ticking(make_network(task, path, algorithm, random_fates(seed)))
    with ServerDirectory(path / "server") as folder:
        server = make_server(task, algorithm, folder, network, rounds=8)
        server.run()
        assert_same(server, simulated(task, algorithm, folder.lines))


@pytest.mark.long
def test_over_300_rounds_lost_replies_leave_no_trace(tmp_path, monkeypatch):
    """A tenth of the replies is lost after the client computed it."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    task, fate = small_task(), random_fates(7, ["ok"] * 9 + ["unheard"])
    models, lost = {}, 0
    for name, algorithm in (
        ("scaffold", "scaffold"),
        ("client", {"name": "mifa", "memory": "client"}),
        ("server", {"name": "mifa", "memory": "server"}),
    ):
        network = make_network(task, tmp_path / name, algorithm, fate)
        with ServerDirectory(tmp_path / name / "server") as folder:
            server = make_server(task, algorithm, folder, network, rounds=300)
            server.run()
            assert_same(server, simulated(task, algorithm, folder.lines))
            lost = 900 - sum(len(line["active"]) for line in folder.lines)
        models[name] = server.state.algorithm.x.double()
    assert 60 < lost < 120
    difference = (models["client"] - models["server"]).norm() / models["server"].norm()
    assert difference < 1e-6


@pytest.mark.parametrize("name", ["scaffold", "mifa", "drift"])
def test_a_server_killed_anywhere_resumes_to_the_same_models(tmp_path, monkeypatch, name):
    """Before and after each checkpoint, and before and after each line of the log."""
    task, algorithm = small_task(), STATEFUL[name]
    network = make_network(task, tmp_path, algorithm, random_fates(4))
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
    for attempt in range(60):
        steps.update(n=0, kill=3 + attempt % 5)
        try:
            with ServerDirectory(tmp_path / "server") as folder:
                server = make_server(task, algorithm, folder, network, rounds=10)
                server.run()
                assert_same(server, simulated(task, algorithm, folder.lines))
                break
        except Killed:
            kills += 1
    assert kills >= 5
    assert sum(len(line["active"]) for line in folder.lines) >= 10


@pytest.mark.parametrize("name", ["scaffold", "mifa", "drift", "focus"])
def test_a_damaged_checkpoint_costs_a_round_and_no_clients_state(tmp_path, name, caplog):
    """The server repeats a round that devices have replied to and gone beyond."""
    task, algorithm = small_task(), STATEFUL[name]

    def fate(client, round):
        return "ok" if (client + round) % 4 else "unheard"

    network = make_network(task, tmp_path, algorithm, fate)
    for damage in range(3):
        with ServerDirectory(tmp_path / "server") as folder:
            server = make_server(task, algorithm, folder, network, rounds=20)
            server._wait_for_clients()
            while server.state.round < 5 * damage + 4:
                server.one_round()
            # The next round's requests are answered, and the server is killed before its end.
            monkeypatched = server.folder.add_line
            server.folder.add_line = raise_killed
            with pytest.raises(Killed):
                server.one_round()
            server.folder.add_line = monkeypatched
            newest = tmp_path / f"server/checkpoint-{server.state.round % 2 ^ 1}.safetensors"
        content = bytearray(newest.read_bytes())
        content[-1] ^= 1
        newest.write_bytes(content)
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, algorithm, folder, network, rounds=20)
        assert server.state.round == 13
        server.run()
        assert_same(server, simulated(task, algorithm, folder.lines))
        lines = folder.lines
    assert caplog.text.count("ignored checkpoint-") == 3
    assert "has lost" not in caplog.text
    # Every device takes part again.
    assert {i for line in lines[-4:] for i in line["active"]} == {0, 1, 2}


def raise_killed(line):
    raise Killed


@pytest.mark.parametrize("name", ["scaffold", "mifa", "drift"])
@pytest.mark.parametrize("loss", ["gone", "damaged", "older"])
def test_without_a_device_that_lost_its_state_the_job_goes_on(tmp_path, name, loss, caplog):
    task, algorithm = small_task(), STATEFUL[name]
    network = make_network(task, tmp_path, algorithm, lambda i, t: "ok")
    file = tmp_path / "client1/trainer.safetensors"
    with caplog.at_level(logging.WARNING), ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, algorithm, folder, network, rounds=9)
        server._wait_for_clients()
        server.one_round()
        backup = file.read_bytes()
        for _ in range(3):
            server.one_round()
        if loss == "gone":
            file.unlink()
        else:
            file.write_bytes(backup if loss == "older" else file.read_bytes()[:-5])
        network.restart(1)
        server.run()
        lines = folder.lines
        assert_same(server, simulated(task, algorithm, lines))
    assert [line["active"] for line in lines] == [[0, 1, 2]] * 4 + [[0, 2]] * 5
    assert [line["refused"] for line in lines] == [[]] * 4 + [[1]] * 5
    reason = (
        "this device has lost what client 1 keeps: the server counted its answer to round 3; put "
        "back the folder 'state' of the device that gave it, or start a new job; this job goes on "
        "without the client"
    )
    said = [line for line in caplog.messages if line.startswith("rejected")]
    assert said == [f"rejected node 101 (client 1): {reason}"] * 5


def test_a_client_that_was_never_counted_may_lose_its_disk(tmp_path):
    task, lost = small_task(), {"t": -1}
    network = make_network(task, tmp_path, "scaffold", lambda i, t: fate(i, t))

    def fate(client, round):
        if client == 1 and round == 3:
            (tmp_path / "client1/trainer.safetensors").unlink()
            lost["t"] = round
            return "restart"
        return "unheard" if client == 1 and round < 3 else "ok"

    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "scaffold", folder, network, rounds=5)
        server.run()
        assert_same(server, simulated(task, "scaffold", folder.lines))
        assert [line["active"] for line in folder.lines] == [[0, 2]] * 3 + [[0, 1, 2]] * 2
    assert lost["t"] == 3


def test_a_new_job_starts_from_the_initial_state(tmp_path):
    task = small_task()
    network = make_network(task, tmp_path, "scaffold", random_fates(3))
    for job in ("one", "two"):
        with ServerDirectory(tmp_path / job) as folder:
            server = make_server(task, "scaffold", folder, network, rounds=5)
            server.run()
            assert_same(server, simulated(task, "scaffold", folder.lines))


@pytest.mark.parametrize("name", ["fedpbc", "fedavg", "ca_fed", *sorted({*STATEFUL} - {"picky"})])
def test_without_losses_the_bytes_are_the_simulators(tmp_path, name):
    task, algorithm = small_task(), STATEFUL.get(name, name)
    network = make_network(task, tmp_path, algorithm, lambda i, t: "ok")
    with ServerDirectory(tmp_path / "server") as folder:
        make_server(task, algorithm, folder, network, rounds=5).run()
        lines = folder.lines
    expected = simulation_of(task, algorithm, lines).server
    for way, total in (("up", expected.bytes_up), ("down", expected.bytes_down)):
        assert sum(line[f"bytes_{way}"] for line in lines) == total == network.vectors[way]
        assert network.messages[way] == 15
        # What the transport carried in addition: names, sizes and the header.
        assert total < network.carried[way] <= total + 15 * 600


def test_bytes_that_were_lost_are_counted_where_they_were_sent(tmp_path):
    task = small_task()
    size = 4 * len(task.init())

    def fate(client, round):
        return {1: "lost", 2: "unheard", 3: "late", 4: "twice"}.get(round, "ok") if client else "ok"

    network = make_network(task, tmp_path, "scaffold", fate)
    with ServerDirectory(tmp_path / "server") as folder:
        make_server(task, "scaffold", folder, network, rounds=6).run()
        lines = folder.lines
    # A model and c to everyone in every round.
    assert [line["bytes_down"] for line in lines] == [6 * size] * 6
    # A model and c_i⁺ − c_i of each reply that arrived; a late one in the round in which it does.
    assert [line["bytes_up"] for line in lines] == [n * size for n in (6, 2, 2, 2, 14, 6)]
    assert sum(line["bytes_up"] for line in lines) == network.vectors["up"]


def tampered(change):
    class Bad(FakeNetwork):
        def reply(self, client, payload):
            reply = super().reply(client, payload)
            if client != 1 or reply.kind != "answer":
                return reply
            return Payload(reply.header, change(dict(reply.vectors)))

    return Bad


def of_control(vector):
    return lambda vectors: {**vectors, "upload control_change": vector(vectors)}


def short(size):
    return lambda vectors: Vector("float32", bytes(4 * size))


def not_finite(vectors):
    return Vector("float32", np.full(43, np.nan, dtype="<f4").tobytes())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (of_control(short(1)), "control_change: vector of 1 values, not 43"),
        (of_control(short(44)), "control_change: vector of 44 values, not 43"),
        (of_control(short(0)), "control_change: vector of 0 values, not 43"),
        (of_control(not_finite), "control_change is not finite"),
        (
            of_control(lambda vectors: Vector("float64", bytes(8 * 43))),
            "control_change: vector of type float64, not float32",
        ),
        (
            lambda vectors: {"upload model": vectors["upload model"]},
            "uploads model, not control_change, model",
        ),
        (
            lambda vectors: {**vectors, "upload more": vectors["upload model"]},
            "uploads control_change, model, more, not control_change, model",
        ),
        (lambda vectors: {}, "uploads nothing, not control_change, model"),
        (
            lambda vectors: {**vectors, "end": vectors["upload model"]},
            "unexpected vector 'end'",
        ),
    ],
)
def test_a_bad_upload_is_refused_and_its_state_falls_back(tmp_path, change, reason, caplog):
    task = small_task()
    assert len(task.init()) == 43
    network = tampered(change)([], lambda i, t: "ok")
    network.trainers = make_trainers(task, tmp_path, "scaffold")
    with caplog.at_level(logging.WARNING), ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "scaffold", folder, network, rounds=3)
        server._wait_for_clients()
        server.one_round()
        server.one_round()
        # The device has replied twice, and neither counts.
        network.reply = FakeNetwork.reply.__get__(network)
        server.one_round()
        lines = folder.lines
        assert_same(server, simulated(task, "scaffold", lines))
    assert [line["active"] for line in lines] == [[0, 2], [0, 2], [0, 1, 2]]
    assert caplog.messages == [f"rejected node 101 (client 1): {reason}"] * 2


def test_a_log_of_checksums_covers_all_uploaded_vectors(tmp_path):
    task = small_task()
    network = make_network(task, tmp_path, "scaffold", lambda i, t: "ok")
    with ServerDirectory(tmp_path / "server") as folder:
        make_server(task, "scaffold", folder, network, rounds=3).run()
        lines = folder.lines
    for client in range(3):
        log = (tmp_path / f"client{client}/answers.jsonl").read_text().splitlines()
        replies = {line["round"]: line["checksum"] for line in map(json.loads, log)}
        assert replies == {line["round"]: line["checksums"][client] for line in lines}


def test_memory_on_the_server_and_on_the_clients_upload_the_same_bytes(tmp_path):
    """What mifa's clients upload instead of the model is as large."""
    task, totals = small_task(), []
    for memory in ("server", "client"):
        algorithm = {"name": "mifa", "memory": memory}
        network = make_network(task, tmp_path / memory, algorithm, lambda i, t: "ok")
        with ServerDirectory(tmp_path / memory / "server") as folder:
            server = make_server(task, algorithm, folder, network, rounds=4)
            server.run()
            totals.append([line["bytes_up"] for line in folder.lines])
        state = server.state.algorithm.state()
        assert len(state["stored"]) == (3 if memory == "server" else 0)
    assert totals[0] == totals[1]
