"""Arrays from files that users name."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedpbc.errors import InputError

__all__ = ["read_array"]


def read_array(path: str, option: str) -> NDArray[np.generic]:
    """An array from a .npy or .csv file."""
    place = Path(path)
    if not place.is_file():
        raise InputError(option, path, "a file that exists")
    try:
        if place.suffix == ".csv":
            with warnings.catch_warnings():
                # An empty file is only worth a warning to numpy.
                warnings.simplefilter("error")
                array: NDArray[np.generic] = np.loadtxt(place, delimiter=",", ndmin=2)
        else:
            array = np.load(place, allow_pickle=False)
    except Exception as error:  # A damaged file makes numpy raise whatever it likes.
        reason = " ".join(str(error).split())
        raise InputError(f"{option}: {path} is unreadable as .npy or .csv ({reason})") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        raise InputError(f"{option}: {path} holds no numbers")
    return array
