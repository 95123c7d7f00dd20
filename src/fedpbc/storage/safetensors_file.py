"""The safetensors format, written and read piece by piece.

A file is the length of its header in eight bytes, the header as JSON, and the tensors' bytes
(https://github.com/huggingface/safetensors#format). The library wants every tensor as an object and
a line of the header of its own, which a million client models would be too many for: here equal
tensors can be the rows of one, and are written and read without a second copy of all of them.
"""

from __future__ import annotations

import gc
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from fedpbc.errors import FedpbcError, InputError
from fedpbc.limits import parse_json
from fedpbc.storage.files import open_regular_file

__all__ = ["Rows", "SafetensorsFile", "bytes_of", "dtype_name", "write_safetensors"]

# In the order in which the library sorts tensors: whatever is read later is aligned.
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
RANKS = {name: rank for rank, name in enumerate(DTYPES)}

CHUNK = 2**20
"""Bytes of small rows that are put together before they are written or after they are read."""
MAX_HEADER = 10**8
"""Bytes of a header, as in the library."""
CHECKSUM = "checksum"
START = f'{{"__metadata__":{{"{CHECKSUM}":"'.encode()
"""How the header of a file with a checksum begins: so the checksum has a fixed place."""
UNKNOWN = "0" * 8


@dataclass(frozen=True)
class Rows:
    """Tensors of one type and shape that are stored as the rows of one; or one tensor as it is."""

    tensors: Sequence[Tensor]
    stacked: bool = True

    @property
    def shape(self) -> list[int]:
        """The shape of the tensor in the file."""
        shape = list(self.tensors[0].shape)
        return [len(self.tensors), *shape] if self.stacked else shape

    def chunks(self) -> Iterator[memoryview]:
        """The bytes of all rows; small ones are put together, large ones are not copied."""
        size = max(self.tensors[0].nbytes, 1)
        count = CHUNK // size
        if count < 2:
            for tensor in self.tensors:
                yield bytes_of(tensor.detach().cpu().contiguous())
            return
        for start in range(0, len(self.tensors), count):
            with torch.no_grad():
                yield bytes_of(torch.stack(list(self.tensors[start : start + count])).cpu())


