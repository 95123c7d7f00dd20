"""Arrays from files that users name."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedpbc.errors import InputError

__all__ = ["read_array"]


def read_array(path: str, option: str) -> NDArray[np.generic]:
    """Read numbers from a .npy or .csv file; error messages name the option."""
    file = Path(path)
    if not file.is_file():
        raise InputError(option, path, "a file that exists")
    try:
        if file.suffix == ".csv":
            with warnings.catch_warnings():
                # For an empty file, numpy only warns.
                warnings.simplefilter("error")
                array: NDArray[np.generic] = np.loadtxt(file, delimiter=",", ndmin=2)
        else:
            array = np.load(file, allow_pickle=False)
    except Exception as error:  # numpy raises many kinds of errors for damaged files.
        raise InputError(
            f"{option}: {path} is unreadable as a .npy or .csv file ({error})"
        ) from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        raise InputError(f"{option}: {path} does not hold an array of numbers")
    return array
