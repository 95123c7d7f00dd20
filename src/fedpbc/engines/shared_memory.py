"""Shared memory: the data once for all processes, and models in slots.

All of it is anonymous: it has no name in the file system that would have to be removed, and is
freed with the last process that uses it, however that ends.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import pickle
import sys
import tempfile
import weakref
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from fedpbc.errors import InputError, one_line

__all__ = [
    "Packer",
    "SharedTask",
    "Slots",
    "Unpacker",
    "pack",
    "pickled_by_value",
    "rounded_up",
    "unpack",
    "unpickled",
]

LARGE = 2**16
"""Arrays of at least this many bytes are shared instead of copied to each process."""
CACHE_LINE = 64


def rounded_up(size: int) -> int:
    """Return the next offset at which an array may begin."""
    return -(-size // CACHE_LINE) * CACHE_LINE


def anonymous_file(size: int) -> int:
    """Create a file without a name, in memory where possible; only written pages take space."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("fedpbc")
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.ftruncate(file, size)
    return file


@dataclass(frozen=True)
class SharedTask:
    """A value packed for other processes: a file, the length of the pickle in it, and its size."""

    file: int
    pickled: int
    size: int


def pack(value: Any) -> SharedTask:
    """Pickle a value, with its tensors and large arrays beside the pickle."""
    packer = Packer()
    pickled = packer.pickled(value, "pool")
    # The pickle comes first; the arrays' offsets are counted from its end.
    base = rounded_up(len(pickled))
    size = max(base + packer.size, 1)
    file = anonymous_file(size)
    with mmap.mmap(file, size) as memory:
        memory[: len(pickled)] = pickled
        for offset, array in packer.arrays:
            flat = np.frombuffer(memory, np.uint8, array.nbytes, base + offset)
            flat[:] = array.reshape(-1).view(np.uint8)
            del flat  # The mapping cannot be closed while a view of it exists.
    return SharedTask(file, len(pickled), size)


def unpack(shared: SharedTask) -> Any:
    """Return the value; its tensors are views of the shared memory, copied on write."""
    memory = mmap.mmap(shared.file, shared.size, access=mmap.ACCESS_COPY)
    return Unpacker(memory, shared.pickled).load()


def pickled_by_value(value: Any) -> bytes:
    """Pickle a small value, with classes of a notebook, script or plugin."""
    register_plugins()
    pickled: bytes = cloudpickle.dumps(value)
    return pickled


@lru_cache(maxsize=1)
def unpickled(value: bytes | None) -> Any:
    """What :func:`pickled_by_value` packed; all segments of a run bring the same client's rule."""
    return None if value is None else pickle.loads(value)


