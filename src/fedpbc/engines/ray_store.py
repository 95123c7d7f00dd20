"""The contents of Ray's object store, the task and models, and what a Ray worker does with them.

Nothing here imports Ray, which only transports the arrays.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpbc.engines.malloc import keep_freed_memory
from fedpbc.engines.segment import Segment, SegmentNumbers
from fedpbc.engines.serial import train
from fedpbc.engines.shared_memory import Packer, Unpacker, rounded_up, unpickled
from fedpbc.errors import FedpbcError, one_line
from fedpbc.tasks.task import Task

__all__ = [
    "Failure",
    "StoredTask",
    "StoredVector",
    "fetch_task",
    "fetch_vector",
    "run_segment",
    "set_up_process",
    "store_task",
    "store_vector",
]

SHARED_BYTES = 2**20
"""Tensors of at least this many bytes are not copied out of a node's object store."""
CACHED_TASKS = 2
"""How many tasks a worker process caches: engines may alternate."""


# Plain tuples: a worker can import our classes only after it has received these.
StoredVector = tuple[NDArray[np.uint8], torch.dtype]
"""A model or another vector, as bytes: NumPy lacks some of PyTorch's dtypes."""
StoredTask = tuple[NDArray[np.uint8], int, frozenset[int], torch.dtype]
"""A task in one large array, which all processes of a node share without copying: the pickle,
followed by tensors and large arrays. Then the length of the pickle, the offsets of modules'
parameters and buffers, and PyTorch's default dtype."""


@dataclass(frozen=True)
class Failure:
    """The result of a segment that failed.

    Attributes:
        reason: one line.
        error: an error to raise without a retry, which would fail in the same way.
        lost: whether a node was lost, which is not the segment's fault.
    """

    reason: str
    error: FedpbcError | None = None
    lost: bool = False


def store_vector(vector: Tensor) -> StoredVector:
    """Convert a vector for the object store."""
    plain = vector.detach().cpu().contiguous()
    return plain.view(torch.uint8).numpy(), plain.dtype


def fetch_vector(stored: StoredVector) -> Tensor:
    """Return a copy of a vector in the object store."""
    content, dtype = stored
    return copy_bytes(content).view(dtype)


def copy_bytes(content: NDArray[np.uint8]) -> Tensor:
    """Copy bytes into memory that PyTorch allocates, and so aligns for its kernels."""
    copy = torch.empty(content.nbytes, dtype=torch.uint8)
    copy.numpy()[:] = content
    return copy


def store_task(task: Task) -> StoredTask:
    """Convert a task for the object store, with classes of a notebook, script or plugin."""
    packer = StorePacker()
    pickled = packer.pickled(task, "ray")
    base = rounded_up(len(pickled))
    memory = np.empty(base + packer.size, np.uint8)
    memory[: len(pickled)] = pickled
    for offset, array in packer.arrays:
        memory[base + offset :][: array.nbytes] = array.reshape(-1).view(np.uint8)
    return memory, len(pickled), packer.module_offsets(), torch.get_default_dtype()


class StorePacker(Packer):
    """Also records the tensors of modules, which training modifies."""

    def __init__(self) -> None:
        super().__init__()
        self._addresses: set[int] = set()

    def persistent_id(self, value: Any) -> Any:
        """Return the location of an array; None for all else."""
        tensors: list[Tensor] = [value] if isinstance(value, nn.Parameter) else []
        if isinstance(value, nn.Module):
            tensors = [*value.parameters(recurse=False), *value.buffers(recurse=False)]
        # A frozen base is never modified: one copy serves all processes of a node.
        frozen = (isinstance(each, nn.Parameter) and not each.requires_grad for each in tensors)
        tensors = [each for each, fixed in zip(tensors, frozen, strict=True) if not fixed]
        self._addresses.update(tensor.untyped_storage().data_ptr() for tensor in tensors)
        return super().persistent_id(value)

    def module_offsets(self) -> frozenset[int]:
        """Return the offsets of the tensors of modules."""
        return frozenset(
            offset for address, offset in self._offsets.items() if address in self._addresses
        )


