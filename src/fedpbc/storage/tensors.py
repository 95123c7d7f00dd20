"""A run's state as one safetensors file, and back to the bit.

Each tensor and array is in the file once, however many clients share it; those of one type and
shape are the rows of one tensor. Everything else, with references to them, is JSON in the header,
which stays small: long lists of numbers and of references are tensors as well. A checksum detects
damage.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedpbc.errors import FedpbcError, InputError, one_line
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.safetensors_file import (
    Rows,
    SafetensorsFile,
    bytes_of,
    dtype_name,
    write_safetensors,
)
from fedpbc.text import printable

__all__ = ["DamagedCheckpointError", "load_state", "peek_state", "save_state", "save_tensors"]

FORMAT = "2"
"""In the metadata; files of the first format, with a tensor of its own for each, have none."""
LONG = 64
"""Lists and tables of at least so many values are stored as tensors, if they can be."""
MAX_DEPTH = 100

Reference = str | Sequence[int]
"""A tensor's name in the file, or the stack it is in and its row there."""


class DamagedCheckpointError(FedpbcError):
    """A checkpoint that cannot be read back as it was written."""


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write nested dicts and lists of tensors, arrays, numbers and strings."""
    pool = TensorPool()
    encoded = pool.encode(state)
    try:
        text = json.dumps(encoded, separators=(",", ":"))
    except ValueError as error:  # An integer of too many digits.
        raise InputError(f"a checkpoint cannot hold what an algorithm keeps: {error}") from error
    metadata = {"format": FORMAT, "state": text}
    write(path, lambda file: write_safetensors(file, pool.entries(), metadata, checksum=True))


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, completely or not at all; a full disk is one clear line."""
    entries = {name: Rows([tensor], stacked=False) for name, tensor in tensors.items()}
    write(path, lambda file: write_safetensors(file, entries, metadata))


def write(path: Path, content: Callable[[Path], None]) -> None:
    """Write a file atomically; an error names the file, not the temporary one."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise FedpbcError(f"{path} cannot be written: {error.strerror or error}") from error


def load_state(path: Path) -> Any:
    """What :func:`save_state` wrote; raises DamagedCheckpointError if the file is damaged."""
    return read(path, lambda file: decode(parse_state(file), LoadedTensors(file)))


def peek_state(path: Path) -> Any:
    """What :func:`save_state` wrote, with None for tensors and arrays; unchecked, but quick."""
    return read(path, lambda file: decode(parse_state(file), PeekedTensors(file)))


def read(path: Path, content: Callable[[SafetensorsFile], Any]) -> Any:
    """Read a file; whatever is wrong with it is one line."""
    try:
        with SafetensorsFile(path) as file:
            return content(file)
    except OSError as error:
        raise DamagedCheckpointError(f"{path} is damaged: {error.strerror or error}") from error
    except ValueError as error:
        raise DamagedCheckpointError(f"{path} is damaged: {printable(str(error), 300)}") from error
    except (LookupError, TypeError, RuntimeError) as error:
        # Whatever a header that makes no sense leads to.
        raise DamagedCheckpointError(f"{path} is damaged: {one_line(error)}") from error


def parse_state(file: SafetensorsFile) -> Any:
    """The JSON of a state."""
    if "state" not in file.metadata:
        raise ValueError("it holds no state")
    if file.metadata.get("format", FORMAT) != FORMAT:
        raise ValueError(f"its format is {file.metadata['format']!r}: a newer version wrote it")
    return json.loads(file.metadata["state"])


def checksum(tensors: Mapping[str, Tensor], header: str = "") -> str:
    """A checksum over all values and a header."""
    value = zlib.crc32(header.encode())
    for name in sorted(tensors):
        content = bytes_of(tensors[name].detach().cpu().contiguous())
        value = zlib.crc32(content, zlib.crc32(name.encode(), value))
    return f"{value:08x}"


class TensorPool:
    """The distinct tensors of a state, by type and shape."""

    def __init__(self) -> None:
        self._stacks: dict[Any, tuple[int, list[Tensor]]] = {}
        self._empty: list[Tensor] = []
        self._references: dict[int, Reference] = {}
        # While they are referenced here, no other object can get the id of one of them.
        self._alive: list[Any] = []

    def entries(self) -> dict[str, Rows]:
        """What is written to the file."""
        stacks = {str(number): Rows(tensors) for number, tensors in self._stacks.values()}
        empty = {f"empty-{k}": Rows([t], stacked=False) for k, t in enumerate(self._empty)}
        return stacks | empty

    def encode(self, value: Any, depth: int = 0) -> Any:
        """The JSON for a value; its tensors are added to the pool."""
        if depth > MAX_DEPTH:
            raise InputError(f"a checkpoint cannot hold what nests deeper than {MAX_DEPTH} levels")
        if isinstance(value, bool | int | float | str) or value is None:
            return value
        if isinstance(value, np.generic):
            return self.encode(value.item(), depth)
        if isinstance(value, Tensor):
            return {"tensor": self._reference(value)}
        if isinstance(value, np.ndarray):
            return {"array": self._reference(value)}
        if isinstance(value, Mapping):
            if len(value) < LONG:
                pairs = value.items()
                return {
                    "map": [
                        [self.encode(k, depth + 1), self.encode(v, depth + 1)] for k, v in pairs
                    ]
                }
            return {
                "zip": [self._encode_list(list(part), depth) for part in (value, value.values())]
            }
        if isinstance(value, list | tuple):
            return self._encode_list(value, depth)
        raise InputError(
            f"a checkpoint cannot hold a {type(value).__name__}: keep tensors, arrays, numbers and "
            "strings in an algorithm's attributes (or dicts and lists of them)"
        )

    def _encode_list(self, values: Sequence[Any], depth: int) -> Any:
        kinds = set(map(type, values)) if len(values) >= LONG else ()
        if kinds == {int} and -(2**63) <= min(values) <= max(values) < 2**63:
            return {"numbers": self._add(torch.tensor(values, dtype=torch.int64))}
        if kinds == {float}:
            return {"numbers": self._add(torch.tensor(values, dtype=torch.float64))}
        if kinds == {Tensor}:
            references = [self._reference(tensor) for tensor in values]
            stacks = {reference[0] for reference in references}
            if len(stacks) == 1 and not isinstance(references[0], str):
                rows = torch.tensor([int(reference[1]) for reference in references])
                return {"tensors": [stacks.pop(), self._add(rows)]}
        return {"list": [self.encode(item, depth + 1) for item in values]}

    def _reference(self, value: Tensor | np.ndarray[Any, Any]) -> Reference:
        reference = self._references.get(id(value))
        if reference is None:
            self._alive.append(value)
            reference = self._references[id(value)] = self._add(
                tensor_of(value) if isinstance(value, np.ndarray) else value
            )
        return reference

    def _add(self, tensor: Tensor) -> Reference:
        kind = tensor.dtype, tensor.shape, tensor.device
        if kind not in self._stacks:
            dtype_name(tensor)  # Refused before anything is written.
            if not tensor.numel():
                # As the rows of a stack they would take no space: the file could claim any number.
                self._empty.append(tensor)
                return f"empty-{len(self._empty) - 1}"
            self._stacks[kind] = len(self._stacks), []
        number, tensors = self._stacks[kind]
        tensors.append(tensor)
        return number, len(tensors) - 1


def tensor_of(array: np.ndarray[Any, Any]) -> Tensor:
    """An array as a tensor; not copied unless it must be."""
    if not (array.flags.c_contiguous and array.flags.writeable):
        array = array.copy(order="C")
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise InputError(f"a checkpoint cannot hold an array of {array.dtype}") from error


class Tensors(Protocol):
    """Where a state's tensors come from."""

    def tensor(self, reference: Reference) -> Tensor | None:
        """A tensor, or None for a state without tensors."""

    def numbers(self, reference: Reference) -> list[Any]:
        """A long list of numbers, or of rows."""

    def stack(self, number: int, rows: list[int]) -> Sequence[Tensor | None]:
        """So many rows of a stack."""


