"""Models as vectors of a message."""

from __future__ import annotations

from zlib import crc32

from torch import Tensor

from fedpbc.deployment.protocol.messages import Vector

__all__ = ["checksum", "dtype_name", "to_vector"]


def to_vector(model: Tensor) -> Vector:
    """Serialize a model."""
    return Vector.of(model.detach().cpu().numpy())


def dtype_name(model: Tensor) -> str:
    """The type of a model's values, as a :class:`Vector` names it."""
    return str(model.dtype).removeprefix("torch.")


def checksum(model: Tensor) -> str:
    """Identify a model in logs."""
    return f"{crc32(to_vector(model).data):08x}"
