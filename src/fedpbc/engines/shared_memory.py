"""Memory that several processes see: the data once for all of them, and models in slots.

All of it is anonymous: it has no name in the file system that somebody would have to remove, and
is gone with the last process that uses it, however that ends.
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
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from fedpbc.errors import InputError, one_line

__all__ = ["Order", "SharedTask", "Slots", "pack", "unpack"]

LARGE = 2**16
"""Arrays of at least so many bytes are shared rather than copied to each process."""
CACHE_LINE = 64


def rounded_up(size: int) -> int:
    """To where the next array may begin.

    Example:
        >>> rounded_up(65)
        128
    """
    return -(-size // CACHE_LINE) * CACHE_LINE


def anonymous_file(size: int) -> int:
    """A file without a name, in memory where the system can; only what is written takes room."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("fedpbc")
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.ftruncate(file, size)
    return file


@dataclass(frozen=True)
class SharedTask:
    """An object packed for other processes: a file, and how much of it is the pickle.

    Example:
        >>> parcel = pack({"data": torch.ones(100_000)})
        >>> unpack(parcel)["data"].sum()
        tensor(100000.)
        >>> parcel.close()
    """

    file: int
    pickled: int
    size: int

    def close(self) -> None:
        """Forget the file; whoever has unpacked it keeps what it needs."""
        os.close(self.file)


def pack(value: Any) -> SharedTask:
    """Pickle a value, its tensors and large arrays beside it."""
    packer = Packer()
    pickled = packer.pickled(value, "pool")
    # What was pickled comes first; the arrays' places are counted from its end.
    base = rounded_up(len(pickled))
    size = max(base + packer.size, 1)
    file = anonymous_file(size)
    with mmap.mmap(file, size) as room:
        room[: len(pickled)] = pickled
        for place, array in packer.arrays:
            flat = np.frombuffer(room, np.uint8, array.nbytes, base + place)
            flat[:] = array.reshape(-1).view(np.uint8)
            del flat  # The mapping cannot be closed while somebody looks at it.
    return SharedTask(file, len(pickled), size)


def unpack(parcel: SharedTask) -> Any:
    """The value again; its tensors are those of the parcel, until somebody changes them."""
    room = mmap.mmap(parcel.file, parcel.size, access=mmap.ACCESS_COPY)
    return Unpacker(room, parcel.pickled).load()


