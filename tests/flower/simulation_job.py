"""Run jobs in Flower's own simulation, and print how far each is from this package's simulator."""

from __future__ import annotations

import json
import os
import tempfile

import numpy as np

os.environ.update(
    {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
)

from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from fedpbc.flower import strategy_for
from tests import small_runs as small
from tests.flower.fake_grid import app_of, cut, record_of, vector_of

TABLE = np.array([[1, 0, 1], [0, 1, 1], [1, 0, 0], [1, 1, 1]], dtype=bool)


def main() -> None:
    task, views = small.quadratic(clients=3), {}
    server = ServerApp()

    @server.main()
    def serve(grid, context):
        for name in ("fedpbc", "fedau", "mifa"):
            # Flower registers the nodes one by one.
            strategy = strategy_for(name, fraction_evaluate=0.0, min_available_nodes=3)
            initial = record_of(task.init().numpy())
            views[name] = strategy.start(grid, initial, num_rounds=len(TABLE)).views
            assert np.array_equal(strategy.state()["job"]["table"], TABLE)

    with tempfile.TemporaryDirectory() as folder:
        # An instance of its own, whatever else runs on this machine.
        init = {"address": "local", "num_cpus": 1, "log_to_driver": False, "_temp_dir": folder}
        resources = {"num_cpus": 1, "num_gpus": 0.0}
        config = {"init_args": init, "client_resources": resources}
        run_simulation(server, app_of(task, cut(TABLE)), 3, backend_config=config)
    differences = {}
    for name, records in views.items():
        expected = small.views(task, name, TABLE)
        each = [np.abs(vector_of(r) - expected[v].numpy()).max() for v, r in records.items()]
        differences[name] = float(max(each))
    print(json.dumps(differences))


if __name__ == "__main__":
    main()
