"""A run's state as one safetensors file, and back to the bit.

Tensors and arrays go into the file once each, however many clients share them; everything else,
with references to them, is JSON in its header. A checksum tells a damaged file from a whole one.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedpbc.errors import FedpbcError
from fedpbc.storage.atomic import write_atomically

__all__ = ["DamagedCheckpointError", "load_state", "peek_state", "save_state", "save_tensors"]


class DamagedCheckpointError(FedpbcError):
    """A checkpoint that cannot be read back whole."""


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write nested dicts and lists of tensors, arrays, numbers and strings.

    Example:
        >>> import tempfile
        >>> place = Path(tempfile.mkdtemp()) / "state.safetensors"
        >>> save_state(place, {"x": torch.ones(2), "rounds": np.arange(3), "memory": {7: 0.5}})
        >>> load_state(place)["memory"]
        {7: 0.5}
    """
    pool = Pool()
    header = json.dumps(pool.put(state))
    metadata = {"state": header, "checksum": checksum(pool.tensors, header)}
    save_tensors(path, pool.tensors, metadata)


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file, whole or not at all; a full disk is one clear line."""
    try:
        write_atomically(path, lambda place: save_file(tensors, place, metadata))
    except SafetensorError as error:
        raise FedpbcError(f"{path} cannot be written: {error}") from error


def load_state(path: Path) -> Any:
    """What :func:`save_state` wrote; raises DamagedCheckpointError if it is not whole."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # Copies: a memory map would follow the file when it is replaced.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if metadata["checksum"] != checksum(tensors, metadata["state"]):
            raise DamagedCheckpointError(f"{path} is damaged: its checksum does not fit")
        return take(json.loads(metadata["state"]), tensors)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise DamagedCheckpointError(f"{path} is damaged: {error}") from error


def peek_state(path: Path) -> Any:
    """What :func:`save_state` wrote, with None for tensors and arrays; unchecked, but quick.

    Example:
        >>> import tempfile
        >>> place = Path(tempfile.mkdtemp()) / "state.safetensors"
        >>> save_state(place, {"x": torch.ones(2), "slots": [4, 7]})
        >>> peek_state(place)
        {'x': None, 'slots': [4, 7]}
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {})["state"]
        return take(json.loads(header), None)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise DamagedCheckpointError(f"{path} is damaged: {error}") from error


def checksum(tensors: Mapping[str, Tensor], header: str = "") -> str:
    """A checksum over all values and the header."""
    value = zlib.crc32(header.encode())
    for name in sorted(tensors):
        content = tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        value = zlib.crc32(content.numpy().data, zlib.crc32(name.encode(), value))
    return f"{value:08x}"


class Pool:
    """The tensors of a state, each once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        self._storages: set[int] = set()
        self._alive: list[Any] = []

    def put(self, value: Any) -> Any:
        """The JSON for a value; its tensors go into the pool."""
        if isinstance(value, bool | int | float | str) or value is None:
            return value
        if isinstance(value, np.generic):
            return self.put(value.item())
        if isinstance(value, Tensor):
            return {"tensor": self._name(value)}
        if isinstance(value, np.ndarray):
            return {"array": self._name(value)}
        if isinstance(value, Mapping):
            return {"map": [[self.put(k), self.put(v)] for k, v in value.items()]}
        if isinstance(value, list | tuple):
            return {"list": [self.put(item) for item in value]}
        raise FedpbcError(
            f"a checkpoint cannot hold a {type(value).__name__}: keep tensors, arrays, numbers and "
            "strings in an algorithm's attributes (or dicts and lists of them)"
        )

    def _name(self, value: Tensor | np.ndarray[Any, Any]) -> str:
        if id(value) not in self._names:
            name = str(len(self._names))
            self._names[id(value)] = name
            # While it is held here, no other object can get its id.
            self._alive.append(value)
            tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            self.tensors[name] = self._alone(tensor.detach())
        return self._names[id(value)]

    def _alone(self, tensor: Tensor) -> Tensor:
        """Tensors that share memory, or lie scattered in it, would be refused: those are copied.

        All others are not: there may be as many models as clients.
        """
        storage = tensor.untyped_storage().data_ptr()
        # One of no or one value counts as contiguous whatever its strides are; its bytes may not.
        if storage in self._storages or not tensor.is_contiguous() or tensor.numel() < 2:
            return tensor.clone(memory_format=torch.contiguous_format)
        self._storages.add(storage)
        return tensor


def take(header: Any, tensors: Mapping[str, Tensor] | None) -> Any:
    """The value that a header stands for; shared tensors are shared again.

    Without any tensors, there is None in their places.
    """
    if not isinstance(header, dict):
        return header
    [(kind, content)] = header.items()
    if kind == "tensor":
        return None if tensors is None else tensors[content]
    if kind == "array":
        return None if tensors is None else tensors[content].numpy().copy()
    if kind == "map":
        return {take(k, tensors): take(v, tensors) for k, v in content}
    return [take(item, tensors) for item in content]
