"""Models as vectors of a message."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from torch import Tensor

from fedpbc.deployment.protocol.messages import Vector

__all__ = ["checksum", "dtype_name", "initial_checksum", "to_vector", "to_vectors"]


def to_vector(model: Tensor) -> Vector:
    """Serialize a model."""
    return Vector.of(model.detach().cpu().numpy())


def to_vectors(vectors: Mapping[str, Tensor]) -> dict[str, Vector]:
    """Serialize vectors by name."""
    return {name: to_vector(vector) for name, vector in vectors.items()}


def dtype_name(model: Tensor) -> str:
    """The type of a model's values, as a :class:`Vector` names it."""
    return str(model.dtype).removeprefix("torch.")


def checksum(vectors: Mapping[str, Tensor]) -> str:
    """Identify vectors in logs, all of them together.

    Example:
        >>> import torch
        >>> checksum({"model": torch.ones(2)}), checksum({})
        ('d5065190', '00000000')
    """
    value = 0
    for name in sorted(vectors):
        value = crc32(to_vector(vectors[name]).data, value)
    return f"{value:08x}"


def initial_checksum(state: Mapping[str, Tensor]) -> str:
    """Identify what a client keeps at first; zeros are equal whatever their sign.

    Example:
        >>> import torch
        >>> initial_checksum({"c": torch.zeros(2)}) == initial_checksum({"c": -torch.zeros(2)})
        True
    """
    return checksum({name: vector + 0.0 for name, vector in state.items()})
