"""Clients that join and leave while a job runs: the simulator comes to the same bits."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch

from fedpbc.algorithms import ALGORITHMS
from fedpbc.deployment.ops.status import FleetLog
from fedpbc.deployment.server.departures import let_leave
from fedpbc.deployment.server.server_directory import ServerDirectory
from fedpbc.deployment.server.server_loop import Server
from fedpbc.deployment.settings import FleetSection
from fedpbc.engines import SerialEngine
from fedpbc.links import from_table
from fedpbc.simulation.build import make_algorithm
from fedpbc.simulation.loop import Simulation
from fedpbc.simulation.membership import MembershipChange
from tests.commandline import fedpbc, ran, refused
from tests.deployment.fake_network import ROUND, FakeNetwork, assert_same, make_trainers, small_task

EVERYONE, AT_FIRST, ROUNDS = 5, 3, 12
KEEPING = {"scaffold", "amplified_scaffold", "focus", "area"}
JOINING = sorted(set(ALGORITHMS) - KEEPING - {"fedavg_known"})


class Task:
    """What an algorithm is made for, before anybody joins."""

    def __init__(self, task, clients):
        self.init, self.layout, self.clients = task.init, task.layout, clients


def pin(folder, clients):
    """What a launcher writes when the keys of these clients are in the server's folder."""
    pinned = {str(100 + client): client for client in clients}
    (folder / "nodes.json").write_text(json.dumps({"pinned": pinned}))


def make_server(task, name, folder, network, rounds=ROUNDS):
    return Server(
        make_algorithm(name, Task(task, AT_FIRST)),
        task.training,
        folder,
        network,
        rounds=rounds,
        layout=task.layout,
        client_settings="{}",
        fleet=FleetSection(round_seconds=ROUND, wait_for=AT_FIRST, app="app.py"),
        now=network.now,
        sleep=network.wait,
    )


def changing_fate(path, seed=3):
    """Links that fail; before round 4 two clients join, before 7 client 1 leaves."""

    def fate(client, t):
        if t == 3:
            pin(path, range(EVERYONE))
        if t == 6:
            let_leave(path, [1])
        return np.random.default_rng((seed, client, t)).choice(["ok", "ok", "lost", "late"])

    return fate


def simulated(task, name, lines):
    table = np.zeros((len(lines), EVERYONE), dtype=bool)
    membership = {}
    for t, line in enumerate(lines):
        table[t, line["active"]] = True
        if line["joined"] or line["left"]:
            membership[t] = MembershipChange(len(line["joined"]), tuple(line["left"]))
    algorithm = make_algorithm(name, Task(task, AT_FIRST))
    # Evaluations synchronise clients, which must not show.
    simulation = Simulation(
        task,
        algorithm,
        SerialEngine(task),
        from_table(table),
        membership=membership,
        evaluate_every=5,
    )
    list(simulation.run())
    return simulation


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "server"
    path.mkdir()
    (path / "fleet.toml").write_text(f"clients = {AT_FIRST}\nrounds = {ROUNDS}\n[fleet]\n")
    pin(path, range(AT_FIRST))
    return path


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", JOINING)
def test_the_simulator_reproduces_a_join_and_a_leave(tmp_path, path, name):
    task = small_task(EVERYONE)
    network = FakeNetwork(make_trainers(task, tmp_path, name, lazy=True), changing_fate(path))
    with ServerDirectory(path) as folder:
        server = make_server(task, name, folder, network)
        server.run()
        lines = folder.lines
        assert [(line["joined"], line["left"]) for line in lines if line["joined"] or line["left"]]
        assert lines[4]["joined"] == [3, 4]
        assert lines[7]["left"] == [1]
        assert any({3, 4} & set(line["active"]) for line in lines[4:])
        assert all(1 not in line["active"] for line in lines[7:])
        simulation = simulated(task, name, lines)
        assert_same(server, simulation.view_models())
        assert server.state.algorithm.members == EVERYONE - 1
    status = FleetLog(path).status()
    assert status.job.clients == EVERYONE - 1
    assert [each.has_left for each in status.clients] == [False, True, False, False, False]
    assert status.clients[1].link == "left"
    rows = (path / "timetable.csv").read_text().split()
    assert {len(row.split(",")) for row in rows} == {EVERYONE}


@pytest.mark.parametrize("name", ["fedpbc", "mifa"])
def test_a_restarted_server_still_knows_them(tmp_path, path, name):
    task = small_task(EVERYONE)
    network = FakeNetwork(make_trainers(task, tmp_path, name, lazy=True), changing_fate(path))
    for rounds in (4, 5, 8, ROUNDS):
        with ServerDirectory(path) as folder:
            server = make_server(task, name, folder, network, rounds)
            server.run()
            if rounds > 4:
                assert_same(server, simulated(task, name, folder.lines).view_models())


def test_views_forget_who_has_left(tmp_path, path):
    task = small_task(EVERYONE)
    network = FakeNetwork(make_trainers(task, tmp_path, lazy=True), lambda i, t: "ok")
    with ServerDirectory(path) as folder:
        make_server(task, "fedpbc", folder, network, 3).run()
    let_leave(path, [0, 1])
    network.fate = lambda i, t: "lost"
    with ServerDirectory(path) as folder:
        server = make_server(task, "fedpbc", folder, network, 4)
        server.run()
        [[_, last]] = [
            pair for pair in server.state.last_reports.items(range(AT_FIRST)) if pair[0] == 2
        ]
        assert torch.equal(server.state.view_models()["reported"], last)


def test_who_keeps_something_neither_joins_nor_leaves(tmp_path, path, caplog):
    caplog.set_level(logging.WARNING)
    task = small_task(EVERYONE)
    trainers = make_trainers(task, tmp_path, "scaffold", lazy=True)
    network = FakeNetwork(trainers, changing_fate(path))
    with ServerDirectory(path) as folder:
        server = make_server(task, "scaffold", folder, network)
        server.run()
        assert all(line["joined"] == line["left"] == [] for line in folder.lines)
    assert server.state.algorithm.clients == AT_FIRST
    reasons = [r.getMessage() for r in caplog.records if "cannot" in r.getMessage()]
    assert len(reasons) == 2
    assert "clients of scaffold keep what the server has summed up" in reasons[0]


def test_the_command_names_who_cannot_leave(path):
    ran("fleet", "leave", path, "--client", "2")
    assert json.loads((path / "left.json").read_text()) == [2]
    line = refused(fedpbc("fleet", "leave", path, "--client", "7"))
    assert line.startswith("client is 7, but should be one that takes part")
    everyone = [word for client in range(AT_FIRST) for word in ("--client", client)]
    line = refused(fedpbc("fleet", "leave", path, *everyone))
    assert "not all that are left" in line
    assert json.loads((path / "left.json").read_text()) == [2]


def test_a_damaged_list_changes_nothing(tmp_path, path, caplog):
    task = small_task(EVERYONE)
    network = FakeNetwork(make_trainers(task, tmp_path, lazy=True), lambda i, t: "ok")
    (path / "left.json").write_text('{"a": 1}')
    with ServerDirectory(path) as folder:
        make_server(task, "fedpbc", folder, network, 3).run()
        assert [line["left"] for line in folder.lines] == [[], [], []]
    assert caplog.text.count("ignored left.json") == 1
    assert "is damaged" in refused(fedpbc("fleet", "leave", path, "--client", "0"))
