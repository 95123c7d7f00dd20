from __future__ import annotations

import pytest
import torch

from fedpbc.errors import InputError
from fedpbc.tasks import Quadratic


def test_the_task():
    task = Quadratic([[0.0, 2.0], [4, 6]])
    assert task.clients == 2
    assert task.layout.dimension == 2
    assert task.init().tolist() == [0, 0]
    assert task.init().dtype == torch.float64
    assert task.optimum.tolist() == [2, 4]
    assert task.class_shares is None
    assert task.stack_advice().worthwhile


def test_loss_and_distance_by_hand():
    found = Quadratic([[0.0, 2.0], [4.0, 6.0]]).evaluate(torch.tensor([2.0, 1.0]))
    # ½‖(2, −1)‖² = 2.5 and ½‖(−2, −5)‖² = 14.5; ‖(0, −3)‖ = 3.
    assert found.test_loss == found.train_loss == 8.5
    assert found.as_dict()["distance"] == 3
    assert found.test_accuracy is None


def test_the_start_is_not_changed():
    task, start = Quadratic([[1.0]]), torch.zeros(1, dtype=torch.float64)
    task.local_steps(0, start, 0, 0, None)
    assert start.item() == 0


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        ([1.0, 2.0], "clients × dimensions"),
        ([[]], "clients × dimensions"),
        ([["a"]], "clients × dimensions"),
        ([[True]], "clients × dimensions"),
        ([[float("nan")]], "infinite or NaN"),
        ([[float("inf")]], "infinite or NaN"),
    ],
)
def test_refusals(targets, says):
    with pytest.raises(InputError, match=says):
        Quadratic(targets)
