"""What lies in Ray's object store, the task and models, and what a Ray worker does with them.

Nothing here imports Ray: it brings the arrays to where the work is, and takes the result back.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpbc.engines.malloc import keep_freed_memory
from fedpbc.engines.segment import Segment
from fedpbc.engines.serial import train
from fedpbc.engines.shared_memory import Packer, Unpacker, rounded_up
from fedpbc.errors import FedpbcError, one_line
from fedpbc.tasks.task import Task

__all__ = [
    "Failure",
    "Numbers",
    "StoredTask",
    "StoredVector",
    "fetch_task",
    "fetch_vector",
    "numbers_of",
    "run_segment",
    "set_up_process",
    "store_task",
    "store_vector",
]

SHARED = 2**20
"""Tensors of at least so many bytes are not copied out of a node's object store."""
TASKS_KEPT = 2
"""How many tasks a worker process remembers: engines may take turns."""


# Plain tuples: a worker may only learn where our own classes are when it has got these.
StoredVector = tuple[NDArray[np.uint8], torch.dtype]
"""A model, or a correction. As bytes: NumPy does not know all of PyTorch's kinds of number."""
StoredTask = tuple[NDArray[np.uint8], int, frozenset[int], torch.dtype]
"""A task in one large array, which Ray hands to every process of a node without copying it: the
pickle, and behind it tensors and large arrays. Further: how long the pickle is; where in the array
modules' parameters and buffers are; and what PyTorch makes of numbers whose kind is not said."""
Numbers = tuple[int, int, int, int, float]
"""A segment without its vectors."""


@dataclass(frozen=True)
class Failure:
    """What a segment gives that could not be run.

    Attributes:
        reason: one line.
        error: an error that is raised as it is, since another try would end the same.
    """

    reason: str
    error: FedpbcError | None = None


def store_vector(vector: Tensor) -> StoredVector:
    """A vector for the object store.

    Example:
        >>> store_vector(torch.ones(3, dtype=torch.bfloat16))[0].nbytes
        6
    """
    plain = vector.detach().cpu().contiguous()
    return plain.view(torch.uint8).numpy(), plain.dtype


def fetch_vector(stored: StoredVector) -> Tensor:
    """A vector from the object store: a copy, which everybody may do with as they like.

    Example:
        >>> fetch_vector(store_vector(torch.tensor([1.0, 2.0])))
        tensor([1., 2.])
    """
    content, dtype = stored
    return copied(content).view(dtype)


def copied(content: NDArray[np.uint8]) -> Tensor:
    """Bytes in PyTorch's own memory, which begins where its kernels like it best."""
    room = torch.empty(content.nbytes, dtype=torch.uint8)
    room.numpy()[:] = content
    return room


def store_task(task: Task) -> StoredTask:
    """A task for the object store; classes of a notebook, a script or a plugin go with it.

    Example:
        >>> from fedpbc.tasks import Quadratic
        >>> fetch_task(store_task(Quadratic([[8.0], [4.0]])))[0].clients
        2
    """
    packer = StorePacker()
    pickled = packer.pickled(task, "ray")
    base = rounded_up(len(pickled))
    room = np.empty(base + packer.size, np.uint8)
    room[: len(pickled)] = pickled
    for place, array in packer.arrays:
        room[base + place :][: array.nbytes] = array.reshape(-1).view(np.uint8)
    return room, len(pickled), packer.written(), torch.get_default_dtype()


class StorePacker(Packer):
    """Also notes what belongs to modules: training writes there."""

    def __init__(self) -> None:
        super().__init__()
        self._addresses: set[int] = set()

    def persistent_id(self, value: Any) -> Any:
        """Where an array will be; None for everything else."""
        if isinstance(value, nn.Module):
            self._note(value.parameters(recurse=False))
            self._note(value.buffers(recurse=False))
        elif isinstance(value, nn.Parameter):
            self._note([value])
        return super().persistent_id(value)

    def _note(self, tensors: Iterable[Tensor]) -> None:
        self._addresses.update(tensor.untyped_storage().data_ptr() for tensor in tensors)

    def written(self) -> frozenset[int]:
        """The places that are written to."""
        return frozenset(p for address, p in self._places.items() if address in self._addresses)


