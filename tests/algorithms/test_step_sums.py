"""Algorithms that compute gradients from how a model has changed, with every kind of local step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedpbc.algorithms import ServerInit, find_algorithm
from fedpbc.engines import SerialEngine
from fedpbc.errors import InputError
from fedpbc.links import from_table
from fedpbc.simulation.loop import Simulation
from fedpbc.tasks import LocalTraining
from tests import small_runs as small

CORRECTED = ("scaffold", "amplified_scaffold")


def nesterov(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.8, nesterov=True)


def damped(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.8, dampening=0.5)


STEPS = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "proximal": {"proximal": 2.0},
    "momentum-proximal": {"momentum": 0.9, "proximal": 1.0},
}
TORCH = {"SGD": "SGD", "nesterov": nesterov, "damped": damped}


@pytest.mark.parametrize("name", CORRECTED)
@pytest.mark.parametrize("steps", STEPS)
def test_the_optimum_is_reached_although_clients_differ(name, steps):
    """Its control variates are the gradients at the optimum: another divisor diverges or cycles."""
    training = {"local_steps": 6, "learning_rate": 0.02, "decay": False, **STEPS[steps]}
    task = small.quadratic(**training)
    up = np.random.default_rng(0).random((500, 7)) < 0.7
    options = {"window": 5, "gamma": 1.0} if name == "amplified_scaffold" else {}
    made, _ = small.finished(task, name, up, options=options, evaluate_every=500)
    assert (made.algorithm.x - task.targets.mean(0)).abs().max() < 1e-3
    control = made.server.client_state(0)["control"]
    assert (control - (made.algorithm.x - task.targets[0])).abs().max() < 1e-2


@pytest.mark.parametrize("optimizer", [*TORCH.values(), "sgd", "sgd:momentum=0.9"])
@pytest.mark.parametrize("proximal", [0.0, 0.7])
def test_the_sum_is_what_the_steps_make_of_a_constant_gradient(optimizer, proximal):
    training = LocalTraining(local_steps=5, optimizer=optimizer, proximal=proximal)
    model = torch.zeros(1, dtype=torch.float64)
    for rate in (0.1, 0.04):
        step = training.begin([model], rate)
        for _ in range(5):
            step([torch.ones(1, dtype=torch.float64)])
    assert training.step_sum([0.1, 0.04]) == pytest.approx(-model.item(), rel=1e-12)


def test_weight_decay_is_a_part_of_the_gradient():
    training = {"momentum": 0.9, "weight_decay": 0.5, "learning_rate": 0.02}
    task = small.quadratic(local_steps=6, decay=False, **training)
    up = np.random.default_rng(0).random((500, 7)) < 0.7
    made, _ = small.finished(task, "scaffold", up, evaluate_every=500)
    assert (made.algorithm.x - task.targets.mean(0) / 1.5).abs().max() < 1e-3


def two_rates(parameters, lr):
    first, *rest = parameters
    return torch.optim.SGD([{"params": [first], "lr": lr / 2}, {"params": rest}], lr=lr)


@pytest.mark.parametrize("name", CORRECTED)
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "RMSprop", "Adagrad", two_rates])
def test_an_optimizer_without_such_a_sum_is_refused(name, optimizer):
    task = small.network(optimizer=optimizer)
    with pytest.raises(InputError, match=r"^train\.optimizer is .*should be 'sgd' or"):
        small.simulation(task, name, small.random_table())


def test_other_algorithms_take_any_optimizer():
    for name in ("fedavg", "mifa", "area", "ca_fed"):
        small.finished(small.quadratic(optimizer="adam"), name, small.random_table())


def test_rules_of_plugins_get_the_same_number():
    from tests.simulation.test_client_state import Pulled

    with pytest.raises(InputError, match=r"train\.optimizer is 'adam'"):
        small.simulation(small.quadratic(optimizer="adam"), Pulled, small.random_table())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("window", "rounds"), [(1, 700), (600, 601)])
def test_windows_and_rounds_are_counted_in_any_type(dtype, window, rounds):
    """In bfloat16 256 + 1 is 256."""
    task = small.quadratic(2, learning_rate=1e-3)
    task.init = lambda: torch.zeros(4, dtype=dtype)
    made: Any = find_algorithm("amplified_scaffold")
    task.targets = task.targets.to(dtype)
    algorithm = made(ServerInit(task.init(), 2), window=window, gamma=1.0)
    rule, counts = algorithm.client_rule(), []
    finish = rule.finish

    def noted(work, end):
        counts.append(rule._control(work)[1])
        return finish(work, end)

    rule.finish = noted
    algorithm.client_rule = lambda: rule
    links = from_table(np.ones((rounds, 2), dtype=bool))
    list(Simulation(task, algorithm, SerialEngine(task), links, evaluate_every=rounds).run())
    heard = counts[-2 * rounds :: 2]
    assert heard == [t % window for t in range(rounds)]
