"""What a run with many clients keeps in memory: arrays, not an object for each client."""

from __future__ import annotations

import gc
import tracemalloc
from itertools import islice

import pytest

from fedpbc.experiments.build import build_experiment
from fedpbc.experiments.checkpoints import Checkpoints
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.run_summary import run_summary
from fedpbc.simulation import lookahead

CLIENTS, ACTIVE, ROUNDS, DONE = 100_000, 50, 400, 2
DATA = {"name": "synthetic", "samples": 16, "features": 4, "classes": 3}
BYTES_PER_CLIENT = 200
"""About fifteen arrays of eight bytes, those of a checkpoint and of drawing links among them, and
bits for the rounds. A segment, a slot or a model of each client would be several hundred more.
"""
OBJECTS = 20_000
"""Objects that Python's collector sees, in addition to those before the run."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedpbc"])
def test_memory_grows_by_a_few_numbers_per_client(tmp_path, monkeypatch, name):
    # Segments that are submitted ahead are bounded, whatever the clients; here to a few.
    monkeypatch.setattr(lookahead, "SUBMITTED", 2 * ACTIVE)
    settings = {
        "algorithm": name,
        "data": DATA,
        "clients": CLIENTS,
        "rounds": ROUNDS,
        "evaluate_every": DONE,
        "engine": "stacked",
        "links": {"name": "bernoulli", "p": ACTIVE / CLIENTS},
    }
    if name == "fedpbc":
        settings |= {"views": ["server", "averaged", "reported", "corrected"], "reported": "disk"}
    used, objects = measured(settings, tmp_path)
    # The same with few clients: what Python and PyTorch need is not a matter of clients.
    settings |= {"clients": 2 * ACTIVE, "links": {"name": "bernoulli", "p": 0.5}}
    few, few_objects = measured(settings, tmp_path)
    assert used - few < BYTES_PER_CLIENT * CLIENTS
    assert objects - few_objects < OBJECTS


def measured(settings, folder):
    """The peak of Python's and NumPy's memory in bytes, and the objects at the end of a run."""
    config = Config.from_dict(settings)
    gc.collect()
    before = len(gc.get_objects())
    tracemalloc.start()
    try:
        experiment = build_experiment(config, folder / f"{config.general.clients}.bin")
        simulation = experiment.simulation
        # A fifth of the clients have a contact in one of the rounds, most of them later.
        *_, last = islice(simulation.steps(), DONE)
        Checkpoints(folder).save(simulation.round, {"simulation": simulation.state()})
        summary = run_summary(experiment.about(), simulation, "", last.as_dict())
        assert summary["cost"]["uploads"] > 0
        peak = tracemalloc.get_traced_memory()[1]
        gc.collect()
        objects = len(gc.get_objects()) - before
    finally:
        tracemalloc.stop()
    simulation.close()
    return peak, objects