def fetch_task(stored: StoredTask) -> tuple[Task, list[Tensor]]:
    """A task, and those of its tensors that all processes of a node share: nobody may write there.

    Example:
        >>> stored = store_task({"data": torch.ones(10**6), "small": torch.ones(9)})
        >>> [len(tensor) for tensor in fetch_task(stored)[1]]
        [1000000]
    """
    unpacker = StoreUnpacker(stored)
    return unpacker.load(), unpacker.shared


class StoreUnpacker(Unpacker):
    """Finds large tensors in the object store, and makes copies of those that are written to."""

    def __init__(self, stored: StoredTask) -> None:
        room, pickled, self._written, _ = stored
        # Any memory will do, be it a mapped file's or not.
        super().__init__(cast(Any, room.data), pickled)
        self.shared: list[Tensor] = []
        self._arrays = room[rounded_up(pickled) :]
        self._memory: dict[int, Tensor] = {}

    def _find(
        self, kind: str, number: int, place: int, size: int, dtype: str, geometry: Any
    ) -> Any:
        if kind != "tensor" or not size:
            # NumPy knows by itself that it must not write to the store.
            return super()._find(kind, number, place, size, dtype, geometry)
        own = size < SHARED or place in self._written
        if place not in self._memory:
            content = self._arrays[place : place + size]
            self._memory[place] = copied(content) if own else without_copying(content)
        numbers: torch.dtype = getattr(torch, dtype)
        whole = self._memory[place][: size // numbers.itemsize * numbers.itemsize]
        found = whole.view(numbers).as_strided(*geometry)
        if not own:
            self.shared.append(found)
        return found


def without_copying(content: NDArray[np.uint8]) -> Tensor:
    """Bytes where they are."""
    with warnings.catch_warnings():
        # PyTorch has no tensors that cannot be written to, and warns: run_segment() looks after it.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(content)


# From here on: what runs in a Ray worker.

_tasks: dict[str, tuple[Task, list[Tensor]]] = {}


def numbers_of(segment: Segment) -> Numbers:
    """What :func:`run_segment` has to know beside the vectors.

    Example:
        >>> numbers_of(Segment(3, torch.zeros(2), first_round=4, rounds=3, first_batch=20))
        (3, 4, 3, 20, 1.0)
    """
    client, first, rounds = segment.client, segment.first_round, segment.rounds
    return client, first, rounds, segment.first_batch, segment.scale


def run_segment(
    key: str,
    stored: StoredTask,
    start: StoredVector,
    correction: StoredVector | None,
    numbers: Numbers,
) -> StoredVector | Failure:
    """Train; tasks are told apart by their ``key``.

    Example:
        >>> from fedpbc.tasks import Quadratic
        >>> task = Quadratic([[8.0]])
        >>> start, numbers = store_vector(task.init()), (0, 0, 1, 0, 1.0)
        >>> fetch_vector(run_segment("this one", store_task(task), start, None, numbers))
        tensor([1.8098], dtype=torch.float64)
    """
    client, first_round, rounds, first_batch, scale = numbers
    try:
        task, shared = known_task(key, stored)
        torch.set_default_dtype(stored[-1])
        versions = [tensor._version for tensor in shared]
        own = None if correction is None else fetch_vector(correction)
        model = fetch_vector(start)
        segment = Segment(client, model, first_round, rounds, first_batch, scale, own)
        end = train(task, segment).end
        if [tensor._version for tensor in shared] != versions:
            # Others see it too: what they work out from now on would be wrong, without a sign.
            raise RuntimeError("the task changes a large tensor in place that processes share")
        return store_vector(end)
    except FedpbcError as error:
        return Failure(one_line(error), error)
    except Exception as error:
        # Whatever a user's module raises: the run stops with it, not this process.
        return Failure(one_line(error))


def known_task(key: str, stored: StoredTask) -> tuple[Task, list[Tensor]]:
    """The task, unpacked when this process meets it first."""
    if key not in _tasks:
        while len(_tasks) >= TASKS_KEPT:
            del _tasks[next(iter(_tasks))]
        _tasks[key] = fetch_task(stored)
    return _tasks[key]


@cache
def set_up_process() -> None:
    """Once in each process that does nothing but train."""
    torch.set_num_threads(1)
    keep_freed_memory()
