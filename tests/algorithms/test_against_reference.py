"""Every algorithm, on both engines, against the independent transcription in reference.py."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import small_runs as small
from fedpbc.algorithms import ALGORITHMS
from fedpbc.engine import SerialEngine, StackedEngine
from fedpbc.engine.engine import one_thread
from reference import ALGORITHMS as ORACLE
from reference import reference

VARIANTS = {
    **{name: (name, {}) for name in ORACLE},
    "fedau-cutoff": ("fedau", {"cutoff": 3}),
    "f3ast-cap": ("f3ast", {"cap": 2, "beta": 0.2}),
    "mifa-rescale": ("mifa", {"rescale": True}),
    "fedawe-no-clip": ("fedawe", {"clip": 0.0}),
    "fedawe-tight": ("fedawe", {"clip": 0.05}),
}
TASKS = {"quadratic": small.quadratic, "network": small.network}
setting = pytest.mark.parametrize(
    ("variant", "lost", "global_lr"),
    [(v, lost, lr) for v in VARIANTS for lost in (False, True) for lr in (1.0, 0.7)],
)


def oracle(task, name, up, down, global_lr, options):
    with one_thread():
        return reference(
            name,
            task.init(),
            up,
            task.local_steps,
            local_steps=task.training.local_steps,
            learning_rate=task.training.rate,
            global_lr=global_lr,
            downlink=down,
            probabilities=np.broadcast_to(up.mean(axis=0), up.shape),
            **options,
        )


@cache
def both(task_name, engine, variant, lost, global_lr):
    """What the simulation and the oracle have at the end."""
    name, options = VARIANTS[variant]
    task, up, down = TASKS[task_name](), small.random_table(), small.lossy() if lost else None
    got = small.views(
        task, name, up, engine=engine, down=down, global_lr=global_lr, options=options
    )
    return got, oracle(task, name, up, down, global_lr, options)


def test_the_oracle_knows_only_registered_algorithms():
    assert set(ORACLE) <= set(ALGORITHMS)


@setting
def test_quadratic(engine, variant, lost, global_lr):
    got, wanted = both("quadratic", engine, variant, lost, global_lr)
    assert got.keys() == wanted.keys()
    for view, model in wanted.items():
        torch.testing.assert_close(got[view], model, rtol=0, atol=1e-12, msg=view)


@setting
def test_network_one_by_one_to_the_bit(variant, lost, global_lr):
    got, wanted = both("network", SerialEngine, variant, lost, global_lr)
    assert small.same_bits(got, wanted)


@setting
def test_network_stacked(variant, lost, global_lr):
    got, wanted = both("network", StackedEngine, variant, lost, global_lr)
    assert got.keys() == wanted.keys()
    for view, model in wanted.items():
        assert small.distance(got[view], model) < 1e-4, view


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != v.split("-")[0]])
def test_options_and_loss_leave_a_trace(variant):
    """The comparisons above would prove little if these made no difference."""
    name, _ = VARIANTS[variant]
    plain = both("quadratic", SerialEngine, name, False, 1.0)[0]["server"]
    for other in ((variant, False, 1.0), (name, True, 1.0), (name, False, 0.7)):
        assert small.distance(both("quadratic", SerialEngine, *other)[0]["server"], plain) > 1e-3


tables = st.integers(1, 5).flatmap(
    lambda m: st.lists(st.lists(st.booleans(), min_size=m, max_size=m), min_size=1, max_size=9)
)


@settings(deadline=None, max_examples=25)
@given(up=tables, losses=st.randoms(use_true_random=False), every=st.integers(1, 4))
@pytest.mark.parametrize("name", ORACLE)
def test_any_timetable(name, up, losses, every):
    up = np.array(up)
    down = np.array([[losses.random() < 0.5 for _ in row] for row in up])
    task = small.quadratic(up.shape[1], 2)
    wanted = oracle(task, name, up, down, 0.7, {})
    for engine in (SerialEngine, StackedEngine):
        got = small.views(
            task, name, up, down=down, global_lr=0.7, engine=engine, evaluate_every=every
        )
        for view, model in wanted.items():
            torch.testing.assert_close(got[view], model, rtol=0, atol=1e-9, msg=view)
