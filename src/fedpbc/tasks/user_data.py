"""What a user brings to a supervised task, checked: samples, a partition of them, a module."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpbc.errors import InputError, Verbatim

__all__ = ["Partition", "Samples", "as_tensors", "checked_partition", "refuse_running_statistics"]

Samples = tuple[Tensor | NDArray[np.generic], Tensor | NDArray[np.generic]]
Partition = Sequence[NDArray[np.int64]] | NDArray[np.int64]


def as_tensors(samples: Samples, name: str) -> tuple[Tensor, Tensor]:
    """Inputs and labels as tensors, checked."""
    inputs, labels = (torch.as_tensor(part, device="cpu") for part in samples)
    if not inputs.dim() or not labels.dim():
        raise InputError(name, Verbatim("a single number"), "inputs and labels, one a sample")
    if len(inputs) != len(labels):
        given = Verbatim(f"{len(inputs)} inputs and {len(labels)} labels")
        raise InputError(name, given, "as many of one as of the other")
    if not len(inputs):
        raise InputError(name, Verbatim("empty"), "at least one sample")
    for part in (inputs, labels):
        if part.is_floating_point() and not part.isfinite().all():
            raise InputError(name, Verbatim("not finite everywhere"), "finite numbers")
    if not labels.is_floating_point():
        labels = labels.long()
        if int(labels.min()) < 0:
            raise InputError(f"{name} labels", int(labels.min()), "class numbers from 0")
    return inputs, labels


def checked_partition(partition: Partition, samples: int) -> list[NDArray[np.int64]]:
    """A partition given by the user."""
    parts = [np.asarray(part) for part in partition]
    if not parts:
        raise InputError("partition", Verbatim("empty"), "one array of indices a client")
    for client, part in enumerate(parts):
        if part.ndim != 1 or not len(part):
            given = Verbatim(f"of shape {part.shape}")
            raise InputError(f"partition of client {client}", given, "at least one index, in a row")
        if part.dtype.kind not in "iu":
            given = Verbatim(f"of type {part.dtype}")
            raise InputError(f"partition of client {client}", given, "whole numbers")
        if part.min() < 0 or part.max() >= samples:
            wrong = int(part.max() if part.max() >= samples else part.min())
            raise InputError(f"partition of client {client}", wrong, f"from 0 to {samples - 1}")
    return [part.astype(np.int64) for part in parts]


def refuse_running_statistics(module: nn.Module) -> None:
    """Running statistics are no parameters: no algorithm here would average them."""
    for name, layer in module.named_modules():
        if getattr(layer, "track_running_stats", False):
            given = Verbatim(f"with running statistics in '{name or type(layer).__name__}'")
            raise InputError("module", given, "without; GroupNorm instead of BatchNorm does it")
