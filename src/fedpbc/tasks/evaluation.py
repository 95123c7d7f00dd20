"""Loss and accuracy of a module on many samples."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedpbc.tasks.inputs import Inputs, rows_of
from fedpbc.tasks.losses import Loss, hits_of

__all__ = ["CHUNK", "Loss", "class_accuracies", "mean_by_client", "mean_loss_and_hits"]

CHUNK = 100
"""Samples evaluated at once; fixed, so that the sums have the same bits everywhere."""


@torch.no_grad()
def mean_loss_and_hits(
    module: Callable[[Inputs], Any],
    loss: Loss,
    prepare: Callable[[Inputs], Inputs],
    inputs: Inputs,
    labels: Tensor,
    index: Tensor | None = None,
) -> tuple[float, Tensor | None]:
    """Return the mean loss and, for classes, which samples are classified correctly."""
    losses, sizes, hits = [], [], []
    if index is None:
        index = torch.arange(len(labels), device=labels.device)
    for chunk in index.split(CHUNK):  # type: ignore[no-untyped-call]
        outputs, targets = module(prepare(rows_of(inputs, chunk))), labels[chunk]
        losses.append(loss(outputs, targets))
        sizes.append(len(chunk))
        if (correct := hits_of(loss, outputs, targets)) is not None:
            hits.append(correct)
    total = 0.0
    # Read at the end: each read of a GPU's memory waits for its queue. Not with sum(), which adds
    # differently from Python 3.12 on.
    for value, size in zip(torch.stack(losses).flatten().tolist(), sizes, strict=True):
        total += value * size
    return total / len(index), torch.cat(hits).cpu() if hits else None


def mean_by_client(
    module: Callable[[Inputs], Any],
    loss: Loss,
    prepare: Callable[[Inputs], Inputs],
    inputs: Inputs,
    labels: Tensor,
    counts: Sequence[int],
) -> tuple[float, float | None, Tensor | None]:
    """Return the mean over clients of their mean losses and accuracies, and the hits.

    The samples are sorted by client, ``counts`` of each. A client without samples does not count.
    """
    losses, accuracies, all_hits = [], [], []
    every = torch.arange(len(labels), device=labels.device)
    for indices in every.split([count for count in counts if count]):  # type: ignore[no-untyped-call]
        mean_loss, hits = mean_loss_and_hits(module, loss, prepare, inputs, labels, indices)
        losses.append(mean_loss)
        if hits is not None:
            accuracies.append(float(hits.double().mean()))
            all_hits.append(hits)
    if not all_hits:
        return statistics.fmean(losses), None, None
    return statistics.fmean(losses), statistics.fmean(accuracies), torch.cat(all_hits)


def class_accuracies(labels: Tensor, hits: Tensor, classes: int) -> list[float | None]:
    """Return the accuracy on each class; None for a class that has no samples."""
    labels = labels.cpu()
    totals = torch.bincount(labels, minlength=classes).tolist()
    correct = torch.bincount(labels[hits], minlength=classes).tolist()
    return [c / n if n else None for c, n in zip(correct, totals, strict=True)]
