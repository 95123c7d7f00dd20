"""Models as vectors of a message."""

from __future__ import annotations

from zlib import crc32

from torch import Tensor

from fedpbc.deployment.protocol.messages import Vector

__all__ = ["checksum", "dtype_name", "to_vector"]


def to_vector(model: Tensor) -> Vector:
    """Serialize a model.

    Example:
        >>> import torch
        >>> to_vector(torch.zeros(2)).dtype
        'float32'
    """
    return Vector.of(model.detach().cpu().numpy())


def dtype_name(model: Tensor) -> str:
    """The type of a model's values, as a :class:`Vector` names it.

    Example:
        >>> import torch
        >>> dtype_name(torch.zeros(2))
        'float32'
    """
    return str(model.dtype).removeprefix("torch.")


def checksum(model: Tensor) -> str:
    """Identify a model in logs.

    Example:
        >>> import torch
        >>> checksum(torch.zeros(2))
        '6522df69'
    """
    return f"{crc32(to_vector(model).data):08x}"
