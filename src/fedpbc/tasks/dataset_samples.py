"""Samples from what people have: arrays, data frames, torch and Hugging Face datasets.

Everything is read once, in order, into one tensor of inputs and one of labels: a dataset with
random transforms yields one draw of them. Neither ``datasets`` nor ``pandas`` is imported; their
objects are recognised by what they can do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from fedpbc.errors import InputError, one_line

__all__ = ["is_samples", "pair_of"]

EXPECTED = "a pair of inputs and labels, or a torch or Hugging Face dataset of such pairs"
LABELS = ("label", "labels", "fine_label", "target", "targets", "y")
"""Names of a column of labels, the likeliest first."""


def pair_of(samples: Any, name: str) -> tuple[Tensor, Tensor]:
    """Return inputs and labels as tensors on the CPU.

    Args:
        samples: a pair of tensors, arrays or data frames, a torch ``Dataset`` of pairs, or a
            ``datasets.Dataset`` with one column of inputs and one of labels.
        name: of the argument, for messages.

    Example:
        >>> x, y = pair_of(TensorDataset(torch.zeros(4, 2), torch.arange(4)), "train")
        >>> x.shape, y.tolist()
        (torch.Size([4, 2]), [0, 1, 2, 3])
    """
    if isinstance(samples, DataLoader):
        raise InputError(name, "DataLoader", "its dataset: pass loader.dataset")
    if _is_hugging_face(samples):
        return _from_columns(samples, name)
    if isinstance(samples, Mapping):
        splits = ", ".join(map(repr, list(samples)[:5]))
        raise InputError(name, f"{type(samples).__name__} of {splits}", f"one of them, {EXPECTED}")
    if isinstance(samples, IterableDataset):
        raise InputError(name, type(samples).__name__, "a dataset with a length, read by index")
    if isinstance(samples, Dataset):
        return _from_dataset(samples, name)
    if not isinstance(samples, tuple | list) or len(samples) != 2:
        raise InputError(name, type(samples).__name__, EXPECTED)
    try:
        inputs, labels = map(as_tensor, samples)
    except Exception as error:  # PyTorch raises many kinds of errors for what is no array.
        kind = f"{type(samples).__name__} of {' and '.join(type(s).__name__ for s in samples)}"
        raise InputError(name, kind, f"{EXPECTED} ({one_line(error)})") from None
    return inputs, labels


def is_samples(value: Any) -> bool:
    """Return whether something is a pair or a dataset, as far as its type tells."""
    if isinstance(value, tuple | list):
        return len(value) == 2
    return isinstance(value, Dataset) or _is_hugging_face(value)


def as_tensor(values: Any) -> Tensor:
    """Return numbers as a tensor on the CPU; data frames, images and lists are arrays, too."""
    if not isinstance(values, Tensor | np.ndarray) and hasattr(values, "__array__"):
        values = np.array(values)
    return torch.as_tensor(values, device="cpu")


def _from_dataset(dataset: Dataset[Any], name: str) -> tuple[Tensor, Tensor]:
    """Read a torch dataset whose items are pairs."""
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        inputs, labels = dataset.tensors
        return inputs.cpu(), labels.cpu()
    if isinstance(dataset, Subset) and isinstance(dataset.dataset, TensorDataset):
        index = torch.as_tensor(list(dataset.indices))
        inputs, labels = _from_dataset(dataset.dataset, name)
        return inputs[index], labels[index]
    if not hasattr(dataset, "__len__"):
        raise InputError(name, type(dataset).__name__, "a dataset with a length, read by index")
    items = []
    for k in range(len(dataset)):
        try:
            item = dataset[k]
        except Exception as error:
            failed = f"{name} is a {type(dataset).__name__} whose item {k} failed"
            raise InputError(f"{failed}: {one_line(error)}") from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            what = type(item).__name__
            if isinstance(item, tuple | list | dict):
                what += f" of {len(item)}"
            raise InputError(f"item {k} of {name}", what, "a pair of an input and its label")
        items.append(item)
    return _stacked(items, name)


def _is_hugging_face(samples: Any) -> bool:
    return hasattr(samples, "column_names") and hasattr(samples, "with_format")


def _from_columns(dataset: Any, name: str) -> tuple[Tensor, Tensor]:
    """Read a dataset with named columns: that of the labels is known by its type or its name."""
    columns = dataset.column_names
    if isinstance(columns, Mapping):
        splits = ", ".join(map(repr, list(columns)[:5]))
        raise InputError(
            name, f"{type(dataset).__name__} of {splits}", "one of them, such as d['train']"
        )
    if columns is None or not hasattr(dataset, "__len__"):
        raise InputError(name, type(dataset).__name__, "a dataset with a length: not a stream")
    features = getattr(dataset, "features", None) or {}
    classes = [c for c in columns if type(features.get(c)).__name__ == "ClassLabel"]
    labels = classes if len(classes) == 1 else [c for c in LABELS if c in columns][:1]
    inputs = [c for c in columns if c not in labels]
    if not labels or len(inputs) != 1:
        listed = ", ".join(map(repr, columns))
        raise InputError(
            f"{name} has the columns {listed}, but should have one of inputs and one of labels: "
            "choose them with d.select_columns(['image', 'label'])"
        )
    # Whole columns are read at once; images of several sizes stay a list.
    batch = dataset.with_format("numpy")[: len(dataset)]
    return _stacked(zip(batch[inputs[0]], batch[labels[0]], strict=True), name)


def _stacked(items: Iterable[Any], name: str) -> tuple[Tensor, Tensor]:
    """Stack pairs into one tensor of inputs and one of labels."""
    inputs, labels = [], []
    for k, (x, y) in enumerate(items):
        try:
            inputs.append(as_tensor(x))
            labels.append(as_tensor(y))
        except Exception as error:
            kinds = f"{type(x).__name__} and {type(y).__name__}"
            raise InputError(
                f"item {k} of {name}", kinds, f"numbers, tensors or arrays ({one_line(error)})"
            ) from None
        for what, tensors in (("inputs", inputs), ("labels", labels)):
            first, other = tuple(tensors[0].shape), tuple(tensors[k].shape)
            if first != other:
                raise InputError(
                    f"{name} has {what} of shapes {first} and {other}, but should have all of one "
                    "shape"
                )
    if not inputs:
        raise InputError(f"{name} is empty, but should have at least one sample")
    return torch.stack(inputs), torch.stack(labels)
