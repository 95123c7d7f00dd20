"""A run's state as one safetensors file, and back to the bit.

Each tensor and array is in the file once, however many clients share it; everything else, with
references to them, is JSON in the header. A checksum detects damage.
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
    """A checkpoint that cannot be read back as it was written."""


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write nested dicts and lists of tensors, arrays, numbers and strings."""
    pool = TensorPool()
    header = json.dumps(pool.encode(state))
    metadata = {"state": header, "checksum": checksum(pool.tensors, header)}
    save_tensors(path, pool.tensors, metadata)


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file, completely or not at all; a full disk is one clear line."""
    try:
        write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata))
    except SafetensorError as error:
        raise FedpbcError(f"{path} cannot be written: {error}") from error


def load_state(path: Path) -> Any:
    """What :func:`save_state` wrote; raises DamagedCheckpointError if the file is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # Copies: a memory map would follow the file when it is replaced.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if metadata["checksum"] != checksum(tensors, metadata["state"]):
            raise DamagedCheckpointError(f"{path} is damaged: its checksum does not fit")
        return decode(json.loads(metadata["state"]), tensors)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise DamagedCheckpointError(f"{path} is damaged: {error}") from error


def peek_state(path: Path) -> Any:
    """What :func:`save_state` wrote, with None for tensors and arrays; unchecked, but quick."""
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {})["state"]
        return decode(json.loads(header), None)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise DamagedCheckpointError(f"{path} is damaged: {error}") from error


def checksum(tensors: Mapping[str, Tensor], header: str = "") -> str:
    """A checksum over all values and the header."""
    value = zlib.crc32(header.encode())
    for name in sorted(tensors):
        content = tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        value = zlib.crc32(content.numpy().data, zlib.crc32(name.encode(), value))
    return f"{value:08x}"


class TensorPool:
    """The distinct tensors of a state."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        self._storages: set[int] = set()
        self._alive: list[Any] = []

    def encode(self, value: Any) -> Any:
        """The JSON for a value; its tensors are added to the pool."""
        if isinstance(value, bool | int | float | str) or value is None:
            return value
        if isinstance(value, np.generic):
            return self.encode(value.item())
        if isinstance(value, Tensor):
            return {"tensor": self._name(value)}
        if isinstance(value, np.ndarray):
            return {"array": self._name(value)}
        if isinstance(value, Mapping):
            return {"map": [[self.encode(k), self.encode(v)] for k, v in value.items()]}
        if isinstance(value, list | tuple):
            return {"list": [self.encode(item) for item in value]}
        raise FedpbcError(
            f"a checkpoint cannot hold a {type(value).__name__}: keep tensors, arrays, numbers and "
            "strings in an algorithm's attributes (or dicts and lists of them)"
        )

    def _name(self, value: Tensor | np.ndarray[Any, Any]) -> str:
        if id(value) not in self._names:
            name = str(len(self._names))
            self._names[id(value)] = name
            # While it is referenced here, no other object can get its id.
            self._alive.append(value)
            tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            self.tensors[name] = self._unshared(tensor.detach())
        return self._names[id(value)]

    def _unshared(self, tensor: Tensor) -> Tensor:
        """Copy a tensor that shares memory or is not contiguous: safetensors refuses those.

        Others are not copied: there may be as many models as clients.
        """
        storage = tensor.untyped_storage().data_ptr()
        # With fewer than two values, any strides count as contiguous, but the bytes may not be.
        if storage in self._storages or not tensor.is_contiguous() or tensor.numel() < 2:
            return tensor.clone(memory_format=torch.contiguous_format)
        self._storages.add(storage)
        return tensor


def decode(header: Any, tensors: Mapping[str, Tensor] | None) -> Any:
    """The inverse of :meth:`TensorPool.encode`; without tensors, None is in their places."""
    if not isinstance(header, dict):
        return header
    [(kind, content)] = header.items()
    if kind == "tensor":
        return None if tensors is None else tensors[content]
    if kind == "array":
        return None if tensors is None else tensors[content].numpy().copy()
    if kind == "map":
        return {decode(k, tensors): decode(v, tensors) for k, v in content}
    return [decode(item, tensors) for item in content]
