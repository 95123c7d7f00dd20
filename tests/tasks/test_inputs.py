"""Samples with several inputs, modules that return objects, and losses of the module's own."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from fedpbc import InputError, LocalTraining, Supervised, simulate
from fedpbc.tasks.inputs import TensorGroup, rows_of

RANDOM = torch.Generator().manual_seed(5)
A, B = torch.randn(60, 3, generator=RANDOM), torch.randn(60, 2, generator=RANDOM)
Y = (A.sum(1) + B.sum(1) > 0).long()
TRAINING = LocalTraining(local_steps=2, batch_size=8, learning_rate=0.1)


class Views(nn.Module):
    """Two inputs; with labels it returns its loss, as Hugging Face's models do."""

    def __init__(self, returns: str = "tensor") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right, self.returns = nn.Linear(3, 2), nn.Linear(2, 2), returns

    def forward(self, a: Tensor, b: Tensor, labels: Tensor | None = None) -> object:
        logits = self.left(a) + self.right(b)
        if self.returns == "tensor":
            return logits
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        return SimpleNamespace(loss=loss, logits=logits)


class Joined(nn.Module):
    """The same function of one input."""

    def __init__(self) -> None:
        super().__init__()
        views = Views()
        self.left, self.right = views.left, views.right

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x[:, :3]) + self.right(x[:, 3:])


class Items(Dataset):
    def __init__(self, make) -> None:
        self.make = make

    def __len__(self) -> int:
        return 60

    def __getitem__(self, k: int) -> object:
        return self.make(k)


def run(module: nn.Module, samples: object, **options: object) -> dict[str, Tensor]:
    task = Supervised(module, samples, samples, clients=3, training=TRAINING, seed=2, **options)
    return simulate(task, "fedpbc", np.ones((4, 3), bool), engine="serial", progress=False).models


EXPECTED = run(Joined(), (torch.cat([A, B], 1), Y))


@pytest.mark.parametrize(
    "samples",
    [
        ((A, B), Y),
        ({"a": A, "b": B}, Y),
        ({"b": B.numpy(), "a": A.numpy().astype(np.float64)}, Y.numpy()),
        Items(lambda k: ((A[k], B[k]), Y[k])),
        Items(lambda k: ({"a": A[k], "b": B[k]}, Y[k])),
        Items(lambda k: {"a": A[k], "b": B[k], "label": Y[k]}),
    ],
    ids=["tuple", "table", "arrays", "tuples", "tables", "tables with labels"],
)
def test_several_inputs_train_like_one(samples: object) -> None:
    models = run(Views(), samples)
    for view, model in EXPECTED.items():
        torch.testing.assert_close(models[view], model)


def test_an_object_with_logits_works_as_it_is() -> None:
    models, plain = run(Views("object"), ((A, B), Y)), run(Views(), ((A, B), Y))
    assert all(torch.equal(models[view], plain[view]) for view in plain)


def test_a_modules_own_loss_needs_one_line() -> None:
    own = run(Views("object"), ({"a": A, "b": B}, Y), loss="model")
    plain = run(Views(), ((A, B), Y))
    assert all(torch.equal(own[view], plain[view]) for view in plain)
    task = Supervised(
        Views("object"), ({"a": A, "b": B}, Y), ({"a": A, "b": B}, Y), clients=3, loss="model"
    )
    assert task.evaluate(task.init()).test_accuracy is not None


def test_outputs_may_be_anything_that_the_users_loss_takes() -> None:
    class Two(Views):
        def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            return self.left(a), self.right(b)

    def loss(outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        return functional.cross_entropy(outputs[0] + outputs[1], labels)

    models, plain = run(Two(), ((A, B), Y), loss=loss), run(Views(), ((A, B), Y))
    assert all(torch.equal(models[view], plain[view]) for view in plain)
    with pytest.raises(InputError, match="the module returns a tuple, no tensor"):
        run(Two(), ((A, B), Y), loss=loss, metrics={"m": lambda outputs, labels: 0.0})


@pytest.mark.slow
def test_the_pool_gets_all_inputs() -> None:
    task = Supervised(Views(), ((A, B), Y), ((A, B), Y), clients=3, training=TRAINING, seed=2)
    table = np.ones((4, 3), bool)
    there = simulate(task, "fedpbc", table, engine="pool", workers=2, progress=False).models
    here = run(Views(), ((A, B), Y))
    assert all(torch.equal(there[view], here[view]) for view in here)


def test_a_group_is_indexed_like_a_tensor() -> None:
    group = TensorGroup({"a": A, "ids": torch.arange(60)})
    assert group[[3, 5]].tensors["ids"].tolist() == [3, 5]
    assert group.to(torch.float64).tensors["ids"].dtype == torch.int64
    assert group.to(torch.float64).tensors["a"].dtype == torch.float64


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        (((A, B[:50]), Y), {}, "train has 50 inputs and 60 labels"),
        (({"a": A, "b": B[:50]}, Y), {}, "train has 50 inputs and 60 labels"),
        (({"a": A, "c": B}, Y), {}, r"takes test inputs of shape 'a' \(3,\), 'c' \(2,\)"),
        (((A, B), Y), {"loss": "model"}, 'given with inputs by name, such as {"input_ids"'),
        (({"a": A, "b": B}, Y), {"loss": "model"}, "returns a Tensor without a loss"),
        (((A, B), Y), {"flip": True}, "several inputs, but crop_padding and flip are for images"),
        (((A, B), Y), {"normalise": ([0.0], [1.0])}, "several inputs, but normalise is for images"),
        (((A, B), Y), {"loss": "squarred"}, "but should be one of .*; did you mean 'squared'"),
    ],
)
def test_wrong_input(samples: object, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Supervised(Views(), samples, samples, clients=3, **options)


def test_splits_with_other_inputs_are_refused() -> None:
    with pytest.raises(InputError, match="train has a, b, but test has one input"):
        Supervised(Views(), ({"a": A, "b": B}, Y), (A, Y), clients=3)


def test_a_token_that_the_module_does_not_have_is_found_wherever_it_is() -> None:
    tokens = torch.zeros(60, 2, dtype=torch.int64)
    tokens[41, 1] = 9
    module = nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(6, 2))
    with pytest.raises(InputError, match="index out of range"):
        Supervised(module, (tokens, Y), (tokens, Y), clients=3)


@pytest.mark.parametrize(
    "inputs",
    [
        torch.arange(24).reshape(4, 6),
        torch.arange(4.0),
        torch.rand(4, 3, 2, 5),
        torch.rand(4, 2, 5, 3).permute(0, 3, 1, 2),
        torch.rand(4, 2, 5, 1).permute(0, 3, 1, 2),
        torch.rand(6, 4).t(),
    ],
    ids=["rows", "numbers", "pictures", "channels last", "one channel", "transposed"],
)
def test_rows_are_those_of_indexing_in_the_same_memory_format(inputs):
    index = torch.tensor([2, 0, 2])
    rows = rows_of(inputs, index)
    assert rows.equal(inputs[index])
    assert rows.stride() == inputs[index].stride()
    group = rows_of(TensorGroup({"a": inputs}), index)
    assert group.tensors["a"].equal(rows)