def register_plugins() -> None:
    """Pickle the classes of plugins by value."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fedpbc_plugin_"):
            # A plugin is imported from a file: other processes cannot import it by name.
            cloudpickle.register_pickle_by_value(module)


class Packer(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
    """A pickler that stores tensors and large arrays separately, by offset."""

    def __init__(self) -> None:
        self._stream = io.BytesIO()
        super().__init__(self._stream, protocol=5)
        self.arrays: list[tuple[int, np.ndarray[Any, Any]]] = []
        self.size = 0
        self._offsets: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        # While they are referenced here, no other object can get the same id or address.
        self._alive: list[Any] = []

    def pickled(self, value: Any, engine: str) -> memoryview:
        """Return the pickle of a value; raise an InputError if it cannot be sent."""
        register_plugins()
        try:
            self.dump(value)
        except (pickle.PicklingError, TypeError, AttributeError, RuntimeError) as error:
            reason = one_line(error)
            expected = f"'serial', since the task cannot be sent to other processes ({reason})"
            raise InputError("engine", engine, expected) from error
        return self._stream.getbuffer()

    def persistent_id(self, value: Any) -> Any:
        """Return the location of an array; None for all else, which is pickled as usual."""
        if type(value) is Tensor and value.device.type == "cpu" and not value.requires_grad:
            if value.layout is not torch.strided or value.is_quantized:
                return None
            # The whole storage: tensors that share memory here also share it there.
            storage = value.untyped_storage()
            content = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            offset = self._put(storage.data_ptr(), content, (value, storage))
            dtype = str(value.dtype).removeprefix("torch.")
            geometry = tuple(value.shape), value.stride(), value.storage_offset()
            return "tensor", self._number(value), offset, len(content), dtype, geometry
        if type(value) is np.ndarray and value.nbytes >= LARGE and value.flags.c_contiguous:
            offset = self._put(value.ctypes.data, value, value)
            return "array", self._number(value), offset, value.nbytes, value.dtype.str, value.shape
        return None

    def _number(self, value: Any) -> int:
        return self._numbers.setdefault(id(value), len(self._numbers))

    def _put(self, address: int, array: np.ndarray[Any, Any], owner: Any) -> int:
        self._alive.append(owner)
        if address not in self._offsets:
            self._offsets[address] = self.size
            self.arrays.append((self.size, array))
            self.size += rounded_up(array.nbytes)
        return self._offsets[address]


class Unpacker(pickle.Unpickler):
    """An unpickler that finds tensors and large arrays in shared memory."""

    def __init__(self, memory: mmap.mmap, pickled: int) -> None:
        super().__init__(io.BytesIO(memory[:pickled]))
        self._memory, self._base = memory, rounded_up(pickled)
        self._loaded: dict[int, Any] = {}

    def persistent_load(self, location: Any) -> Any:
        """Return the array at a location: one object wherever one object was pickled."""
        number = location[1]
        if number not in self._loaded:
            self._loaded[number] = self._load_array(*location)
        return self._loaded[number]

    def _load_array(
        self, kind: str, number: int, offset: int, size: int, dtype: str, geometry: Any
    ) -> Any:
        offset += self._base
        if kind == "array":
            flat = np.frombuffer(self._memory, np.uint8, size, offset)
            return flat.view(dtype).reshape(geometry)
        shape, strides, storage_offset = geometry
        torch_dtype = getattr(torch, dtype)
        if not size:
            return torch.empty(shape, dtype=torch_dtype)
        count = size // torch_dtype.itemsize
        values = torch.frombuffer(self._memory, dtype=torch_dtype, count=count, offset=offset)
        return values.as_strided(shape, strides, storage_offset)


class Slots:
    """Slots for models in shared memory; a slot takes memory from its first use on.

    A lent tensor can be used like any other: its slot is released when the tensor and all its views
    are gone.
    """

    def __init__(
        self, dimension: int, dtype: torch.dtype, count: int, file: int | None = None
    ) -> None:
        self.dimension, self.dtype, self.count = dimension, dtype, count
        self._bytes = dimension * dtype.itemsize
        self._stride = -(-self._bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.file = anonymous_file(self._stride * count) if file is None else file
        self._memory = mmap.mmap(self.file, self._stride * count)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        # Appending and popping need no lock: any thread that drops a tensor may release its slot.
        self._free = deque(range(count))

    def __len__(self) -> int:
        """Return the number of free slots."""
        return len(self._free)

    def take(self) -> int:
        """Return a free slot."""
        # The one released last: its pages exist, and are likely to be in the cache.
        return self._free.pop()

    def release(self, slot: int) -> None:
        """Mark a slot as free."""
        self._free.append(slot)

    def view(self, slot: int) -> Tensor:
        """Return the model in a slot, valid while the slot is taken."""
        return torch.frombuffer(
            self._memory, dtype=self.dtype, count=self.dimension, offset=slot * self._stride
        )

    def lend(self, slot: int) -> Tensor:
        """Return the model in a slot as a tensor that releases the slot when it is gone."""
        buffer = (ctypes.c_char * self._bytes).from_buffer(self._memory, slot * self._stride)
        # The storage of the tensor and of all its views references this object.
        weakref.finalize(buffer, self._free.append, slot).atexit = False
        return torch.frombuffer(buffer, dtype=self.dtype, count=self.dimension)

    def find(self, model: Tensor) -> int | None:
        """Return the slot that a tensor is in, or None."""
        slot, offset = divmod(model.data_ptr() - self._address, self._stride)
        inside = 0 <= slot < self.count and offset == 0
        return slot if inside and model.is_contiguous() else None
