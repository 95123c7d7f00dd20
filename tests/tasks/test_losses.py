"""Losses by name: what they are, what is measured with them, and what does not fit."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpbc import InputError, LocalTraining, Supervised, simulate
from fedpbc.tasks.loss_names import LossName
from fedpbc.tasks.losses import LOSSES, find_loss, hits_of, macro_f1, next_token, subset_accuracy

RANDOM = torch.Generator().manual_seed(3)
X = torch.randn(80, 4, generator=RANDOM)
NUMBERS = X @ torch.tensor([1.0, -2.0, 0.5, 0.0]) + 0.25
FLAGS = (X[:, :3] > 0).long()
QUICK = {"engine": "serial", "progress": False}


def task(module: nn.Module, labels: Tensor, loss: str, **options: object) -> Supervised:
    return Supervised(module, (X, labels), (X, labels), clients=4, loss=loss, **options)


def test_every_name_is_a_loss() -> None:
    assert get_args(LossName) == tuple(LOSSES)
    assert find_loss(functional.cross_entropy) is LOSSES["cross_entropy"]


@pytest.mark.parametrize(
    ("name", "value"),
    # Errors of 0.5 and 3: squares 0.25 and 9; Huber's 0.125 and 3 − 0.5.
    [("squared", 4.625), ("absolute", 1.75), ("huber", (0.125 + 2.5) / 2)],
)
def test_regression_by_hand(name: str, value: float) -> None:
    outputs, labels = torch.tensor([[1.5], [2.0]]), torch.tensor([1.0, -1.0])
    assert float(LOSSES[name].function(outputs, labels)) == value
    assert float(LOSSES[name].metrics["mae"](outputs, labels)) == 1.75
    assert float(LOSSES[name].metrics["rmse"](outputs, labels)) == pytest.approx(4.625**0.5)


def test_multi_label_by_hand() -> None:
    outputs = torch.tensor([[1.0, -1.0], [2.0, 3.0], [-1.0, 1.0]])
    labels = torch.tensor([[1, 0], [1, 0], [0, 0]])
    # Label 0 is always right (F1 1), label 1 is predicted twice and never there (F1 0).
    assert float(subset_accuracy(outputs, labels)) == pytest.approx(1 / 3)
    assert float(macro_f1(outputs, labels)) == 0.5
    assert hits_of(LOSSES["binary_cross_entropy"].function, outputs, labels).tolist() == [
        [True, True],
        [True, False],
        [True, False],
    ]


def test_next_token_by_hand() -> None:
    outputs = torch.zeros(2, 2, 3)
    outputs[0, 0, 1] = outputs[1, 1, 2] = 5.0
    labels = torch.tensor([[1, 0], [-100, 1]])
    # Three positions count; ties go to the first token.
    assert hits_of(next_token, outputs, labels).tolist() == [1.0, 0.0]
    each = [
        float(functional.cross_entropy(outputs[i, t], labels[i, t]))
        for i, t in [(0, 0), (0, 1), (1, 1)]
    ]
    assert float(next_token(outputs, labels)) == pytest.approx(sum(each) / 3)


@pytest.mark.parametrize("name", ["squared", "absolute", "huber"])
def test_a_regression_learns_and_shows_its_error(name: str) -> None:
    torch.manual_seed(0)
    training = LocalTraining(learning_rate=0.05, decay=False)
    made = task(nn.Linear(4, 1), NUMBERS, name, training=training)
    result = simulate(made, "fedavg", np.ones((60, 4), bool), evaluate_every=60, **QUICK)
    evaluation = result.metrics[-1].views["server"]
    assert evaluation.test_accuracy is None
    assert evaluation.extra["mae"] < 0.1 < float(NUMBERS.abs().mean())
    assert evaluation.extra["rmse"] >= evaluation.extra["mae"]


def test_integers_are_numbers_in_a_regression() -> None:
    made = task(nn.Linear(4, 1), NUMBERS.round().long(), "squared")
    assert made.data.labels.dtype == torch.float32
    assert made.class_shares is None


def test_multi_label_learns_and_shows_its_measures() -> None:
    torch.manual_seed(0)
    training = LocalTraining(learning_rate=1.0, decay=False)
    made = task(nn.Linear(4, 3), FLAGS, "binary_cross_entropy", training=training)
    result = simulate(made, "fedavg", np.ones((40, 4), bool), evaluate_every=40, **QUICK)
    evaluation = result.metrics[-1].views["server"]
    assert evaluation.test_accuracy > 0.95
    assert evaluation.extra["subset_accuracy"] > 0.85
    assert evaluation.extra["macro_f1"] > 0.9


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens)


def test_next_token_learns() -> None:
    text = torch.arange(600) % 6
    rows = text.view(100, 6)
    torch.manual_seed(0)
    made = Supervised(
        Tokens(),
        (rows[:, :-1], rows[:, 1:]),
        (rows[:, :-1], rows[:, 1:]),
        clients=4,
        loss="next_token",
        training=LocalTraining(learning_rate=5.0, decay=False),
    )
    result = simulate(made, "fedavg", np.ones((20, 4), bool), evaluate_every=20, **QUICK)
    assert result.metrics[-1].views["server"].test_accuracy == 1.0


@pytest.mark.parametrize(
    ("module", "labels", "loss", "message"),
    [
        (
            nn.Linear(4, 2),
            NUMBERS,
            "squared",
            r"module has outputs of shape \(3, 2\) for labels of shape \(3,\), but the loss "
            "'squared' needs the labels' shape, or one more axis of length 1",
        ),
        (
            nn.Linear(4, 2),
            FLAGS,
            "binary_cross_entropy",
            r"outputs of shape \(3, 2\) for labels of shape \(3, 3\)",
        ),
        (nn.Linear(4, 3), FLAGS * 2, "binary_cross_entropy", "has labels other than 0 and 1"),
        (nn.Linear(4, 3), NUMBERS, "cross_entropy", "labels are torch.float32, but should be"),
        (nn.Linear(4, 3), FLAGS[:, 0] + 2, "cross_entropy", "one output for each of 4 classes"),
        (nn.Linear(4, 3), FLAGS - 1, "next_token", "has the label -1"),
        (nn.Linear(4, 3), FLAGS, "next_token", r"needs one more axis than labels"),
    ],
)
def test_what_does_not_fit_is_one_line(
    module: nn.Module, labels: Tensor, loss: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        task(module, labels, loss)
    assert "\n" not in str(caught.value)
