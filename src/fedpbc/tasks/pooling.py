"""2 × 2 max-pooling and ReLU in one pass, in the compiled kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpbc.tasks.kernels import kernels

__all__ = ["Positions", "can_pool", "pool", "unpool"]


Positions = tuple[Tensor, tuple[int, int, int, int]]
"""Which of each four values is the maximum, and the shape [B, H, W, C] of the pooling's input."""


def can_pool(value: Tensor) -> bool:
    """Return whether the kernel is available and supports this tensor."""
    return (
        kernels() is not None
        and value.dtype == torch.float32
        and value.device.type == "cpu"
        and value.dim() == 4
        and value.is_contiguous(memory_format=torch.channels_last)
        and value.shape[2] % 2 == 0
        and value.shape[3] % 2 == 0
    )


def pool(value: Tensor) -> tuple[Tensor, Positions]:
    """Return ReLU of the maxima of [B, C, H, W] in channels-last format, and their positions.

    Example:
        >>> image = torch.tensor([[[[1.0, 3.0], [2.0, -1.0]]]])
        >>> pool(image)[0] if can_pool(image) else torch.tensor([[[[3.0]]]])
        tensor([[[[3.]]]])
    """
    library = kernels()
    assert library is not None
    images, channels, height, width = value.shape
    pooled = value.new_empty(images, height // 2, width // 2, channels)
    index = torch.empty_like(pooled, dtype=torch.uint8)
    shape = images, height, width, channels
    library.fedpbc_pool(value.data_ptr(), pooled.data_ptr(), index.data_ptr(), *shape)
    return pooled.permute(0, 3, 1, 2), (index, shape)


def unpool(grad: Tensor, positions: Positions) -> Tensor:
    """Return the gradient by the pooling's input."""
    library = kernels()
    assert library is not None
    index, shape = positions
    grad = grad.contiguous(memory_format=torch.channels_last)
    input_grad = grad.new_empty(shape)
    library.fedpbc_unpool(grad.data_ptr(), index.data_ptr(), input_grad.data_ptr(), *shape)
    return input_grad.permute(0, 3, 1, 2)
