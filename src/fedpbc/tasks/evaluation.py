"""Loss and accuracy of a module on many samples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["CHUNK", "Loss", "class_accuracies", "mean_loss_and_hits"]

Loss = Callable[[Tensor, Tensor], Tensor]

CHUNK = 100
"""Samples evaluated at once; fixed, so that the sums have the same bits everywhere."""


@torch.no_grad()
def mean_loss_and_hits(
    module: nn.Module,
    loss: Loss,
    prepare: Callable[[Tensor], Tensor],
    inputs: Tensor,
    labels: Tensor,
    index: Tensor | None = None,
) -> tuple[float, Tensor | None]:
    """Return the mean loss and, for classes, which samples are classified correctly."""
    losses, sizes, hits = [], [], []
    if index is None:
        index = torch.arange(len(labels), device=labels.device)
    for chunk in index.split(CHUNK):  # type: ignore[no-untyped-call]
        outputs, targets = module(prepare(inputs[chunk])), labels[chunk]
        losses.append(loss(outputs, targets))
        sizes.append(len(chunk))
        if not targets.is_floating_point() and outputs.dim() == targets.dim() + 1:
            hits.append(outputs.argmax(dim=1) == targets)
    total = 0.0
    # Read at the end: each read of a GPU's memory waits for its queue. Not with sum(), which adds
    # differently from Python 3.12 on.
    for value, size in zip(torch.stack(losses).flatten().tolist(), sizes, strict=True):
        total += value * size
    return total / len(index), torch.cat(hits).cpu() if hits else None


def class_accuracies(labels: Tensor, hits: Tensor, classes: int) -> list[float | None]:
    """Return the accuracy on each class; None for a class that has no samples."""
    labels = labels.cpu()
    totals = torch.bincount(labels, minlength=classes).tolist()
    correct = torch.bincount(labels[hits], minlength=classes).tolist()
    return [c / n if n else None for c, n in zip(correct, totals, strict=True)]
