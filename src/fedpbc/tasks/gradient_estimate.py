"""How large clients' gradients are and how much they differ, estimated from a few batches."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedpbc.tasks.task import Gradients

__all__ = ["gradients_from_pairs"]


def gradients_from_pairs(pairs: Iterable[tuple[Tensor, Tensor]], clients: int) -> Gradients:
    """From two gradients each of some of the clients, on batches drawn independently.

    No term is the square of something noisy: ⟨g, g'⟩ of one client's two gradients has the mean
    ‖∇F_i‖², and of two clients' ⟨∇F_i, ∇F_j⟩. So all three numbers are right in the mean, and
    cut off at 0.

    Args:
        pairs: of vectors, a pair for each client that was asked.
        clients: m, how many there are in all.

    Example:
        >>> pairs = [(torch.tensor([3.0]), torch.tensor([1.0]))] * 2
        >>> gradients_from_pairs(pairs, clients=2)
        Gradients(slope=3.5, noise=2.0, spread=0.0)
    """
    total: Tensor | None = None
    count, own, noise, squares = 0, 0.0, 0.0, 0.0
    for one, other in pairs:
        middle, apart = (one + other).div_(2), one - other
        own += float(torch.dot(one, other))
        noise += float(torch.dot(apart, apart)) / 2
        squares += float(torch.dot(middle, middle))
        total = middle if total is None else total.add_(middle)
        count += 1
    assert total is not None
    own, noise = own / count, noise / count
    if count == 1:
        return Gradients(slope=max(own, 0.0), noise=noise, spread=0.0)
    across = (float(torch.dot(total, total)) - squares) / (count * (count - 1))
    # ∇F is the mean over all m: m of the m² products are a client's with itself.
    slope = own / clients + across * (1 - 1 / clients)
    return Gradients(slope=max(slope, 0.0), noise=noise, spread=max(own - slope, 0.0))
