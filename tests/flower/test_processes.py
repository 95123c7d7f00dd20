"""Real processes over loopback, with TLS and node keys."""

from __future__ import annotations

import json
from contextlib import closing

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedpbc.engine import SerialEngine
from fedpbc.flower.settings import read_fleet
from fedpbc.links import from_table
from fedpbc.simulation import Simulation

from .loopback import Loopback

pytest.importorskip("flwr")

MINE = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))

def data(client):
    random = torch.Generator().manual_seed(client)
    return torch.randn(64, 6, generator=random) + client, torch.arange(64) % 4
"""


def begin(fleet: Loopback, rounds: int, seconds: float, *trainer: str) -> None:
    fleet.server.mkdir()
    (fleet.server / "mine.py").write_text(MINE)
    (fleet.server / "fleet.toml").write_text(
        f"""
        rounds = {rounds}
        seed = 5
        clients = {fleet.clients}
        [fleet]
        app = "mine.py"
        round_seconds = {seconds}
        wait_for = {fleet.clients}
        """
    )
    fleet.start_superlink()
    fleet.start("superexec", fleet.launch.superexec())
    for client in range(fleet.clients):
        fleet.register(client)
        fleet.start_trainer(client, "--app", str(fleet.server / "mine.py"), *trainer)
        fleet.start_supernode(client)
    fleet.submit()


def check_exact(fleet: Loopback, rounds: int) -> np.ndarray:
    """The final models are the simulator's on the timetable that the server logged."""
    table = np.loadtxt(fleet.server / "timetable.csv", delimiter=",", ndmin=2).astype(bool)
    assert [line["active"] for line in fleet.lines()] == [
        np.flatnonzero(row).tolist() for row in table
    ]
    assert table.shape == (rounds, fleet.clients)
    settings = read_fleet(fleet.server / "fleet.toml")
    task = settings.whole_task()
    algorithm = settings.algorithm(task.init())
    simulation = Simulation(task, algorithm, SerialEngine(task), from_table(table))
    list(simulation.run())
    for view, model in simulation.view_models().items():
        if view != "mean":
            named = load_file(fleet.server / "models" / f"{view}.safetensors")
            flat = torch.cat([named[name].reshape(-1) for name in task.layout.names])
            assert (flat - model).abs().max() <= 1e-6, view
    return table


def audit(fleet: Loopback) -> None:
    """What the server counted is what the clients' logs say they sent, each once."""
    for client in range(fleet.clients):
        log = (fleet.folder / f"client{client}/answers.jsonl").read_text().splitlines()
        sent = {(line["round"], line["checksum"]) for line in map(json.loads, log)}
        counted = [
            (line["round"], line["checksums"][str(client)])
            for line in fleet.lines()
            if client in line["active"]
        ]
        assert len(counted) == len(set(counted))
        assert set(counted) <= sent


def test_a_small_fleet_with_an_outage_equals_the_simulator(tmp_path):
    rounds = 5
    with closing(Loopback(tmp_path, clients=2)) as fleet:
        begin(fleet, rounds, 8.0)
        fleet.until(lambda: len(fleet.lines()) >= 1, 90)
        fleet.gates[1].cut()
        fleet.until(lambda: len(fleet.lines()) >= 3, 60)
        fleet.gates[1].mend()
        fleet.until((fleet.server / "links.csv").exists, 120)
        table = check_exact(fleet, rounds)
        audit(fleet)
    assert table[0].all()
    assert not table[2, 1]
    assert table[2, 0]
    assert table[-1, 1]
