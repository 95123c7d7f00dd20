"""On the links that occurred, a strategy is the simulator of this package."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpbc.aggregation import Aggregation
from fedpbc.algorithms import ALGORITHMS
from fedpbc.flower import strategy_for
from fedpbc.flower.arguments import checked_aggregation
from fedpbc.flower.requirements import needed_settings
from tests import small_runs as small
from tests.algorithms.test_against_reference import VARIANTS
from tests.flower.fake_grid import app_of, cut, grid_of, record_of, vector_of

CANNOT = {"focus", "fedavg_known"}
RUNNABLE = [v for v, (name, _) in VARIANTS.items() if name not in CANNOT]


def batches_of(name: str) -> str:
    return "round" if ALGORITHMS[name].everyone_trains else "participations"


def known_of(task, name, options=None):
    """What a strategy must be told of the app's training; nothing for most of them."""
    every = {"learning_rate": lambda t: task.training.rate(t - 1)}
    every["local_steps"] = task.training.local_steps
    return {key: every[key] for key in needed_settings(ALGORITHMS[name], options or {})}


def run(name, options, task, table, *, more=None, **start):
    """The strategy, the grid, and the result of a job over these links."""
    app = app_of(task, cut(table), batches=batches_of(name))
    grid = grid_of(app, task.clients)
    own = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "norm_factor": 0.0}
    own |= {**known_of(task, name, options), **options, **(more or {})}
    strategy = strategy_for(name, **own)
    initial = record_of(task.init().numpy())
    return strategy, grid, strategy.start(grid, initial, **{"num_rounds": len(table), **start})


def assert_same(views, expected, bound=1e-6):
    assert set(views) == set(expected) - {"mean"}
    for view, record in views.items():
        assert np.abs(vector_of(record) - expected[view].numpy()).max() <= bound, view


@pytest.mark.sampled(4)
@pytest.mark.parametrize("global_lr", [0.7, 1.0])
@pytest.mark.parametrize("variant", RUNNABLE)
def test_every_algorithm_equals_the_simulator(variant, global_lr):
    name, options = VARIANTS[variant]
    task, table = small.network(), small.random_table()
    strategy, _, result = run(name, options, task, table, more={"global_lr": global_lr})
    expected = small.views(task, name, table, options=options, global_lr=global_lr)
    assert_same(result.views, expected)
    assert np.array_equal(strategy.state()["job"]["table"], table)


@pytest.mark.parametrize("name", ["fedpbc", "fedau", "mifa", "fedawe"])
def test_in_double_precision_there_is_no_difference_at_all(name):
    task, table = small.quadratic(), small.random_table(seed=4)
    _, _, result = run(name, {}, task, table)
    assert_same(result.views, small.views(task, name, table), bound=0.0)


@pytest.mark.parametrize(
    "aggregation",
    ["median", {"name": "trimmed_mean", "trim": 0.25, "clip": 0.2}, Aggregation(clip=0.05)],
    ids=str,
)
@pytest.mark.parametrize("name", ["fedpbc", "mifa"])
def test_robust_means_are_the_simulators(name, aggregation):
    task, table = small.quadratic(), small.random_table(seed=4)
    _, _, result = run(name, {}, task, table, more={"aggregation": aggregation})
    expected = small.views(task, name, table, aggregation=checked_aggregation(aggregation))
    assert_same(result.views, expected, bound=0.0)
    averaged = small.views(task, name, table)
    assert any(not torch.equal(expected[view], averaged[view]) for view in expected)


def test_the_links_make_a_difference():
    """Otherwise the comparisons above would prove little."""
    task = small.network()
    tables = [small.random_table(seed) for seed in (0, 1)]
    first, second = (vector_of(run("fedpbc", {}, task, t)[2].arrays) for t in tables)
    assert np.abs(first - second).max() > 1e-3


@pytest.mark.parametrize("name", ["fedpbc", "scaffold", "mifa"])
def test_messages_that_come_twice_change_nothing(name):
    options = {"memory": "client"} if name == "mifa" else {}
    task, table = small.quadratic(), small.random_table(seed=2)
    app = app_of(task, cut(table), batches=batches_of(name))
    grid = grid_of(app, task.clients)
    grid.deliveries = 2
    own = {"fraction_evaluate": 0.0, "norm_factor": 0.0, **known_of(task, name, options), **options}
    strategy = strategy_for(name, **own)
    result = strategy.start(grid, record_of(task.init().numpy()), num_rounds=len(table))
    assert_same(result.views, small.views(task, name, table, options=options), bound=1e-12)


@pytest.mark.parametrize("variant", ["fedpbc", "scaffold", "area", "mifa-client", "fedau"])
def test_lost_replies_are_links_that_were_down(variant):
    """The client has trained, and kept its new state; the server has not counted it."""
    name, options = VARIANTS[variant]
    task, table = small.quadratic(), small.random_table(seed=3)
    app = app_of(task, batches=batches_of(name))
    grid = grid_of(app, task.clients)

    def lose(node, reply):
        is_upload = reply.has_content() and len(reply.content.metric_records) > 0
        rounds = reply.content["fedpbc"]["round"] if reply.has_content() else 0
        return None if is_upload and not table[rounds - 1, node - 100] else reply

    grid.after = lose
    own = {"fraction_evaluate": 0.0, "norm_factor": 0.0, **known_of(task, name, options), **options}
    strategy = strategy_for(name, **own)
    result = strategy.start(grid, record_of(task.init().numpy()), num_rounds=len(table))
    assert np.array_equal(strategy.state()["job"]["table"], table)
    assert_same(result.views, small.views(task, name, table, options=options), bound=1e-12)
