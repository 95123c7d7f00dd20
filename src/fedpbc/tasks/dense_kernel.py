"""Local SGD steps of dense networks in the compiled kernel.

Without it PyTorch does the same work, more slowly.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedpbc.compiled import compiled_library
from fedpbc.parallel import usable_cores

__all__ = ["dense_steps", "has_dense_steps"]


def has_dense_steps() -> bool:
    """Return whether the kernel is available."""
    return load_kernel() is not None


@lru_cache
def load_kernel(name: str = "fedpbc_dense_steps") -> Any | None:
    """Return the compiled function, or None if it was not built."""
    library = compiled_library()
    if library is None:
        return None
    kernel = getattr(library, name)
    pointer, number = ctypes.c_void_p, ctypes.c_ssize_t
    kernel.argtypes = [
        *(pointer, number, number, pointer, number),
        *(pointer, pointer, pointer, number, number),
        *(pointer, pointer, pointer, pointer),
        *(number, number),
    ]
    kernel.restype = None
    return kernel


def dense_steps(
    models: Tensor,
    sizes: Sequence[int],
    samples: Tensor,
    labels: Tensor,
    index: Tensor,
    rates: Tensor,
) -> Tensor:
    """Make SGD steps for each of several models, in place, on all cores; return which are finite.

    ``models`` [n, d] are the weights and biases of each layer in turn, ``sizes`` the widths of the
    network from its inputs to its outputs, and ``index`` [n, steps, batch] the samples of each
    step. Numbers are float32, labels and indices int64.
    """
    kernel = load_kernel()
    assert kernel is not None
    clients, steps, batch = index.shape
    for tensor in (models, samples, labels, index, rates):
        # The kernel sees addresses only.
        assert tensor.is_contiguous()
    assert models.dtype == samples.dtype == rates.dtype == torch.float32
    assert labels.dtype == index.dtype == torch.int64
    widths = torch.tensor(sizes, dtype=torch.int64, device="cpu")
    threads = max(1, min(usable_cores(), clients))
    room = batch * (sum(sizes[1:]) + 2 * max(sizes[1:])) + 8 * max(sizes)
    buffers, pointers = models.new_empty(threads, room), index.new_empty(threads, batch)
    finite = index.new_empty(clients, dtype=torch.bool)
    kernel(
        *(models.data_ptr(), clients, models.shape[1], widths.data_ptr(), len(sizes) - 1),
        *(samples.data_ptr(), labels.data_ptr(), index.data_ptr(), steps, batch),
        *(rates.data_ptr(), finite.data_ptr(), buffers.data_ptr(), pointers.data_ptr()),
        *(threads, room),
    )
    return finite