def fetch_task(stored: StoredTask) -> tuple[Task, list[Tensor]]:
    """Return a task, and those of its tensors that a node's processes share and must not modify."""
    unpacker = StoreUnpacker(stored)
    return unpacker.load(), unpacker.shared


class StoreUnpacker(Unpacker):
    """Leaves large tensors in the object store, and copies those that training modifies."""

    def __init__(self, stored: StoredTask) -> None:
        memory, pickled, self._module_offsets, _ = stored
        # Any buffer will do instead of a mapped file.
        super().__init__(cast(Any, memory.data), pickled)
        self.shared: list[Tensor] = []
        self._arrays = memory[rounded_up(pickled) :]
        self._storages: dict[int, Tensor] = {}

    def _load_array(
        self, kind: str, number: int, offset: int, size: int, dtype: str, geometry: Any
    ) -> Any:
        if kind != "tensor" or not size:
            # NumPy arrays in the store are read-only by themselves.
            return super()._load_array(kind, number, offset, size, dtype, geometry)
        copied = size < SHARED_BYTES or offset in self._module_offsets
        if offset not in self._storages:
            content = self._arrays[offset : offset + size]
            self._storages[offset] = copy_bytes(content) if copied else view_bytes(content)
        torch_dtype: torch.dtype = getattr(torch, dtype)
        elements = self._storages[offset][: size // torch_dtype.itemsize * torch_dtype.itemsize]
        tensor = elements.view(torch_dtype).as_strided(*geometry)
        if not copied:
            self.shared.append(tensor)
        return tensor


def view_bytes(content: NDArray[np.uint8]) -> Tensor:
    """Return bytes as a tensor without copying."""
    with warnings.catch_warnings():
        # PyTorch has no read-only tensors, and warns; run_segment() detects modifications.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(content)


# All below runs in a Ray worker.

_task_cache: dict[str, tuple[Task, list[Tensor]]] = {}


def run_segment(
    key: str,
    stored: StoredTask,
    numbers: SegmentNumbers,
    rule: bytes | None,
    outputs: Sequence[str],
    inputs: Sequence[str],
    *vectors: StoredVector,
) -> list[StoredVector] | list[Failure]:
    """Train a segment of the task with this ``key``; returns the vectors in the order of outputs.

    ``inputs`` are the keys of the vectors that it reads, each an argument of its own: Ray fetches
    those from its store.
    """
    try:
        task, shared = cached_task(key, stored)
        torch.set_default_dtype(stored[-1])
        versions = [tensor._version for tensor in shared]
        read = {key: fetch_vector(v) for key, v in zip(inputs, vectors, strict=True)}
        trained = train(task, Segment.from_parts(numbers, unpickled(rule), read)).vectors
        if [tensor._version for tensor in shared] != versions:
            # Other processes see the change: their results would be wrong without an error.
            raise RuntimeError("the task changes a large tensor in place that processes share")
        return [store_vector(trained[key]) for key in outputs]
    except FedpbcError as error:
        return [Failure(one_line(error), error)] * len(outputs)
    except Exception as error:
        # A user's module may raise anything: the run stops, but not this process.
        return [Failure(one_line(error))] * len(outputs)


def cached_task(key: str, stored: StoredTask) -> tuple[Task, list[Tensor]]:
    """Return the task, unpacked on its first use in this process."""
    if key not in _task_cache:
        while len(_task_cache) >= CACHED_TASKS:
            del _task_cache[next(iter(_task_cache))]
        _task_cache[key] = fetch_task(stored)
    return _task_cache[key]


@cache
def set_up_process() -> None:
    """Configure a process that only trains; once per process."""
    torch.set_num_threads(1)
    keep_freed_memory()
