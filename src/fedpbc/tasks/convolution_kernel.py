"""A 3×3 convolution, ReLU and 2×2 max-pooling in one compiled pass, with PyTorch's bits.

The convolution's output, the largest tensor of a step, is never stored. Which bits PyTorch's
convolution has depends on the processor, the version and the sizes, so the kernel is compared with
it once for every size, and used only where they agree.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedpbc.compiled import wide_library
from fedpbc.tasks.kernel_tensors import empty, empty_images, random_normal
from fedpbc.tasks.pooling_kernel import has_relu_pool, relu_pool_backward
from fedpbc.tasks.size_probe import SizeProbe

__all__ = [
    "can_convolve",
    "can_convolve_backward",
    "convolve_relu_pool",
    "convolve_relu_pool_backward",
    "has_convolution",
]

BLOCK = 32
"""The kernels take so many output channels at once; on the way back, input channels."""
STAGES = 4
"""Of the bias's sum."""

aten = torch.ops.aten


def has_convolution() -> bool:
    """Return whether the kernels are available, and this processor has wide registers."""
    return _kernels() is not None and has_relu_pool()


@lru_cache(maxsize=1)
def _kernels() -> tuple[Any, Any] | None:
    """Return the compiled functions, or None if they cannot be used."""
    library = wide_library()
    if library is None:
        return None
    forward, backward = library.fedpbc_convolve, library.fedpbc_convolve_backward
    pointer, number = ctypes.c_void_p, ctypes.c_ssize_t
    forward.argtypes = [pointer, *[number] * 5, *[pointer] * 5]
    backward.argtypes = [pointer, *[number] * 5, *[pointer] * 7]
    forward.restype = backward.restype = None
    return forward, backward


def can_convolve(value: Tensor, weight: Tensor) -> bool:
    """Return whether the forward kernel takes these tensors, and has PyTorch's bits for them."""
    return _fits(value, weight) and _has_pytorch_bits(*value.shape, len(weight))


def can_convolve_backward(value: Tensor, weight: Tensor, need_input: bool) -> bool:
    """Return the same for the backward kernel."""
    return (
        _fits(value, weight)
        and (not need_input or value.shape[1] % BLOCK == 0)
        and _has_pytorch_bits_backward(*value.shape, len(weight), need_input)
    )


def _fits(value: Tensor, weight: Tensor) -> bool:
    count, inputs, height, width = value.shape
    return (
        has_convolution()
        and value.dtype == weight.dtype == torch.float32
        and value.device.type == weight.device.type == "cpu"
        and value.is_contiguous(memory_format=torch.channels_last)
        and weight.is_contiguous(memory_format=torch.channels_last)
        and tuple(weight.shape) == (len(weight), inputs, 3, 3)
        and len(weight) % BLOCK == height % 2 == width % 2 == 0
        and count > 0
        # With one channel PyTorch cannot tell the layouts apart, and its order depends on strides.
        and inputs > 1
        # With several threads PyTorch shares an image out.
        and torch.get_num_threads() == 1
        and not torch.is_autocast_enabled("cpu")
    )


def convolve_relu_pool(value: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pooled ReLU of the convolution, and which value of each window it is (4: none)."""
    kernels = _kernels()
    assert kernels is not None
    assert _fits(value, weight)
    assert bias.is_contiguous()
    assert bias.shape == weight.shape[:1]
    count, inputs, height, width = value.shape
    shape = count, len(weight), height // 2, width // 2
    pooled, winner = empty_images(shape), empty_images(shape, torch.int8)
    room = empty((height + 2) * (width + 2) * inputs + weight.numel())
    kernels[0](
        *(value.data_ptr(), count, height, width, inputs, len(weight)),
        *(weight.data_ptr(), bias.data_ptr()),
        *(pooled.data_ptr(), winner.data_ptr(), room.data_ptr()),
    )
    return pooled, winner


def convolve_relu_pool_backward(
    grad: Tensor, winner: Tensor, value: Tensor, weight: Tensor, need_input: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return the gradients by the input, if needed, the weight and the bias."""
    kernels = _kernels()
    assert kernels is not None
    assert _fits(value, weight)
    assert grad.shape == winner.shape
    assert grad.dtype == torch.float32
    count, inputs, height, width = value.shape
    grad = grad.contiguous(memory_format=torch.channels_last)
    weight_grad = empty_images(tuple(weight.shape))
    bias_grad = empty(len(weight))
    below = empty_images(tuple(value.shape)) if need_input else None
    pixels = (height + 2) * (width + 2)
    room = empty(pixels * (inputs + len(weight)) + 2 * weight.numel() + STAGES * len(weight))
    kernels[1](
        *(value.data_ptr(), count, height, width, inputs, len(weight)),
        *(weight.data_ptr(), grad.data_ptr(), winner.data_ptr()),
        *(weight_grad.data_ptr(), bias_grad.data_ptr()),
        *(None if below is None else below.data_ptr(), room.data_ptr()),
    )
    return below, weight_grad, bias_grad


def _is_alike(count: int, inputs: int, height: int, width: int, outputs: int) -> bool:
    """Whether the forward kernel returns PyTorch's bits for random images of this size."""
    value, weight, bias = _random_layer(count, inputs, height, width, outputs)
    expected = functional.max_pool2d(torch.conv2d(value, weight, bias, padding=1), 2).relu_()
    return convolve_relu_pool(value, weight, bias)[0].equal(expected)


def _is_alike_backward(
    count: int, inputs: int, height: int, width: int, outputs: int, need_input: bool
) -> bool:
    """The same for the backward kernel."""
    value, weight, bias = _random_layer(count, inputs, height, width, outputs)
    pooled, winner = convolve_relu_pool(value, weight, bias)
    grad = relu_pool_backward(pooled, winner)
    geometry, output_mask = ([1, 1], [1, 1], [1, 1]), [need_input, True, False]
    by_input, by_weight, _ = aten.convolution_backward(
        grad, value, weight, None, *geometry, False, [0, 0], 1, output_mask
    )
    actual = convolve_relu_pool_backward(pooled, winner, value, weight, need_input)
    expected = by_input, by_weight, grad.sum((0, 2, 3))
    return all(a is None or a.equal(b) for a, b in zip(actual, expected, strict=True))


_has_pytorch_bits = SizeProbe(_is_alike, unknown=False)
_has_pytorch_bits_backward = SizeProbe(_is_alike_backward, unknown=False)


def _random_layer(
    count: int, inputs: int, height: int, width: int, outputs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Images, and a layer's weight and bias, without a draw from anybody's generator."""
    generator = torch.Generator("cpu").manual_seed(0)
    random = partial(random_normal, generator=generator)

    value, weight = random(count, inputs, height, width), random(outputs, inputs, 3, 3)
    images = torch.channels_last
    return (
        value.contiguous(memory_format=images),
        weight.contiguous(memory_format=images),
        random(outputs),
    )