class Packer(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
    """Leaves tensors and large arrays out and says where they will be."""

    def __init__(self) -> None:
        self._stream = io.BytesIO()
        super().__init__(self._stream, protocol=5)
        self.arrays: list[tuple[int, np.ndarray[Any, Any]]] = []
        self.size = 0
        self._places: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        # While they are held here, no other objects can get their ids and addresses.
        self._alive: list[Any] = []

    def pickled(self, value: Any, engine: str) -> memoryview:
        """The pickle of a value, which an engine wants to send; what cannot be sent is one line."""
        for name, module in list(sys.modules.items()):
            if name.startswith("fedpbc_plugin_"):
                # A plugin was imported from a file: other processes do not find it by its name.
                cloudpickle.register_pickle_by_value(module)
        try:
            self.dump(value)
        except (pickle.PicklingError, TypeError, AttributeError, RuntimeError) as error:
            reason = one_line(error)
            right = f"'serial', since the task cannot be sent to other processes ({reason})"
            raise InputError("engine", engine, right) from error
        return self._stream.getbuffer()

    def persistent_id(self, value: Any) -> Any:
        """Where an array will be; None for everything else, which is pickled as usual."""
        if type(value) is Tensor and value.device.type == "cpu" and not value.requires_grad:
            if value.layout is not torch.strided or value.is_quantized:
                return None
            # The whole storage: tensors that share memory here share it there.
            storage = value.untyped_storage()
            content = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            place = self._put(storage.data_ptr(), content, (value, storage))
            dtype = str(value.dtype).removeprefix("torch.")
            geometry = tuple(value.shape), value.stride(), value.storage_offset()
            return "tensor", self._number(value), place, len(content), dtype, geometry
        if type(value) is np.ndarray and value.nbytes >= LARGE and value.flags.c_contiguous:
            place = self._put(value.ctypes.data, value, value)
            return "array", self._number(value), place, value.nbytes, value.dtype.str, value.shape
        return None

    def _number(self, value: Any) -> int:
        return self._numbers.setdefault(id(value), len(self._numbers))

    def _put(self, address: int, array: np.ndarray[Any, Any], owner: Any) -> int:
        self._alive.append(owner)
        if address not in self._places:
            self._places[address] = self.size
            self.arrays.append((self.size, array))
            self.size += rounded_up(array.nbytes)
        return self._places[address]


class Unpacker(pickle.Unpickler):
    """Finds tensors and large arrays in the parcel."""

    def __init__(self, room: mmap.mmap, pickled: int) -> None:
        super().__init__(io.BytesIO(room[:pickled]))
        self._room, self._base = room, rounded_up(pickled)
        self._found: dict[int, Any] = {}

    def persistent_load(self, where: Any) -> Any:
        """The array at that place, the same object for everybody who had the same."""
        number = where[1]
        if number not in self._found:
            self._found[number] = self._find(*where)
        return self._found[number]

    def _find(
        self, kind: str, number: int, place: int, size: int, dtype: str, geometry: Any
    ) -> Any:
        place += self._base
        if kind == "array":
            flat = np.frombuffer(self._room, np.uint8, size, place)
            return flat.view(dtype).reshape(geometry)
        shape, strides, offset = geometry
        kind_of_number = getattr(torch, dtype)
        if not size:
            return torch.empty(shape, dtype=kind_of_number)
        count = size // kind_of_number.itemsize
        values = torch.frombuffer(self._room, dtype=kind_of_number, count=count, offset=place)
        return values.as_strided(shape, strides, offset)


@dataclass(frozen=True)
class Order:
    """A segment as another process gets it: its vectors are in slots, and so will its result be."""

    client: int
    start: int
    first_round: int
    rounds: int
    first_batch: int
    scale: float
    correction: int | None
    result: int


class Slots:
    """Room for models in shared memory; only slots that were used take any.

    A tensor in a slot is as good as any other: the slot is free again when nobody has the tensor,
    nor a view of it.

    Example:
        >>> slots = Slots(dimension=3, dtype=torch.float32, count=2)
        >>> slot = slots.take()
        >>> model = slots.lend(slot)
        >>> slots.find(model) == slot, len(slots)
        (True, 1)
        >>> del model
        >>> len(slots)
        2
    """

    def __init__(
        self, dimension: int, dtype: torch.dtype, count: int, file: int | None = None
    ) -> None:
        self.dimension, self.dtype, self.count = dimension, dtype, count
        self._bytes = dimension * dtype.itemsize
        self._stride = -(-self._bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.file = anonymous_file(self._stride * count) if file is None else file
        self._room = mmap.mmap(self.file, self._stride * count)
        address = ctypes.c_char.from_buffer(self._room)
        self._first = ctypes.addressof(address)
        # Appending and popping need no lock: a slot may be given back by whoever drops a tensor.
        self._free = deque(range(count))

    def __len__(self) -> int:
        """How many are free."""
        return len(self._free)

    def take(self) -> int:
        """A free slot."""
        # The one given back last: its pages exist, and are likely to be in the cache.
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """The slot is free again."""
        self._free.append(slot)

    def view(self, slot: int) -> Tensor:
        """What is in a slot, only while the slot is taken."""
        return torch.frombuffer(
            self._room, dtype=self.dtype, count=self.dimension, offset=slot * self._stride
        )

    def lend(self, slot: int) -> Tensor:
        """What is in a slot, as a tensor that gives the slot back when it is gone."""
        room = (ctypes.c_char * self._bytes).from_buffer(self._room, slot * self._stride)
        # The tensor's storage holds on to this object, and so do all views of the tensor.
        weakref.finalize(room, self._free.append, slot).atexit = False
        return torch.frombuffer(room, dtype=self.dtype, count=self.dimension)

    def find(self, model: Tensor) -> int | None:
        """The slot that a tensor is in, if it is in one."""
        slot, offset = divmod(model.data_ptr() - self._first, self._stride)
        inside = 0 <= slot < self.count and offset == 0
        return slot if inside and model.is_contiguous() else None
