"""Local SGD steps of dense networks in the compiled kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpbc.tasks.kernels import kernels

__all__ = ["dense_steps", "has_dense_steps"]


def has_dense_steps() -> bool:
    """Return whether the kernel is available.

    Example:
        >>> has_dense_steps() in (True, False)
        True
    """
    return kernels() is not None


def dense_steps(
    models: Tensor,
    sizes: Sequence[int],
    samples: Tensor,
    labels: Tensor,
    index: Tensor,
    rates: Tensor,
) -> None:
    """Make SGD steps for each of several models, in place.

    Args:
        models: float32 [n, d], the weights and biases of each layer in turn.
        sizes: the widths of the network, from its inputs to its outputs.
        samples: float32 [N, sizes[0]].
        labels: int64 [N].
        index: int64 [n, steps, batch], the samples of each step.
        rates: float32 [n].
    """
    library = kernels()
    assert library is not None
    clients, steps, batch = index.shape
    for tensor in (models, samples, labels, index, rates):
        # The kernel sees addresses only.
        assert tensor.is_contiguous()
    assert models.dtype == samples.dtype == rates.dtype == torch.float32
    assert labels.dtype == index.dtype == torch.int64
    widths = torch.tensor(sizes, dtype=torch.int64, device="cpu")
    buffer = models.new_empty(batch * (sum(sizes[1:]) + 2 * max(sizes[1:])))
    pointers = index.new_empty(batch)
    library.fedpbc_dense_steps(
        models.data_ptr(),
        clients,
        models.shape[1],
        widths.data_ptr(),
        len(sizes) - 1,
        samples.data_ptr(),
        labels.data_ptr(),
        index.data_ptr(),
        steps,
        batch,
        rates.data_ptr(),
        buffer.data_ptr(),
        pointers.data_ptr(),
    )