class LoadedTensors:
    """All tensors of a file, read once in the order of the file, with its checksum."""

    def __init__(self, file: SafetensorsFile) -> None:
        self._single: dict[str, Tensor] = {}
        self._stacks: dict[str, list[Tensor]] = {}
        if "format" in file.metadata:
            self._load(file)
        else:
            self._load_first_format(file)

    def _load(self, file: SafetensorsFile) -> None:
        value = file.header_checksum()

        def update(chunk: memoryview) -> None:
            nonlocal value
            value = zlib.crc32(chunk, value)

        for name, entry in file.entries.items():
            if entry.size:
                self._stacks[name] = file.rows(name, update)
            else:
                self._single[name] = file.tensor(name)
        if file.metadata["checksum"] != f"{value:08x}":
            raise ValueError("its checksum does not fit")

    def _load_first_format(self, file: SafetensorsFile) -> None:
        self._single = {name: file.tensor(name) for name in file.entries}
        if file.metadata["checksum"] != checksum(self._single, file.metadata["state"]):
            raise ValueError("its checksum does not fit")

    def tensor(self, reference: Reference) -> Tensor:
        """A tensor: the same object for the same reference."""
        if isinstance(reference, str):
            return self._single[reference]
        number, row = reference
        return self._stacks[str(number)][row]

    def numbers(self, reference: Reference) -> list[Any]:
        """A long list of numbers."""
        numbers: list[Any] = self.tensor(reference).tolist()
        return numbers

    def stack(self, number: int, rows: list[int]) -> Sequence[Tensor | None]:
        """So many rows of a stack."""
        tensors = self._stacks[str(number)]
        return [tensors[row] for row in rows]


class PeekedTensors:
    """None for every tensor; only long lists of numbers are read."""

    def __init__(self, file: SafetensorsFile) -> None:
        self._file = file

    def tensor(self, reference: Reference) -> None:
        """None, which stands for a tensor."""

    def numbers(self, reference: Reference) -> list[Any]:
        """A long list of numbers."""
        number, row = map(int, reference)
        numbers: list[Any] = self._file.row(str(number), row).tolist()
        return numbers

    def stack(self, number: int, rows: list[int]) -> Sequence[Tensor | None]:
        """None for every row."""
        return [None] * len(rows)


def decode(header: Any, tensors: Tensors) -> Any:
    """The inverse of :meth:`TensorPool.encode`."""
    if not isinstance(header, dict):
        return header
    [(kind, content)] = header.items()
    if kind == "tensor":
        return tensors.tensor(content)
    if kind == "array":
        tensor = tensors.tensor(content)
        return None if tensor is None else tensor.numpy().copy()
    if kind == "numbers":
        return tensors.numbers(content)
    if kind == "tensors":
        number, rows = content
        return tensors.stack(number, tensors.numbers(rows))
    if kind == "map":
        return {decode(k, tensors): decode(v, tensors) for k, v in content}
    if kind == "zip":
        keys, values = (decode(part, tensors) for part in content)
        return dict(zip(keys, values, strict=True))
    return [decode(item, tensors) for item in content]
