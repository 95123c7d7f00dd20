"""Fleets whose model has layers with running statistics, averaged or kept on the devices."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch
from torch import nn

from fedpbc.deployment.server.server_directory import ServerDirectory
from fedpbc.deployment.settings import read_fleet, task_of_client
from fedpbc.experiments.user_app import load_user_app
from fedpbc.tasks import LocalTraining, Supervised
from tests.deployment.fake_network import Killed, make_server, simulation_of
from tests.deployment.test_exactly_once import make_network, random_fates, ticking


def make_task(mode: str) -> Supervised:
    generator = torch.Generator().manual_seed(1)
    inputs, labels = torch.randn(90, 4, generator=generator), torch.arange(90) % 3
    torch.manual_seed(0)
    return Supervised(
        nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)),
        (inputs, labels),
        (inputs, labels),
        partition=np.arange(90).reshape(3, -1),
        training=LocalTraining(local_steps=2, batch_size=8, learning_rate=0.1),
        seed=3,
        running_statistics=mode,
    )


@pytest.mark.parametrize(
    ("mode", "algorithm"),
    [
        *(("average", "fedpbc"), ("average", "focus"), ("average", "scaffold")),
        *(("client", "fedpbc"), ("client", "scaffold")),
    ],
)
def test_a_fleets_models_are_the_simulators_to_the_bit(tmp_path, mode, algorithm):
    task = make_task(mode)
    network = ticking(make_network(task, tmp_path, algorithm, random_fates(1)))
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, algorithm, folder, network, rounds=10)
        server.run()
        models, lines = server.state.view_models(), folder.lines
    simulation = simulation_of(task, algorithm, lines)
    expected = simulation.server.view_models()
    for view, model in models.items():
        assert torch.equal(model, expected[view]), view
    assert len(models["server"]) == task.layout.sent
    # What the server counted in bytes is what the simulator counts.
    assert server.state.bytes_up == simulation.server.bytes_up
    assert server.state.client_states == {}


@pytest.mark.parametrize("mode", ["average", "client"])
def test_a_restarted_server_and_devices_go_on_to_the_same_bits(tmp_path, mode, monkeypatch):
    task, fate = make_task(mode), random_fates(2, ["ok", "lost", "restart"])
    network = ticking(make_network(task, tmp_path, "fedpbc", fate))
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "fedpbc", folder, network, rounds=8)
        monkeypatch.setattr(server, "_write_results", lambda final: kill(server))
        with pytest.raises(Killed):
            server.run()
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "fedpbc", folder, network, rounds=8)
        assert server.state.round == 4
        server.run()
        expected = simulation_of(task, "fedpbc", folder.lines).server.view_models()
        models = server.state.view_models()
    assert all(torch.equal(model, expected[view]) for view, model in models.items())


def kill(server):
    if server.state.round == 4:
        raise Killed


APP = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

def data(client):
    random = torch.Generator().manual_seed(client)
    return torch.randn(20 + client, 4, generator=random), torch.arange(20 + client) % 3
"""
FLEET = """
rounds = 4
clients = 3
[task]
running_statistics = "client"
[fleet]
app = "mine.py"
"""


def test_devices_are_told_what_stays_on_them(tmp_path):
    (tmp_path / "mine.py").write_text(APP)
    (tmp_path / "fleet.toml").write_text(FLEET)
    settings = read_fleet(tmp_path / "fleet.toml")
    task = task_of_client(
        settings.client_settings(), 1, app=load_user_app(tmp_path / "mine.py"), device="cpu"
    )
    x0, layout = settings.first_model()
    assert task.layout == layout == settings.whole_task().layout
    assert layout.without_kept().names == ("0.weight", "0.bias")
    assert torch.equal(x0, task.init())
    averaged = FLEET.replace('"client"', '"average"')
    (tmp_path / "fleet.toml").write_text(averaged)
    # As before, so that a job that an earlier version began goes on.
    assert "task" not in read_fleet(tmp_path / "fleet.toml").client_settings()


@pytest.mark.fleet
@pytest.mark.parametrize("mode", ["average", "client"])
def test_real_devices_with_an_outage_and_a_kill(tmp_path, mode):
    pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")
    from tests.deployment.real_fleet import after_round, make_fleet, to_the_end, until

    task = {"running_statistics": mode}
    with make_fleet(tmp_path, clients=2, rounds=10, seconds=20.0, app=APP, task=task) as fleet:
        fleet.start()
        after_round(fleet, 2)
        fleet.proxies[1].cut()
        until(fleet, lambda: any(1 not in line["active"] for line in fleet.lines()[2:]), 240)
        killed = fleet.supervisor.service("node-0").pid
        os.kill(killed, signal.SIGKILL)
        fleet.proxies[1].restore()
        table = to_the_end(fleet)
    assert not table[:, 1].all()
    assert table.any(axis=0).all()
