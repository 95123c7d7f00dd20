"""A model as Flower sends it, named arrays, and as the algorithms see it, one flat vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedpbc.errors import InputError
from fedpbc.storage.arrays import read_npy_header

__all__ = ["ArrayLayout", "BadRecordError", "initial_vector", "read_array"]

FlatVector = NDArray[Any]

LONGEST_HEADER = 1 << 16
"""Bytes that a serialised array may have besides its values."""


class BadRecordError(Exception):
    """A record that does not have the right names, shapes, types or values."""


@dataclass(frozen=True)
class ArrayLayout:
    """The names, shapes and types of a model's arrays, in their order in the flat vector.

    The vector has the type that all arrays can be converted to. Whole numbers, such as the counter
    of a batch normalisation, are averaged like all others and rounded.

    Example:
        >>> layout = ArrayLayout.of(ArrayRecord({"w": Array(np.ones((2, 2), np.float32))}))
        >>> layout.size, layout.dtype.name
        (4, 'float32')
        >>> layout.record(np.arange(4.0))["w"].numpy().tolist()
        [[0.0, 1.0], [2.0, 3.0]]
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, record: ArrayRecord) -> ArrayLayout:
        """The layout of a model that is trusted, such as the initial one."""
        arrays = {name: array.numpy() for name, array in record.items()}
        if not any(array.size for array in arrays.values()):
            raise InputError("initial_arrays", dict(record), "at least one array with values")
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub":
                expected = "an array of real numbers"
                raise InputError(f"initial_arrays[{name!r}]", str(array.dtype), expected)
        return cls(
            tuple(arrays),
            tuple(array.shape for array in arrays.values()),
            tuple(str(array.dtype) for array in arrays.values()),
        )

    @property
    def size(self) -> int:
        """The number of values."""
        return sum(map(math.prod, self.shapes))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the flat vector."""
        common = np.result_type(*map(np.dtype, self.dtypes))
        return common if common.kind == "f" else np.dtype(np.float64)

    def vector(self, record: Mapping[str, Array]) -> FlatVector:
        """The flat vector of a record from anywhere; a BadRecordError says what is wrong."""
        if set(record) != set(self.names):
            missing = ", ".join(sorted(set(self.names) - set(record))) or "none"
            unknown = ", ".join(sorted(set(record) - set(self.names))) or "none"
            raise BadRecordError(f"arrays by other names: missing {missing}; unknown {unknown}")
        vector = np.empty(self.size, self.dtype)
        end = 0
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            values = read_array(record[name], name, shape, dtype)
            start, end = end, end + values.size
            vector[start:end] = values.reshape(-1)
        return vector

    def arrays(self, vector: FlatVector) -> dict[str, NDArray[Any]]:
        """The named arrays of a flat vector."""
        parts, end = {}, 0
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            start, end = end, end + math.prod(shape)
            part = vector[start:end].reshape(shape)
            parts[name] = _converted(part, np.dtype(dtype))
        return parts

    def record(self, vector: FlatVector) -> ArrayRecord:
        """The record of a flat vector."""
        return ArrayRecord({name: Array(part) for name, part in self.arrays(vector).items()})


def _converted(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind == "f":
        return values.astype(dtype)
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    rounded: NDArray[Any] = np.clip(np.rint(values), low, high).astype(dtype)
    return rounded


def initial_vector(initial: ArrayRecord) -> tuple[ArrayLayout, FlatVector]:
    """The layout and values of what a job begins with; raises InputError if that is no model."""
    layout = ArrayLayout.of(initial)
    try:
        return layout, layout.vector(initial)
    except BadRecordError as error:
        raise InputError(f"initial_arrays: {error}") from None


def read_array(array: Array, name: str, shape: tuple[int, ...] | None, dtype: str) -> NDArray[Any]:
    """The values of an array from anywhere, of a known type; ``shape`` None: any flat vector.

    Nothing is allocated that the data do not hold: a header may claim any size.
    """
    if array.dtype != dtype or (shape is not None and tuple(array.shape) != shape):
        raise BadRecordError(
            f"{name!r} is {array.dtype} of shape {_shape(array.shape)}, not {dtype} of shape "
            f"{'any' if shape is None else _shape(shape)}"
        )
    if not isinstance(array.data, bytes) or array.stype != "numpy.ndarray":
        raise BadRecordError(f"{name!r} is serialised as {array.stype!r}, not 'numpy.ndarray'")
    try:
        file = BytesIO(array.data)
        written_shape, is_fortran, written_dtype = read_npy_header(file, LONGEST_HEADER)
        if written_shape != tuple(array.shape) or written_dtype != np.dtype(dtype):
            raise ValueError("its header says something else than the record")
        values = np.frombuffer(array.data, written_dtype, offset=file.tell())
        flat = values.reshape(written_shape, order="F" if is_fortran else "C")
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRecordError(f"{name!r} cannot be read: {error}") from None
    if shape is None and flat.ndim != 1:
        raise BadRecordError(f"{name!r} is not a flat vector")
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        raise BadRecordError(f"{name!r} is not finite")
    return flat


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "()"
