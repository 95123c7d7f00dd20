"""Arrays from files that users name."""

from __future__ import annotations

import io
import math
import os
import warnings
from tokenize import TokenError
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedpbc.errors import InputError
from fedpbc.storage.files import MAX_BYTES, expanded, open_regular_file

__all__ = ["check_npy_header", "read_array", "read_npy_header"]

LONGEST_HEADER = 10_000
"""Bytes; NumPy's own limit."""


def read_array(path: str, option: str) -> NDArray[np.generic]:
    """Read numbers from a .npy or .csv file; error messages name the option.

    No code in the file is run: pickled objects are refused.
    """
    name = expanded(path, option)
    try:
        with open_regular_file(name) as file:
            array = _read_csv(file) if name.suffix == ".csv" else _read_npy(file)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise InputError(option, path, "a file that exists") from None
    except Exception as error:  # numpy raises many kinds of errors for damaged files.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(
            f"{option}: {path} is unreadable as a .npy or .csv file ({reason})"
        ) from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        raise InputError(f"{option}: {path} does not hold an array of numbers")
    return array


def _read_csv(file: BinaryIO) -> NDArray[np.generic]:
    if os.fstat(file.fileno()).st_size > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES:,} bytes; a .npy file may be larger")
    with warnings.catch_warnings(), io.TextIOWrapper(file, encoding="utf-8-sig") as lines:
        # For an empty file, numpy only warns.
        warnings.simplefilter("error")
        try:
            return np.loadtxt(lines, delimiter=",", ndmin=2)
        except UserWarning:
            raise ValueError("it has no numbers") from None


def _read_npy(file: BinaryIO) -> NDArray[np.generic]:
    check_npy_header(file)
    array: NDArray[np.generic] = np.load(file, allow_pickle=False)
    return array


def read_npy_header(
    file: BinaryIO, longest: int = LONGEST_HEADER
) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Read shape, Fortran order and type from the start of a .npy file; ValueError if damaged.

    NumPy parses the header as Python: what is none raises errors of the parser and the tokenizer.
    """
    version = npy.read_magic(file)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    try:
        return read_header(file, longest)
    except (TypeError, OverflowError, SyntaxError, RecursionError, TokenError) as error:
        raise ValueError(f"its header cannot be read: {error}") from None


def check_npy_header(file: BinaryIO) -> None:
    """Raise ValueError if a .npy file is shorter than its header says; then go back to its start.

    NumPy would allocate whatever the header says.
    """
    shape, _, dtype = read_npy_header(file)
    size = math.prod(shape) * dtype.itemsize
    available = os.fstat(file.fileno()).st_size - file.tell()
    if not dtype.hasobject and size > available:
        raise ValueError(f"its header says {size:,} bytes, but it has {available:,}")
    file.seek(0)
