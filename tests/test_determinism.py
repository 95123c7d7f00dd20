"""The same seed gives the same run, to the bit; another seed gives another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpbc.algorithms import ALGORITHMS, ServerInit
from fedpbc.engines import choose_engine
from fedpbc.links import Setting, Timetable, from_data
from fedpbc.simulation.loop import Simulation
from fedpbc.tasks import LocalTraining, Supervised
from tests import small_runs as small


def whole_run(seed: int, algorithm: str, engine: str, threads: int = 1):
    """Everything drawn from one seed: partition, batches, links."""
    data = small.samples()
    task = Supervised(
        small.mlp(),
        data,
        data,
        clients=6,
        training=LocalTraining(local_steps=2, batch_size=8),
        seed=seed,
    )
    setting = Setting(seed, 6, 15, np.linspace(0.1, 0.9, 6))
    uplink = Timetable.draw("bernoulli", setting)
    made = Simulation(
        task,
        ALGORITHMS[algorithm](ServerInit(task.init(), 6)),
        choose_engine(engine, task)[0],
        uplink,
        evaluate_every=4,
    )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        metrics = list(made.run())
    finally:
        torch.set_num_threads(before)
    return [replace(m, seconds=0.0) for m in metrics], made.view_models()


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_twice_the_same(algorithm, engine):
    torch.manual_seed(1)
    first, models = whole_run(7, algorithm, engine)
    torch.manual_seed(2)  # neither the global generator nor the number of threads is looked at
    again, models_again = whole_run(7, algorithm, engine, threads=2)
    assert first == again
    assert len(first) == 4
    assert small.same_bits(models, models_again)


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_another_seed_another_run(engine):
    first, models = whole_run(7, "fedpbc", engine)
    other, other_models = whole_run(8, "fedpbc", engine)
    assert first != other
    assert not torch.equal(models["server"], other_models["server"])


def test_a_run_leaves_the_global_generators_alone():
    torch.manual_seed(3)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    whole_run(7, "fedpbc", "serial")
    whole_run(7, "fedpbc", "stacked")
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002


def test_links_do_not_depend_on_the_algorithm_or_the_model():
    task, wider = small.network(), small.network(learning_rate=0.3)
    shares = [from_data(4, t.class_shares) for t in (task, wider)]
    assert np.array_equal(*shares)
