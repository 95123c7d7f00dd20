"""Local SGD steps of dense networks in the compiled kernel.

Without it PyTorch does the same work, more slowly.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from fedpbc.parallel import in_threads, shares
from fedpbc.tasks.compiled import compiled_library

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
        *(pointer, pointer, pointer),
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
) -> None:
    """Make SGD steps for each of several models, in place, on all cores.

    ``models`` [n, d] are the weights and biases of each layer in turn, ``sizes`` the widths of the
    network from its inputs to its outputs, and ``index`` [n, steps, batch] the samples of each
    step. Numbers are float32, labels and indices int64.
    """
    kernel = load_kernel()
    assert kernel is not None
    _, steps, batch = index.shape
    for tensor in (models, samples, labels, index, rates):
        # The kernel sees addresses only.
        assert tensor.is_contiguous()
    assert models.dtype == samples.dtype == rates.dtype == torch.float32
    assert labels.dtype == index.dtype == torch.int64
    widths = torch.tensor(sizes, dtype=torch.int64, device="cpu")
    parts = shares(len(models))
    room = batch * (sum(sizes[1:]) + 2 * max(sizes[1:])) + 8 * max(sizes)
    buffers, pointers = models.new_empty(len(parts), room), index.new_empty(len(parts), batch)
    data = samples.data_ptr(), labels.data_ptr()
    # Everything that needs Python is done before: no thread waits for another one's.
    in_threads(
        [
            partial(
                kernel,
                *(models[rows].data_ptr(), rows.stop - rows.start, models.shape[1]),
                *(widths.data_ptr(), len(sizes) - 1, *data),
                *(index[rows].data_ptr(), steps, batch, rates[rows].data_ptr()),
                *(buffers[k].data_ptr(), pointers[k].data_ptr()),
            )
            for k, rows in enumerate(parts)
        ]
    )