def dtype_name(tensor: Tensor) -> str:
    """The format's name for a tensor's type; raises FedpbcError if it has none."""
    if tensor.dtype not in NAMES or tensor.layout is not torch.strided:
        kind = tensor.dtype if tensor.dtype not in NAMES else tensor.layout
        raise InputError(f"a checkpoint cannot hold a tensor of {kind}: use torch.float64, say")
    return NAMES[tensor.dtype]


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, without a copy where its values are stored as they are."""
    flat = tensor.resolve_conj().resolve_neg().reshape(-1)
    if flat.stride() != (1,):  # With one value, any stride counts as contiguous.
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().data


def write_safetensors(
    path: Path, entries: Mapping[str, Rows], metadata: Mapping[str, str], *, checksum: bool = False
) -> None:
    """Write a file; the same content gives the same bytes.

    With ``checksum`` the metadata gets one of everything else in the file.
    """
    types = {name: dtype_name(rows.tensors[0]) for name, rows in entries.items()}
    order = sorted(entries, key=lambda name: (-RANKS[types[name]], name))
    header: dict[str, Any] = {}
    if metadata or checksum:
        first = {CHECKSUM: UNKNOWN} if checksum else {}
        header["__metadata__"] = first | dict(sorted(metadata.items()))
    end = 0
    for name in order:
        shape = entries[name].shape
        start, end = end, end + math.prod(shape) * DTYPES[types[name]].itemsize
        header[name] = {"dtype": types[name], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    # Padded, so that the tensors are aligned.
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise FedpbcError(f"{path} would have a header of {len(text):,} bytes: that is too long")
    value = crc32(text)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in order:
            for chunk in entries[name].chunks():
                file.write(chunk)
                if checksum:
                    value = crc32(chunk, value)
        if checksum:
            file.seek(8 + len(START))
            file.write(f"{value:08x}".encode())


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in a file: its type and shape, and where its bytes are."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    size: int


class SafetensorsFile:
    """A file that is read tensor by tensor; raises ValueError or OSError where it is damaged.

    It is read, not mapped: a file that is cut short while it is mapped would kill the process.
    """

    def __init__(self, path: Path) -> None:
        self._file = open_regular_file(path, follow_links=False)
        try:
            self._parse(os.fstat(self._file.fileno()).st_size)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def _parse(self, size: int) -> None:
        length = int.from_bytes(self._file.read(8), "little")
        if not 0 < length <= min(size - 8, MAX_HEADER):
            raise ValueError(f"its header cannot have {length:,} bytes")
        self._header = self._file.read(length)
        header = parse_json(self._header)
        if not isinstance(header, dict):
            raise ValueError("the header is not a table")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise ValueError("the metadata are not texts")
        self.metadata: dict[str, str] = metadata
        entries = {name: entry_of(name, fields) for name, fields in header.items()}
        end = 0
        self.entries: dict[str, TensorEntry] = {}
        for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].size)):
            if entry.start != end:
                raise ValueError(f"its tensor {name!r} does not begin where the last one ends")
            end += entry.size
            self.entries[name] = entry
        self._data = 8 + length
        if size != self._data + end:
            raise ValueError(f"it has {size:,} bytes instead of {self._data + end:,}")

    def tensor(self, name: str) -> Tensor:
        """A tensor as it is in the file."""
        entry = self.entries[name]
        self._file.seek(self._data + entry.start)
        return self._read(entry.dtype, entry.shape)

    def row(self, name: str, index: int) -> Tensor:
        """One row of a tensor."""
        entry = self.entries[name]
        if not 0 <= index < entry.shape[0]:
            raise ValueError(f"its tensor {name!r} has no row {index}")
        size = entry.size // entry.shape[0]
        self._file.seek(self._data + entry.start + index * size)
        return self._read(entry.dtype, entry.shape[1:])

    def rows(
        self, name: str, each: Callable[[memoryview], None] = lambda chunk: None
    ) -> list[Tensor]:
        """All rows of a tensor, each with memory of its own; ``each`` is called with the bytes.

        A view of one large tensor would keep all of it in memory, and might begin at an address at
        which sums are formed in another order.
        """
        entry = self.entries[name]
        count, shape = entry.shape[0], entry.shape[1:]
        if not entry.size:
            raise ValueError(f"its tensor {name!r} has empty rows")
        self._file.seek(self._data + entry.start)
        together = CHUNK // (entry.size // count)
        rows: list[Tensor] = []
        with no_garbage_collection():
            while len(rows) < count:
                if together < 2:
                    row = self._read(entry.dtype, shape)
                    each(bytes_of(row))
                    rows.append(row)
                    continue
                chunk = self._read(entry.dtype, (min(together, count - len(rows)), *shape))
                each(bytes_of(chunk))
                rows += [row.clone() for row in chunk.unbind()]
        return rows

    def _read(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        tensor = torch.empty(shape, dtype=dtype)
        content = bytes_of(tensor)
        if self._file.readinto(content) != len(content):
            raise ValueError("it was cut short while it was read")
        return tensor

    def header_checksum(self) -> int:
        """The checksum of the header, to be continued with the tensors' bytes in their order."""
        if not self._header.startswith(START):
            raise ValueError("its checksum is not where it belongs")
        after = self._header[len(START) + len(UNKNOWN) :]
        return crc32(after, crc32(UNKNOWN.encode(), crc32(START)))


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Otherwise the collector walks over a million new tensors again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def entry_of(name: str, fields: Any) -> TensorEntry:
    """A line of the header; raises ValueError unless it makes sense."""
    try:
        dtype, shape, (start, stop) = (
            DTYPES[fields["dtype"]],
            fields["shape"],
            fields["data_offsets"],
        )
        numbers = [*shape, start, stop]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"its tensor {name!r} is not described as it should be") from None
    if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        raise ValueError(f"its tensor {name!r} has a shape or place that cannot be")
    if len(shape) > 64 or stop - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"its tensor {name!r} has more or fewer bytes than its shape says")
    return TensorEntry(dtype, tuple(shape), start, stop - start)
