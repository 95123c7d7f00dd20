"""The example app equals the simulator: in this process, and in Flower's simulation."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from flwr.app import Context, RecordDict

from tests.flower.fake_grid import FakeGrid, FakeNode
from tests.flower.quickstart import (
    SETTINGS,
    QuickstartTask,
    down_table,
    import_example,
    largest_difference,
    simulated,
)


@pytest.mark.parametrize("name", ["fedpbc", "fedau", "mifa"])
def test_the_example_equals_the_simulator(name, monkeypatch, tmp_path):
    import torch

    example, clients, rounds, outage = import_example(monkeypatch), 5, 6, 0.5
    settings = {**SETTINGS, "algorithm": name, "outage": outage, "folder": str(tmp_path)}
    settings["num-server-rounds"] = rounds
    grid = FakeGrid({})
    for i in range(clients):
        node = FakeNode(
            example.client_app.app, 100 + i, {"partition-id": i, "num-partitions": clients}
        )
        node.context.run_config = settings
        grid.nodes[100 + i] = node
    example.server_app.app(grid, Context(1, 1, {}, RecordDict(), settings))
    table = down_table(example.links, clients, rounds, outage)
    assert 0.2 < table.mean() < 0.9
    task = QuickstartTask(example.task, clients)
    expected = simulated(task, name, table)
    views = {view: torch.load(tmp_path / f"{view}.pt") for view in expected}
    assert largest_difference(task, views, expected) <= 1e-6
    assert (tmp_path / "links.csv").read_text().startswith("# round_seconds = ")


@pytest.mark.slow
@pytest.mark.long
def test_flowers_own_simulation_equals_the_simulator():
    """Three jobs in one run, in a process of its own: Flower's simulation needs the main thread."""
    pytest.importorskip("ray")
    command = [sys.executable, "-m", "tests.flower.simulation_job"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    differences = json.loads(done.stdout.splitlines()[-1])
    assert set(differences) == {"fedpbc", "fedau", "mifa"}
    assert max(differences.values()) <= 1e-6
