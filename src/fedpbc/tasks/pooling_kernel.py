"""ReLU and 2×2 max-pooling in one compiled pass, with the bits of PyTorch's two operators.

PyTorch reads and writes a convolution's output five times for the two, forward and backward; this
does it twice. That saves a tenth of a local step of the paper's network for CIFAR-10.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedpbc.compiled import compiled_library
from fedpbc.tasks.kernel_tensors import empty_images

__all__ = ["can_relu_pool", "has_relu_pool", "relu_pool", "relu_pool_backward"]

LANES = 8
"""The kernels take so many channels at once."""


def has_relu_pool() -> bool:
    """Return whether the kernels are available."""
    return _kernels() is not None


@lru_cache(maxsize=1)
def _kernels() -> tuple[Any, Any] | None:
    """Return the compiled functions, or None if they were not built."""
    library = compiled_library()
    # A library that an earlier version of the package built lacks them.
    if library is None or not hasattr(library, "fedpbc_relu_pool"):
        return None
    forward, backward = library.fedpbc_relu_pool, library.fedpbc_relu_pool_backward
    pointer, number = ctypes.c_void_p, ctypes.c_ssize_t
    forward.argtypes = [pointer, *[number] * 4, pointer, pointer]
    backward.argtypes = [pointer, pointer, *[number] * 4, pointer]
    forward.restype = backward.restype = None
    return forward, backward


def can_relu_pool(value: Tensor) -> bool:
    """Return whether the kernels take this tensor."""
    count, channels, height, width = value.shape
    return (
        value.dtype == torch.float32
        and value.device.type == "cpu"
        and value.is_contiguous(memory_format=torch.channels_last)
        and channels % LANES == height % 2 == width % 2 == 0
        and count > 0
    )


def relu_pool(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pooled ReLU of images, and which value of each window it is (4: none)."""
    kernels = _kernels()
    assert kernels is not None
    assert can_relu_pool(value)
    count, channels, height, width = value.shape
    shape = count, channels, height // 2, width // 2
    pooled, winner = empty_images(shape), empty_images(shape, torch.int8)
    sizes = count, height, width, channels
    kernels[0](value.data_ptr(), *sizes, pooled.data_ptr(), winner.data_ptr())
    return pooled, winner


def relu_pool_backward(grad: Tensor, winner: Tensor) -> Tensor:
    """Return the gradient by the images from that by their pooled ReLU."""
    kernels = _kernels()
    assert kernels is not None
    assert grad.shape == winner.shape
    assert grad.dtype == torch.float32
    count, channels, height, width = winner.shape
    grad = grad.contiguous(memory_format=torch.channels_last)
    below = empty_images((count, channels, 2 * height, 2 * width))
    sizes = count, 2 * height, 2 * width, channels
    kernels[1](grad.data_ptr(), winner.data_ptr(), *sizes, below.data_ptr())
    return below
