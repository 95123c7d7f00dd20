"""The local step: schedule, SGD, momentum, Adam, the proximal term, and what is added."""

from __future__ import annotations

import math

import pytest
import torch

from fedpbc.tasks import LocalTraining, Quadratic
from tests import small_runs as small


def test_schedule():
    training = LocalTraining(learning_rate=0.1)
    assert [training.rate(t) for t in (0, 30, 150)] == [0.1, 0.05, 0.025]
    assert training.rate(10) == 0.1 / math.sqrt(2)
    assert LocalTraining(learning_rate=0.1, decay=False).rate(30) == 0.1


def test_the_papers_defaults():
    training = LocalTraining()
    assert (training.local_steps, training.batch_size, training.learning_rate) == (5, 16, 0.05)
    assert (training.optimizer, training.proximal, training.decay) == ("sgd", 0, True)


def walk(steps=3, start=0.0, correction=None, round=0, **options) -> list[float]:
    """The models after 1, 2, … local steps towards u = 8, with η = 1/2 unless told otherwise."""
    options = {"learning_rate": 0.5, "decay": False, **options}
    terms = None if correction is None else torch.tensor([correction], dtype=torch.float64)
    found = []
    for s in range(1, steps + 1):
        task = Quadratic([[8.0]], training=LocalTraining(local_steps=s, **options))
        x0 = torch.tensor([start], dtype=torch.float64)
        found.append(task.local_steps(0, x0, round, 0, terms).item())
        stacked = x0[None].clone()
        task.stacked_local_steps(
            [0], stacked, [round], [0], terms if terms is None else terms[None]
        )
        assert stacked.item() == found[-1]
    return found


def test_sgd_by_hand():
    assert walk() == [4, 6, 7]
    assert walk(start=16.0) == [12, 10, 9]
    assert walk(round=30, decay=True) == [2, 3.5, 4.625]


def test_a_correction_is_added_to_every_gradient():
    assert walk(correction=2.0) == [3, 4.5, 5.25]


def test_momentum_by_hand():
    # Gradients −8, −4, 2; velocities −8, −8, −2 with momentum 1/2.
    assert walk(momentum=0.5) == [4, 8, 10]
    assert walk(optimizer="sgd", momentum=0.0) == walk()


def test_proximal_by_hand():
    # g + μ(x − x_start) from 2 with μ = 1: −6, then −3 + 3.
    assert walk(start=2.0, proximal=1.0) == [5, 5, 5]
    assert walk(proximal=0.5) == [4, 5, 5.25]


def test_proximal_pulls_to_where_the_round_began_not_the_segment():
    task = Quadratic(
        [[8.0]],
        training=LocalTraining(local_steps=2, learning_rate=0.5, decay=False, proximal=1.0),
    )
    first = task.local_steps(0, task.init(), 0, 0, None)
    assert first.item() == 4.0  # −8 to 4, then −4 + 4
    assert task.local_steps(0, first, 1, 0, None).item() == 6.0  # from 4: −4, then −2 + 2


def test_a_whole_number_as_learning_rate():
    assert walk(learning_rate=1) == [8, 8, 8]


OPTIMIZERS = {
    "sgd": ({"optimizer": "sgd"}, lambda p, rate: torch.optim.SGD(p, rate)),
    "momentum": (
        {"momentum": 0.8},
        lambda p, rate: torch.optim.SGD(p, rate, momentum=0.8),
    ),
    "adam": ({"optimizer": "adam"}, torch.optim.Adam),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("stacked", [False, True])
def test_as_torch_does_with_an_optimizer_made_fresh_each_round(name, stacked):
    options, make = OPTIMIZERS[name]
    training = LocalTraining(learning_rate=0.1, local_steps=4, **options)
    random = torch.Generator().manual_seed(0)
    ours = [torch.randn(2, 3, generator=random), torch.randn(2, generator=random)]
    theirs = [p.clone() for p in ours]
    mine = [p.unsqueeze(0) for p in ours] if stacked else ours
    for t in range(3):
        rate = training.rate(t)
        step = training.begin(mine, torch.tensor([rate]) if stacked else rate)
        optimizer = make(theirs, training.rate(t))
        for _ in range(4):
            gradients = [torch.randn(p.shape, generator=random) for p in theirs]
            step([g.unsqueeze(0) for g in gradients] if stacked else gradients)
            for p, g in zip(theirs, gradients, strict=True):
                p.grad = g
            optimizer.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{}, *(options for options, _ in OPTIMIZERS.values())])
def test_gradients_given_are_not_changed(options):
    gradient = torch.ones(2)
    step = LocalTraining(proximal=0.5, **options).begin([torch.zeros(2)], 0.1, [torch.ones(2)])
    step([gradient])
    assert gradient.tolist() == [1, 1]


def test_each_client_of_a_stack_has_its_own_rate():
    task = small.quadratic(2)
    start = torch.ones(2, 4, dtype=torch.float64)
    both = start.clone()
    task.stacked_local_steps([0, 1], both, [0, 40], [0, 0], None)
    for row, (client, round) in enumerate([(0, 0), (1, 40)]):
        alone = task.local_steps(client, start[row], round, 0, None)
        torch.testing.assert_close(both[row], alone, rtol=0, atol=1e-15)
