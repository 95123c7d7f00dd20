"""Every algorithm, on both engines, against the independent transcription in tests/reference.py."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpbc.algorithms import ALGORITHMS, ServerInit
from fedpbc.engines import SerialEngine, StackedEngine
from fedpbc.engines.engine import one_thread
from fedpbc.links import Setting, Timetable
from fedpbc.simulation.loop import Simulation
from tests import small_runs as small
from tests.reference import ALGORITHMS as REFERENCE
from tests.reference import reference

VARIANTS = {
    **{name: (name, {}) for name in REFERENCE},
    "fedau-cutoff": ("fedau", {"cutoff": 3}),
    "f3ast-cap": ("f3ast", {"cap": 2, "beta": 0.2}),
    "mifa-rescale": ("mifa", {"rescale": True}),
    "fedawe-no-clip": ("fedawe", {"clip": 0.0}),
    "fedawe-tight": ("fedawe", {"clip": 0.05}),
    "scaffold-clip": ("scaffold", {"clip": 0.3}),
    "fedau-heard": ("fedau", {"over": "heard"}),
    "mifa-heard": ("mifa", {"over": "heard"}),
    "mifa-client": ("mifa", {"memory": "client"}),
    "mifa-client-heard-rescale": (
        "mifa",
        {"memory": "client", "over": "heard", "rescale": True},
    ),
    "fedstale-fresh": ("fedstale", {"beta": 0.0}),
    "fedstale-stale": ("fedstale", {"beta": 1.0}),
    "ca_fed-smooth": ("ca_fed", {"smoothing": 0.7}),
    "ca_fed-unbiased": ("ca_fed", {"bias": 20.0}),
    "ca_fed-threshold": ("ca_fed", {"threshold": 0.1}),
    "fedavg_debiased-cap": ("fedavg_debiased", {"cap": 2.0}),
    "amplified_fedavg-window": ("amplified_fedavg", {"window": 3, "gamma": 2.0}),
    "amplified_scaffold-window": ("amplified_scaffold", {"window": 3, "gamma": 2.0}),
    "amplified_scaffold-each": ("amplified_scaffold", {"window": 1, "gamma": 1.0}),
}
# These must not change anything.
MEMORY_ON_CLIENTS = {"mifa-client"}
TASKS = {"quadratic": small.quadratic, "network": small.network}
every_variant = pytest.mark.parametrize(
    ("variant", "lost", "global_lr"),
    [(v, lost, lr) for v in VARIANTS for lost in (False, True) for lr in (1.0, 0.7)],
)


def reference_views(task, name, up, down, global_lr, options, p=None):
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
            probabilities=np.broadcast_to(up.mean(axis=0), up.shape) if p is None else p,
            gradient=task.batch_gradient,
            loss=task.client_loss,
            **options,
        )


@cache
def expected_views(task_name, variant, lost, global_lr):
    """The reference's views at the end."""
    name, options = VARIANTS[variant]
    down = small.lossy() if lost else None
    return reference_views(TASKS[task_name](), name, small.random_table(), down, global_lr, options)


@cache
def simulated_views(task_name, engine, variant, lost, global_lr):
    """The simulation's views at the end."""
    name, options = VARIANTS[variant]
    return small.views(
        TASKS[task_name](),
        name,
        small.random_table(),
        engine=engine,
        down=small.lossy() if lost else None,
        global_lr=global_lr,
        options=options,
    )


def test_the_reference_has_only_registered_algorithms():
    assert set(REFERENCE) <= set(ALGORITHMS)


@every_variant
def test_quadratic(engine, variant, lost, global_lr):
    simulated = simulated_views("quadratic", engine, variant, lost, global_lr)
    expected = expected_views("quadratic", variant, lost, global_lr)
    assert simulated.keys() == expected.keys()
    for view, model in expected.items():
        assert (simulated[view] - model).abs().max() < 1e-12, view


@pytest.mark.sampled(2)
@every_variant
def test_network_on_the_serial_engine_to_the_bit(variant, lost, global_lr):
    simulated = simulated_views("network", SerialEngine, variant, lost, global_lr)
    assert small.same_bits(simulated, expected_views("network", variant, lost, global_lr))


@every_variant
def test_network_stacked(variant, lost, global_lr):
    simulated = simulated_views("network", StackedEngine, variant, lost, global_lr)
    expected = expected_views("network", variant, lost, global_lr)
    assert simulated.keys() == expected.keys()
    for view, model in expected.items():
        assert small.distance(simulated[view], model) < 1e-4, view


@pytest.mark.parametrize(
    "variant", [v for v in VARIANTS if "-" in v and v not in MEMORY_ON_CLIENTS]
)
def test_options_losses_and_rates_make_a_difference(variant):
    """Otherwise the comparisons above would prove little."""
    name, _ = VARIANTS[variant]
    plain = expected_views("quadratic", name, False, 1.0)["server"]
    for other in ((variant, False, 1.0), (name, True, 1.0), (name, False, 0.7)):
        assert small.distance(expected_views("quadratic", *other)["server"], plain) > 1e-3


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("variant", sorted(MEMORY_ON_CLIENTS))
def test_the_place_of_the_memory_makes_no_difference(variant, lost):
    name, _ = VARIANTS[variant]
    on_server = expected_views("quadratic", name, lost, 1.0)
    for view, model in expected_views("quadratic", variant, lost, 1.0).items():
        assert (model - on_server[view]).abs().max() < 1e-12, view


def test_fedavg_known_uses_the_schemes_probabilities(engine):
    """The p_i^t of each round, not the share of active rounds."""
    setting = Setting(3, small.CLIENTS, 12, np.linspace(0.2, 0.9, small.CLIENTS))
    uplink = Timetable.draw("bernoulli_varying", setting, {"gamma": 0.3, "period": 7})
    task, p = small.quadratic(), np.array(list(uplink.probabilities()))
    known = ALGORITHMS["fedavg_known"](ServerInit(task.init(), small.CLIENTS))
    simulation = Simulation(task, known, engine(task), uplink)
    list(simulation.run())
    up = np.array([uplink.up(t) for t in range(12)])
    expected = reference_views(task, "fedavg_known", up, None, 1.0, {}, p)["server"]
    assert (simulation.algorithm.x - expected).abs().max() < 1e-12
    assert np.ptp(p, axis=0).min() > 0.01


tables = st.integers(1, 5).flatmap(
    lambda m: st.lists(st.lists(st.booleans(), min_size=m, max_size=m), min_size=1, max_size=9)
)


@settings(deadline=None, max_examples=8)
@given(up=tables, losses=st.randoms(use_true_random=False), every=st.integers(1, 4))
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_timetable(variant, up, losses, every):
    name, options = VARIANTS[variant]
    up = np.array(up)
    down = np.array([[losses.random() < 0.5 for _ in row] for row in up])
    task = small.quadratic(up.shape[1], 2)
    expected = reference_views(task, name, up, down, 0.7, options)
    for engine in (SerialEngine, StackedEngine):
        simulated = small.views(
            task,
            name,
            up,
            down=down,
            global_lr=0.7,
            engine=engine,
            options=options,
            evaluate_every=every,
        )
        assert simulated.keys() == expected.keys()
        for view, model in expected.items():
            assert (simulated[view] - model).abs().max() < 1e-9, view
