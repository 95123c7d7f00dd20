"""Validation of what a user passes to a supervised task: samples, a partition, a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from fedpbc.errors import InputError
from fedpbc.limits import numbers_of
from fedpbc.tasks.dataset_samples import pair_of
from fedpbc.tasks.inputs import Inputs, tensors_in
from fedpbc.tasks.losses import IGNORED, LabelKind

__all__ = ["Partition", "Samples", "as_tensors", "checked_partition"]

Samples = tuple[Any, Any] | Dataset[Any] | Any
"""A pair of inputs and labels (tensors, arrays, data frames), or a dataset of such pairs; inputs
can be a tuple of tensors, or tensors by name."""
Partition = Sequence[NDArray[np.int64]] | NDArray[np.int64]


def as_tensors(samples: Samples, name: str, kind: LabelKind = "any") -> tuple[Inputs, Tensor]:
    """Return validated inputs and labels as tensors on the CPU.

    ``kind`` is that of the labels: as numbers, integers become floating-point ones.
    """
    inputs, labels = pair_of(samples, name)
    arrays = [*tensors_in(inputs), labels]
    if any(array.is_complex() for array in arrays):
        raise InputError(f"{name} has complex numbers, but should be real")
    if any(array.layout != torch.strided for array in arrays):
        raise InputError(f"{name} has sparse tensors, but should have dense ones: use to_dense()")
    if not all(array.dim() for array in arrays):
        raise InputError(f"{name} is a single number, but should be one input and label per sample")
    for array in arrays[:-1]:
        if len(array) != len(labels):
            raise InputError(
                f"{name} has {len(array)} inputs and {len(labels)} labels, "
                "but should have one label per input"
            )
    if not len(labels):
        raise InputError(f"{name} is empty, but should have at least one sample")
    if any(array.is_floating_point() and not array.isfinite().all() for array in arrays):
        raise InputError(f"{name} has infinite or NaN values, but should be finite")
    return inputs, _checked_labels(labels, name, kind)


def _checked_labels(labels: Tensor, name: str, kind: LabelKind) -> Tensor:
    if kind == "numbers":
        return labels if labels.is_floating_point() else labels.to(torch.get_default_dtype())
    if kind == "flags" and not bool(((labels == 0) | (labels == 1)).all()):
        raise InputError(f"{name} has labels other than 0 and 1, but the loss needs only these")
    if labels.is_floating_point():
        return labels
    labels = labels.long()
    # In sequences, some positions may not count.
    counted = labels if labels.dim() == 1 else labels[labels != IGNORED]
    if len(counted) and int(counted.min()) < 0:
        raise InputError(
            f"{name} has the label {int(counted.min())}, but classes should be numbered from 0"
        )
    return labels


def checked_partition(partition: Partition, samples: int) -> list[NDArray[np.int64]]:
    """Return a user's partition, validated."""
    if not isinstance(partition, Sequence | np.ndarray):
        raise InputError("partition", type(partition).__name__, "an array of indices per client")
    parts = [numbers_of(f"partition of client {k}", part) for k, part in enumerate(partition)]
    if not parts:
        raise InputError("partition is empty, but should have one array of indices per client")
    for client, part in enumerate(parts):
        name = f"partition of client {client}"
        if part.ndim != 1 or not len(part):
            raise InputError(
                f"{name} has shape {part.shape}, but should be a vector of at least one index"
            )
        if part.dtype.kind not in "iu":
            raise InputError(f"{name} is of type {part.dtype}, but should be integers")
        if part.min() < 0 or part.max() >= samples:
            outside = int(part.max() if part.max() >= samples else part.min())
            raise InputError(
                f"{name} has the index {outside}, but should be from 0 to {samples - 1}"
            )
    return [part.astype(np.int64) for part in parts]
