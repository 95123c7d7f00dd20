"""Local optimizers and step-size schedules, by name and as functions."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedpbc import InputError, LocalTraining, Quadratic, Supervised, simulate
from fedpbc.tasks.schedules import HORIZONS, SCHEDULES, ScheduleName

START = torch.tensor([1.0, -2.0, 3.0])
GRADIENTS = [torch.tensor([0.5, -1.0, 2.0]), torch.tensor([-1.0, 0.25, 1.0])]


def stepped(training: LocalTraining, rate: float = 0.1) -> Tensor:
    parameter = START.clone()
    step = training.begin([parameter], rate)
    for gradient in GRADIENTS:
        step([gradient.clone()])
    return parameter


def by_torch(make: type, **options: float) -> Tensor:
    parameter = START.clone().requires_grad_()
    optimizer = make([parameter], lr=0.1, **options)
    for gradient in GRADIENTS:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize(
    ("options", "make", "theirs"),
    [
        ({"weight_decay": 0.5}, torch.optim.SGD, {"weight_decay": 0.5}),
        (
            {"momentum": 0.8, "weight_decay": 0.5},
            torch.optim.SGD,
            {"momentum": 0.8, "weight_decay": 0.5},
        ),
        ({"optimizer": "adam", "weight_decay": 0.5}, torch.optim.Adam, {"weight_decay": 0.5}),
        ({"optimizer": "adamw", "weight_decay": 0.5}, torch.optim.AdamW, {"weight_decay": 0.5}),
        ({"optimizer": "adamw"}, torch.optim.AdamW, {"weight_decay": 0.0}),
    ],
)
def test_ours_are_pytorchs(options: dict, make: type, theirs: dict) -> None:
    torch.testing.assert_close(stepped(LocalTraining(**options)), by_torch(make, **theirs))


@pytest.mark.parametrize(
    ("optimizer", "make", "theirs"),
    [
        ("RMSprop", torch.optim.RMSprop, {}),
        ("NAdam", torch.optim.NAdam, {}),
        (torch.optim.Adagrad, torch.optim.Adagrad, {}),
        (
            lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.5, nesterov=True),
            torch.optim.SGD,
            {"momentum": 0.5, "nesterov": True},
        ),
    ],
)
def test_any_optimizer_of_pytorch_to_the_bit(optimizer: object, make: type, theirs: dict) -> None:
    assert torch.equal(stepped(LocalTraining(optimizer=optimizer)), by_torch(make, **theirs))


@pytest.mark.parametrize("name", ["SGD", "RMSprop"])
def test_momentum_of_an_optimizer_of_pytorch(name: str) -> None:
    training = LocalTraining(optimizer=name, momentum=0.9)
    assert torch.equal(stepped(training), by_torch(getattr(torch.optim, name), momentum=0.9))


def test_weight_decay_of_a_stack_is_that_of_each_row() -> None:
    training = LocalTraining(optimizer="adamw", weight_decay=0.5)
    stack, rates = torch.stack([START, 2 * START]), torch.tensor([0.1, 0.2])
    step = training.begin([stack], rates)
    for gradient in GRADIENTS:
        step([torch.stack([gradient, gradient])])
    torch.testing.assert_close(stack[0], stepped(training))


def test_schedules_by_hand() -> None:
    def factor(name: str, t: int, rounds: int = 4) -> float:
        horizon = {"schedule_rounds": rounds} if name in HORIZONS else {}
        return LocalTraining(learning_rate=1.0, schedule=name, **horizon).rate(t)

    assert factor("constant", 99) == 1
    assert factor("inverse_sqrt", 30) == 0.5
    assert factor("inverse", 4) == 0.5
    assert factor("exponential", 8) == 0.25
    assert [factor("step", t) for t in (3, 4)] == [1, 0.1]
    assert [factor("linear", t) for t in (0, 2, 3, 9)] == [1, 0.5, 0.25, 0.25]
    assert factor("cosine", 2) == pytest.approx(0.5)
    assert factor("cosine", 9) == factor("cosine", 3) == pytest.approx((1 - math.sqrt(0.5)) / 2)


def test_every_name_is_a_schedule() -> None:
    assert get_args(ScheduleName) == tuple(SCHEDULES)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_never_rise_and_never_reach_zero(name: str) -> None:
    training = LocalTraining(schedule=name, **({"schedule_rounds": 7} if name in HORIZONS else {}))
    rates = [training.rate(t) for t in (*range(30), 10**6)]
    assert all(0 < later <= rate for rate, later in pairwise(rates))
    assert training.largest_rate(30) == rates[0]


def test_a_function_of_the_round() -> None:
    training = LocalTraining(learning_rate=0.5, schedule=lambda t: 1.0 if t < 3 else 2.0)
    assert [training.rate(t) for t in (0, 3)] == [0.5, 1.0]
    assert training.largest_rate(4) == 1.0
    assert training.described()["schedule"] == "python:<lambda>"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adamm"}, "train.optimizer is 'adamm', but should be one of sgd, .*'adam'"),
        ({"optimizer": "LBFGS"}, "train.optimizer is 'LBFGS', but should be one of"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        (
            {"optimizer": "adam", "momentum": 0.9},
            "train.momentum is 0.9, but should be left out: the optimizer 'adam' has none",
        ),
        ({"optimizer": "NAdam", "momentum": 0.9}, "left out: the optimizer 'NAdam' has none"),
        ({"optimizer": torch.optim.SGD, "momentum": 0.9}, "left out: give it to the optimizer"),
        ({"optimizer": "momentum"}, "train.optimizer is 'momentum', .* 'sgd' with train.momentum"),
        # Also a value that would be the default if it were read.
        ({"schedule": "cosine", "decay": True}, "left out: the schedule 'cosine' replaces it"),
        ({"schedule": "constant", "schedule_rounds": 100}, "'constant' has no horizon"),
        ({"schedule_rounds": 100}, "train.schedule_rounds is 100, .* there is no schedule"),
        (
            {"schedule": lambda t: -1.0},
            r"train.schedule\(0\) is -1.0, but should be a number above 0",
        ),
        ({"weight_decay": -1.0}, "train.weight_decay is -1.0, but should be"),
        ({"optimizer": torch.optim.SGD, "weight_decay": 0.1}, "left out: give it to the optimizer"),
    ],
)
def test_wrong_settings(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LocalTraining(**options)


X = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def make_task(**options: object) -> Supervised:
    torch.manual_seed(0)
    training = LocalTraining(local_steps=2, batch_size=8, **options)
    return Supervised(nn.Linear(4, 2), (X, Y), (X, Y), clients=3, training=training)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p, lr: None, "one that returns an optimizer, not NoneType"),
        (lambda p: torch.optim.SGD(p), "one that takes the parameters and lr"),
    ],
)
def test_a_factory_that_fails_is_found_before_training(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_task(optimizer=make)


def test_a_run_with_functions_resumes(tmp_path) -> None:
    options = {"optimizer": torch.optim.RMSprop, "schedule": lambda t: 1 / (1 + t)}

    def run(**more: object):
        table = np.ones((6, 3), bool)
        return simulate(
            make_task(**options), "fedpbc", table, engine="serial", progress=False, **more
        )

    class Stop(Exception):
        pass

    def stop(done: int, metrics: object) -> None:
        if done == 3:
            raise Stop

    with pytest.raises(Stop):
        run(out=tmp_path / "run", on_round=stop)
    resumed, whole = run(out=tmp_path / "run"), run()
    assert torch.equal(resumed.models["server"], whole.models["server"])
    assert 'optimizer = "python:RMSprop"' in (tmp_path / "run" / "config.toml").read_text()


def test_an_algorithm_with_its_own_steps_refuses_weight_decay() -> None:
    with pytest.raises(InputError, match="left out: focus takes the local steps itself"):
        simulate(make_task(weight_decay=0.1), "focus", np.ones((2, 3), bool), progress=False)


def test_quadratics_refuse_optimizers_of_pytorch() -> None:
    with pytest.raises(InputError, match="this task trains clients in a stack"):
        Quadratic([[1.0]], training=LocalTraining(optimizer="RMSprop"))
