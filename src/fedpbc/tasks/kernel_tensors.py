"""Tensors for compiled kernels, which see addresses only: the user may have set other defaults."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["empty", "empty_images", "random_normal"]


def empty(*shape: int) -> Tensor:
    """Return a tensor without values."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def empty_images(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return images without values, channels last."""
    return torch.empty(shape, dtype=dtype, device="cpu", memory_format=torch.channels_last)


def random_normal(*shape: int, generator: torch.Generator | None = None) -> Tensor:
    """Return random numbers without a draw from anybody's generator."""
    if generator is None:
        generator = torch.Generator("cpu").manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
