"""A model as Flower sends it, named arrays, and as the algorithms see it, one flat vector."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedpbc.errors import InputError
from fedpbc.storage.arrays import read_npy_header

__all__ = [
    "ArrayLayout",
    "BadRecordError",
    "SetupError",
    "initial_vector",
    "median_of",
    "read_array",
]

FlatVector = NDArray[Any]

LONGEST_HEADER = 1 << 16
"""Bytes that a serialised array may have besides its values."""
LARGEST_NUMBER = 8
"""Bytes: PyTorch has no type for longer ones."""


class BadRecordError(Exception):
    """A record that does not have the right names, shapes, types or values."""


class SetupError(BadRecordError):
    """What no further reply will mend: somebody has to change the app, or its surroundings."""


STATISTICS = ("running_mean", "running_var")
"""PyTorch's names for the running statistics of a layer, such as those of batch normalisation."""


@dataclass(frozen=True)
class ArrayLayout:
    """The names, shapes and types of a model's arrays, and their places in the flat vector.

    The vector holds the arrays of floating-point numbers, in the type that all of them can be
    converted to: first the parameters, which the algorithm sees, then running statistics. Whole
    numbers and truth values, such as the counter of a batch normalisation, are in no vector: no
    arithmetic is done with them.

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
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub" or array.dtype.itemsize > LARGEST_NUMBER:
                expected = "an array of real numbers"
                raise InputError(f"initial_arrays[{name!r}]", str(array.dtype), expected)
        layout = cls(
            tuple(arrays),
            tuple(array.shape for array in arrays.values()),
            tuple(str(array.dtype) for array in arrays.values()),
        )
        if not layout.parameters.size:
            expected = (
                "at least one array with values, of floating-point numbers: others do not train"
            )
            raise InputError("initial_arrays", dict(record), expected)
        return layout

    @cached_property
    def parameters(self) -> ArrayLayout:
        """The layout of the arrays that the algorithm sees."""
        return self._of(name for name in self._floats if not is_statistic(name))

    @cached_property
    def others(self) -> ArrayLayout:
        """The layout of all other arrays: running statistics, whole numbers and truth values."""
        seen = set(self.parameters.names)
        return self._of(name for name in self.names if name not in seen)

    def _of(self, names: Iterable[str]) -> ArrayLayout:
        places = [self.names.index(name) for name in names]
        return ArrayLayout(
            tuple(self.names[k] for k in places),
            tuple(self.shapes[k] for k in places),
            tuple(self.dtypes[k] for k in places),
        )

    @cached_property
    def _floats(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and type of each array in the vector, in its order there."""
        every = zip(self.names, self.shapes, self.dtypes, strict=True)
        floats = [(n, (s, d)) for n, s, d in every if np.dtype(d).kind == "f"]
        return dict(sorted(floats, key=lambda each: is_statistic(each[0])))

    @property
    def size(self) -> int:
        """The number of values of the flat vector."""
        return sum(math.prod(shape) for shape, _ in self._floats.values())

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the flat vector."""
        dtypes = [np.dtype(dtype) for _, dtype in self._floats.values()]
        return np.result_type(*dtypes) if dtypes else np.dtype(np.float32)

    def vector(self, record: Mapping[str, Array]) -> FlatVector:
        """The flat vector of a record from anywhere; a BadRecordError says what is wrong."""
        self._check_names(record)
        vector = np.empty(self.size, self.dtype)
        end = 0
        for name, (shape, dtype) in self._floats.items():
            values = read_array(record[name], name, shape, dtype)
            start, end = end, end + values.size
            vector[start:end] = values.reshape(-1)
        return vector

    def exact(self, record: Mapping[str, Array]) -> dict[str, Array]:
        """The arrays of a record from anywhere that are in no vector, as they are."""
        self._check_names(record)
        return {
            name: Array(read_array(record[name], name, shape, dtype))
            for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True)
            if name not in self._floats
        }

    def _check_names(self, record: Mapping[str, Array]) -> None:
        if set(record) != set(self.names):
            missing = ", ".join(sorted(set(self.names) - set(record))) or "none"
            unknown = ", ".join(sorted(set(record) - set(self.names))) or "none"
            raise BadRecordError(f"arrays by other names: missing {missing}; unknown {unknown}")

    def record(self, vector: FlatVector, exact: Mapping[str, Array] | None = None) -> ArrayRecord:
        """The record of a flat vector, and of the arrays that are in none."""
        parts, end = dict(exact or {}), 0
        for name, (shape, dtype) in self._floats.items():
            start, end = end, end + math.prod(shape)
            parts[name] = Array(vector[start:end].reshape(shape).astype(dtype))
        # In the order of the app's own record, by which some apps read it.
        return ArrayRecord({name: parts[name] for name in self.names if name in parts})


def is_statistic(name: str) -> bool:
    """Whether an array is a layer's running statistics: averaged, but not trained."""
    return name.rpartition(".")[2] in STATISTICS


def median_of(arrays: Sequence[Array]) -> Array:
    """In each place one of the arrays' own values: with an even number, the lower of the two.

    Example:
        >>> median_of([Array(np.array(n)) for n in (7, 2**60 + 1, 9)]).numpy().item()
        9
    """
    if all(array is arrays[0] for array in arrays):
        return arrays[0]
    ordered = np.sort(np.stack([array.numpy() for array in arrays]), axis=0)
    return Array(np.asarray(ordered[(len(arrays) - 1) // 2]))


def initial_vector(initial: ArrayRecord) -> tuple[ArrayLayout, FlatVector]:
    """The layout and values of what a job begins with; raises InputError if that is no model."""
    layout = ArrayLayout.of(initial)
    try:
        layout.exact(initial)
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
