"""The example app equals the simulator: in this process, and in Flower's simulation."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.serverapp import ServerApp

from fedpbc.flower import strategy_for
from tests import small_runs as small
from tests.flower.fake_grid import FakeGrid, FakeNode, app_of, cut, record_of
from tests.flower.quickstart import (
    SETTINGS,
    QuickstartTask,
    down_table,
    import_example,
    largest_difference,
    simulated,
)
from tests.flower.test_against_simulator import assert_same


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
def test_flowers_own_simulation_equals_the_simulator(tmp_path):
    """Three jobs in one run; links are cut by another mod."""
    pytest.importorskip("ray")
    from flwr.simulation import run_simulation

    task, names = small.quadratic(clients=3), ("fedpbc", "fedau", "mifa")
    table = np.array([[1, 0, 1], [0, 1, 1], [1, 0, 0], [1, 1, 1]], dtype=bool)
    server, results = ServerApp(), {}

    @server.main()
    def main(grid, context):
        for name in names:
            strategy = strategy_for(name, fraction_evaluate=0.0, norm_factor=0.0)
            results[name] = strategy.start(
                grid, record_of(task.init().numpy()), num_rounds=len(table)
            )

    init = {"address": "local", "num_cpus": 1, "log_to_driver": False, "_temp_dir": str(tmp_path)}
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(
        server,
        app_of(task, cut(table)),
        num_supernodes=3,
        backend_config={"init_args": init, "client_resources": resources},
    )
    for name in names:
        assert_same(results[name].views, small.views(task, name, table))
