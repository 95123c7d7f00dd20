"""2 × 2 max-pooling and ReLU in one pass, where the compiled kernel is there."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpbc.tasks.kernels import kernels

__all__ = ["Places", "pool", "suits", "unpool"]


Places = tuple[Tensor, tuple[int, int, int, int]]
"""Which of each four was taken, and the shape [B, H, W, C] of what was pooled."""


def suits(value: Tensor) -> bool:
    """Whether the kernel can pool this."""
    return (
        kernels() is not None
        and value.dtype == torch.float32
        and value.device.type == "cpu"
        and value.dim() == 4
        and value.is_contiguous(memory_format=torch.channels_last)
        and value.shape[2] % 2 == 0
        and value.shape[3] % 2 == 0
    )


def pool(value: Tensor) -> tuple[Tensor, Places]:
    """ReLU of the maxima of [B, C, H, W], whose channels stand last in memory, and where they were.

    Example:
        >>> picture = torch.tensor([[[[1.0, 3.0], [2.0, -1.0]]]])
        >>> pool(picture)[0] if suits(picture) else torch.tensor([[[[3.0]]]])
        tensor([[[[3.]]]])
    """
    library = kernels()
    assert library is not None
    images, channels, height, width = value.shape
    pooled = value.new_empty(images, height // 2, width // 2, channels)
    place = torch.empty_like(pooled, dtype=torch.uint8)
    shape = images, height, width, channels
    library.fedpbc_pool(value.data_ptr(), pooled.data_ptr(), place.data_ptr(), *shape)
    return pooled.permute(0, 3, 1, 2), (place, shape)


def unpool(slope: Tensor, places: Places) -> Tensor:
    """The slope by what was pooled."""
    library = kernels()
    assert library is not None
    place, shape = places
    slope = slope.contiguous(memory_format=torch.channels_last)
    under = slope.new_empty(shape)
    library.fedpbc_unpool(slope.data_ptr(), place.data_ptr(), under.data_ptr(), *shape)
    return under.permute(0, 3, 1, 2)
