"""Samples from what people have: arrays, data frames, torch and Hugging Face datasets.

Everything is read once, in order, into one tensor of inputs, or several, and one of labels: a
dataset with random transforms yields one draw of them. Neither ``datasets`` nor ``pandas`` is
imported; their objects are recognised by what they can do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from fedpbc.errors import InputError, one_line
from fedpbc.tasks.inputs import Inputs, TensorGroup

__all__ = ["is_samples", "pair_of"]

EXPECTED = "a pair of inputs and labels, or a torch or Hugging Face dataset of such pairs"
LABELS = ("label", "labels", "fine_label", "target", "targets", "y")
"""Names of a column of labels, the likeliest first."""


def pair_of(samples: Any, name: str) -> tuple[Inputs, Tensor]:
    """Return inputs and labels as tensors on the CPU.

    Args:
        samples: a pair of tensors, arrays or data frames, a torch ``Dataset`` of pairs, or a
            ``datasets.Dataset`` with a column of labels. The inputs of a pair may be a tuple of
            tensors, or a table of them by name; an item of a dataset may be a table that has the
            label, too.
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
        labels = as_tensor(samples[1])
        inputs = _inputs_of(samples[0], len(labels) if labels.dim() else 0)
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


def _inputs_of(values: Any, count: int) -> Inputs:
    """One tensor, or several with ``count`` rows each, by name or in a tuple."""
    if isinstance(values, TensorGroup):
        return values
    if isinstance(values, Mapping) and values:
        return TensorGroup({str(name): as_tensor(each) for name, each in values.items()})
    is_tuple = isinstance(values, tuple) and bool(values)
    arrays = is_tuple and all(isinstance(each, Tensor | np.ndarray) for each in values)
    # A tuple of arrays may be one sample each, unless all have a row per label.
    is_group = arrays and all(each.ndim and len(each) == count for each in values)
    if is_group or (is_tuple and all(isinstance(x, Tensor) and x.ndim for x in values)):
        return TensorGroup({str(k): as_tensor(x) for k, x in enumerate(values)}, named=False)
    return as_tensor(values)


def _from_dataset(dataset: Dataset[Any], name: str) -> tuple[Inputs, Tensor]:
    """Read a torch dataset whose items are pairs."""
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        inputs, labels = dataset.tensors
        return inputs.cpu(), labels.cpu()
    if isinstance(dataset, Subset) and isinstance(dataset.dataset, TensorDataset):
        index = torch.as_tensor(list(dataset.indices))
        all_inputs, all_labels = _from_dataset(dataset.dataset, name)
        return all_inputs[index], all_labels[index]
    if not hasattr(dataset, "__len__"):
        raise InputError(name, type(dataset).__name__, "a dataset with a length, read by index")
    items = []
    for k in range(len(dataset)):
        try:
            item = dataset[k]
        except Exception as error:
            failed = f"{name} is a {type(dataset).__name__} whose item {k} failed"
            raise InputError(f"{failed}: {one_line(error)}") from error
        item = _without_label(item)
        if not isinstance(item, tuple | list) or len(item) != 2:
            what = type(item).__name__
            if isinstance(item, tuple | list | dict):
                what += f" of {len(item)}"
            raise InputError(f"item {k} of {name}", what, "a pair of an input and its label")
        items.append(item)
    return _stacked(items, name)


def _is_hugging_face(samples: Any) -> bool:
    return hasattr(samples, "column_names") and hasattr(samples, "with_format")


def _without_label(item: Any) -> Any:
    """A table of tensors and a label, as Hugging Face's, as a pair."""
    if isinstance(item, Mapping):
        labels = [key for key in LABELS if key in item]
        if labels and len(item) > 1:
            return {k: v for k, v in item.items() if k != labels[0]}, item[labels[0]]
    return item


def _from_columns(dataset: Any, name: str) -> tuple[Inputs, Tensor]:
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
    listed = ", ".join(map(repr, columns))
    misfit = InputError(
        f"{name} has the columns {listed}, but should have one of inputs and one of labels: "
        "choose them with d.select_columns(['image', 'label'])"
    )
    if not labels or not inputs:
        raise misfit
    # Whole columns are read at once; images of several sizes stay a list.
    batch = dataset.with_format("numpy")[: len(dataset)]
    if len(inputs) == 1:
        return _stacked(zip(batch[inputs[0]], batch[labels[0]], strict=True), name)
    rows = (
        dict(zip(inputs, row, strict=True)) for row in zip(*(batch[c] for c in inputs), strict=True)
    )
    try:
        return _stacked(zip(rows, batch[labels[0]], strict=True), name)
    except InputError as error:
        raise misfit from error


def _stacked(items: Iterable[Any], name: str) -> tuple[Inputs, Tensor]:
    """Stack pairs into one tensor of inputs, or several, and one of labels."""
    pairs = list(items)
    first = pairs[0][0] if pairs else None
    if isinstance(first, Mapping | tuple):
        named = isinstance(first, Mapping)
        tables = [(_table(x), y) for x, y in pairs]
        keys = list(tables[0][0])
        if any(list(x) != keys for x, _ in tables):
            raise InputError(f"{name} has items with other inputs than {', '.join(keys)}")
        parts = {key: _stacked_pairs(((x[key], y) for x, y in tables), name) for key in keys}
        labels = next(iter(parts.values()))[1]
        return TensorGroup({key: part[0] for key, part in parts.items()}, named=named), labels
    return _stacked_pairs(pairs, name)


def _table(values: Any) -> dict[str, Any]:
    """Several inputs of one sample by name; those of a tuple are numbered."""
    if isinstance(values, Mapping):
        return {str(key): value for key, value in values.items()}
    return {str(k): value for k, value in enumerate(values)} if isinstance(values, tuple) else {}


def _stacked_pairs(items: Iterable[Any], name: str) -> tuple[Tensor, Tensor]:
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
