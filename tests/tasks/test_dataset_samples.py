"""Samples in whatever form people have them; wrong ones are one line."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from fedpbc import InputError, LocalTraining, Supervised, simulate
from fedpbc.tasks.dataset_samples import pair_of
from fedpbc.tasks.inputs import TensorGroup

X = torch.arange(24.0).reshape(8, 3)
Y = torch.arange(8) % 2


class Pairs(Dataset):
    """A map-style dataset, as people write them."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, k):
        return self.items[k]


class ClassLabel:
    """Named as the type of labels in Hugging Face's ``datasets``."""


class Columns:
    """What is used of ``datasets.Dataset``: columns by name, read whole in a format."""

    def __init__(self, columns, features=None):
        self.columns, self.features = columns, features or {}
        self.column_names = list(columns)
        self.format = None

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def with_format(self, name):
        copy = Columns(self.columns, self.features)
        copy.format = name
        return copy

    def __getitem__(self, rows):
        assert self.format == "numpy"
        return {name: np.asarray(values)[rows] for name, values in self.columns.items()}


@pytest.mark.parametrize(
    "samples",
    [
        (X, Y),
        [X.numpy(), Y.tolist()],
        TensorDataset(X, Y),
        Subset(TensorDataset(torch.cat([X, X]), torch.cat([Y, Y])), range(8)),
        Pairs([(x, int(y)) for x, y in zip(X, Y, strict=True)]),
        Pairs([(x.numpy(), y) for x, y in zip(X, Y, strict=True)]),
        Subset(Pairs([(x.tolist(), y) for x, y in zip(X, Y, strict=True)]), range(8)),
        Columns({"pixels": X.tolist(), "label": Y.tolist()}),
        Columns({"kind": Y.tolist(), "image": X.tolist()}, {"kind": ClassLabel()}),
    ],
    ids=lambda samples: type(samples).__name__,
)
def test_the_same_samples_in_every_form(samples):
    inputs, labels = pair_of(samples, "train")
    assert inputs.float().equal(X)
    assert labels.long().equal(Y)


def test_data_frames():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "label": Y})
    inputs, labels = pair_of((frame[["a", "b"]], frame["label"]), "train")
    assert inputs.float().equal(X[:, :2])
    assert labels.equal(Y)


class Stream(IterableDataset):
    def __iter__(self):
        yield X[0], 0


class Failing(Pairs):
    def __getitem__(self, k):
        raise OSError("no such picture")


@pytest.mark.parametrize(
    ("samples", "line"),
    [
        (X, "train is 'Tensor', but should be a pair of inputs and labels, or a torch or Hugging"),
        ((X, Y, Y), "train is 'tuple', but should be a pair"),
        ((X, ["a"] * 8), "train is 'tuple of Tensor and list', but should be a pair"),
        (DataLoader(TensorDataset(X, Y)), "should be its dataset: pass loader.dataset"),
        (Stream(), "train is 'Stream', but should be a dataset with a length"),
        (Pairs([]), "train is empty"),
        (Pairs([X[0]]), "item 0 of train is 'Tensor', but should be a pair of an input and its"),
        (Pairs([(X[0], 1, 2)]), "item 0 of train is 'tuple of 3', but should be a pair"),
        (Pairs([("a", 0)]), "item 0 of train is 'str and int', but should be numbers"),
        (Pairs([(X[0], 0), (X, 0)]), r"inputs of shapes \(3,\) and \(8, 3\)"),
        (Failing([0]), "train is a Failing whose item 0 failed: OSError: no such picture"),
        ({"train": (X, Y), "test": (X, Y)}, "train is \"dict of 'train', 'test'\", but should be"),
        (Columns({"text": X, "id": Y}), "the columns 'text', 'id', but should have one of inputs"),
        (Columns({"a": X, "b": ["x"] * 8, "label": Y}), "choose them with d.select_columns"),
    ],
)
def test_wrong_samples_are_one_line(samples, line):
    with pytest.raises(InputError, match=line) as error:
        pair_of(samples, "train")
    assert "\n" not in str(error.value)


def test_double_precision_trains_as_single_precision_does():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 4)), np.arange(60) % 3
    assert x.dtype == np.float64
    results = []
    for inputs in (x, x.astype(np.float32)):
        torch.manual_seed(0)
        task = Supervised(nn.Linear(4, 3), (inputs, y), (inputs, y), clients=5, alpha=10.0)
        results.append(simulate(task, "fedavg", "always", rounds=3).models["server"])
    assert results[0].equal(results[1])


def test_a_module_in_double_precision_keeps_its_precision():
    x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    task = Supervised(nn.Linear(4, 3).double(), (x, y), (x, y), clients=5)
    assert task.data.inputs.dtype == task.init().dtype == torch.float64


def test_labels_in_double_precision_of_a_loss_that_takes_only_single():
    x, y = np.ones((20, 2)), np.ones((20, 1))
    loss = nn.functional.huber_loss
    assert y.dtype == np.float64
    task = Supervised(nn.Linear(2, 1), (x, y), (x, y), clients=2, loss=loss)
    assert task.data.labels.dtype == torch.float32
    training = LocalTraining(local_steps=1)
    task = Supervised(nn.Linear(2, 1), (x, y), (x, y), clients=2, loss=loss, training=training)
    assert simulate(task, "fedavg", "always", rounds=2).metrics[-1].round == 2


def test_integers_for_a_dense_layer_are_named():
    x = np.zeros((10, 4), dtype=np.uint8)
    with pytest.raises(InputError, match=r"shape \(4,\) and type uint8; layers other than Embed"):
        Supervised(nn.Linear(4, 2), (x, np.arange(10) % 2), (x, np.arange(10) % 2), clients=2)


def test_several_columns_of_numbers_are_inputs_by_name():
    inputs, labels = pair_of(Columns({"a": X, "label": Y, "b": 2 * X}), "train")
    assert isinstance(inputs, TensorGroup)
    assert {name: tensor.tolist() for name, tensor in inputs.tensors.items()} == {
        "a": X.tolist(),
        "b": (2 * X).tolist(),
    }
    assert labels.tolist() == Y.tolist()
