"""Arrays from files that users name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedpbc.errors import InputError, Words

__all__ = ["read_array"]


def read_array(path: str, option: str) -> NDArray[np.generic]:
    """An array from a .npy or .csv file."""
    place = Path(path)
    if not place.is_file():
        raise InputError(option, path, "a file that exists")
    try:
        if place.suffix == ".csv":
            array: NDArray[np.generic] = np.loadtxt(place, delimiter=",", ndmin=2)
        else:
            array = np.load(place, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            option, Words(f"{path}, unreadable"), f"a .npy or .csv file ({reason})"
        ) from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        raise InputError(option, Words(f"{path}, which holds no numbers"), "an array of numbers")
    return array
