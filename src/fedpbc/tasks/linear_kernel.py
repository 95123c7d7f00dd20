"""Large dense layers of a local step in compiled functions, with the bits of PyTorch's products.

A BLAS library cuts long sums into blocks, whose length depends on the processor, the library and
the sizes. For every size the length is searched for with which the compiled functions have the same
bits; where there is none, PyTorch's operators are used. The compiled functions are faster where the
library does not use the processor's widest registers, and since the way back reads the weight once
for both of its products.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedpbc.compiled import wide_library
from fedpbc.tasks.kernel_tensors import empty, random_normal
from fedpbc.tasks.size_probe import SizeProbe

__all__ = ["linear", "linear_block", "linear_step", "linear_step_block"]

SAMPLES = 16
"""A batch has so many at most."""
WIDTHS = 32
"""Inputs and outputs are a multiple of this."""
BLOCKS = range(WIDTHS, 513, WIDTHS)
"""Lengths that are tried."""


@lru_cache(maxsize=1)
def _kernels() -> tuple[Any, Any] | None:
    """Return the compiled functions, or None if they cannot be used."""
    library = wide_library()
    if library is None:
        return None
    forward, step = library.fedpbc_linear, library.fedpbc_linear_step
    pointer, number = ctypes.c_void_p, ctypes.c_ssize_t
    forward.argtypes = [pointer, *[number] * 3, pointer, pointer, number, pointer, pointer]
    step.argtypes = [pointer, pointer, *[number] * 3, pointer, number, pointer, pointer]
    forward.restype = step.restype = None
    return forward, step


def linear_block(value: Tensor, weight: Tensor) -> int:
    """Return the length of a block with which :func:`linear` has PyTorch's bits; 0: none."""
    return _forward_block(len(value), *weight.shape) if _fits(value, weight) else 0


def linear_step_block(value: Tensor, weight: Tensor, need_input: bool) -> int:
    """Return the same for :func:`linear_step`."""
    return _step_block(len(value), *weight.shape, need_input) if _fits(value, weight) else 0


def _fits(value: Tensor, weight: Tensor) -> bool:
    outputs, inputs = weight.shape
    return (
        _kernels() is not None
        and value.shape == (len(value), inputs)
        and 0 < len(value) <= SAMPLES
        and inputs % WIDTHS == outputs % WIDTHS == 0
        and value.dtype == weight.dtype == torch.float32
        and value.device.type == weight.device.type == "cpu"
        and value.is_contiguous()
        and weight.is_contiguous()
        # With several threads PyTorch shares a product out.
        and torch.get_num_threads() == 1
        and not torch.is_autocast_enabled("cpu")
    )


def linear(value: Tensor, weight: Tensor, bias: Tensor, block: int) -> Tensor:
    """Return a dense layer's outputs for a batch."""
    kernels = _kernels()
    assert kernels is not None
    assert _fits(value, weight)
    assert bias.is_contiguous()
    assert block > 0
    outputs, inputs = weight.shape
    assert bias.shape == (outputs,)
    out, room = empty(len(value), outputs), empty(inputs, SAMPLES)
    kernels[0](
        *(value.data_ptr(), len(value), inputs, outputs, weight.data_ptr(), bias.data_ptr()),
        *(block, out.data_ptr(), room.data_ptr()),
    )
    return out


def linear_step(
    grad: Tensor, value: Tensor, weight: Tensor, block: int, need_input: bool
) -> Tensor | None:
    """Subtract the weight's gradient from it, and return that by the inputs, if needed."""
    kernels = _kernels()
    assert kernels is not None
    assert _fits(value, weight)
    assert block > 0
    outputs, inputs = weight.shape
    assert grad.shape == (len(value), outputs)
    assert grad.dtype == torch.float32
    grad = grad.contiguous()
    below = empty(len(value), inputs) if need_input else None
    room = empty(len(value), inputs)
    kernels[1](
        *(grad.data_ptr(), value.data_ptr(), len(value), inputs, outputs, weight.data_ptr()),
        *(block, None if below is None else below.data_ptr(), room.data_ptr()),
    )
    return below


def _search_block(batch: int, outputs: int, inputs: int) -> int:
    value, weight, bias = (
        random_normal(batch, inputs),
        random_normal(outputs, inputs),
        random_normal(outputs),
    )
    expected = torch.addmm(bias, value, weight.t())

    def is_alike(block: int) -> bool:
        return linear(value, weight, bias, block).equal(expected)

    return next((block for block in (*BLOCKS, inputs) if is_alike(block)), 0)


def _search_step_block(batch: int, outputs: int, inputs: int, need_input: bool) -> int:
    value, weight, grad = (
        random_normal(batch, inputs),
        random_normal(outputs, inputs),
        random_normal(batch, outputs),
    )
    expected = grad @ weight
    expected_weight = weight.clone().addmm_(grad.t(), value, alpha=-1)

    def is_alike(block: int) -> bool:
        stepped_weight = weight.clone()
        below = linear_step(grad, value, stepped_weight, block, need_input)
        return stepped_weight.equal(expected_weight) and (below is None or below.equal(expected))

    return next((block for block in (*BLOCKS, outputs) if is_alike(block)), 0)


_forward_block = SizeProbe(_search_block, unknown=0)
_step_block = SizeProbe(_search_step_block, unknown=0)
