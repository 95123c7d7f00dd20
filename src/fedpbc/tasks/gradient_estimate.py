"""Estimate the size and the spread of the clients' gradients from a few batches."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedpbc.tasks.task import Gradients

__all__ = ["gradients_from_pairs"]


def gradients_from_pairs(pairs: Iterable[tuple[Tensor, Tensor]], clients: int) -> Gradients:
    """Estimate from two gradients of each of some clients, on independently drawn batches.

    No noisy quantity is squared: ⟨g, g'⟩ of one client's two gradients has the mean ‖∇F_i‖², and
    of two clients' gradients ⟨∇F_i, ∇F_j⟩. So all three estimates are unbiased, except that they
    are cut off at 0. ``clients`` is m, the number of all clients.
    """
    total: Tensor | None = None
    count, within, noise, squares = 0, 0.0, 0.0, 0.0
    for first, second in pairs:
        mean, difference = (first + second).div_(2), first - second
        within += float(torch.dot(first, second))
        noise += float(torch.dot(difference, difference)) / 2
        squares += float(torch.dot(mean, mean))
        total = mean if total is None else total.add_(mean)
        count += 1
    assert total is not None
    within, noise = within / count, noise / count
    if count == 1:
        return Gradients(slope=max(within, 0.0), noise=noise, spread=0.0)
    across = (float(torch.dot(total, total)) - squares) / (count * (count - 1))
    # ∇F is the mean over all m clients: m of the m² products are a client's with itself.
    slope = within / clients + across * (1 - 1 / clients)
    return Gradients(slope=max(slope, 0.0), noise=noise, spread=max(within - slope, 0.0))
