"""The channel means and deviations that pictures are normalised by."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedpbc.errors import InputError, Verbatim

__all__ = ["channel_statistics"]

# np.bincount makes eight bytes of each value: some pictures at a time keep that to megabytes.
_VALUES_AT_ONCE = 1 << 19


def channel_statistics(
    inputs: npt.NDArray[np.uint8],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Each channel's mean and deviation over all pictures, in units of 0 to 255.

    The last axis holds the channels. Counted with integers, so the result does not depend on the
    order of the pictures. A channel that is the same everywhere gets deviation 1, so that dividing
    by it is safe.

    Example:
        >>> mean, deviation = channel_statistics(np.array([[0], [0], [6], [6]], dtype=np.uint8))
        >>> mean.tolist(), deviation.tolist()
        ([3.0], [3.0])
    """
    if inputs.dtype != np.uint8 or inputs.ndim < 2 or inputs.size == 0:
        given = Verbatim(f"an array of {inputs.dtype} with shape {inputs.shape}")
        raise InputError("data", given, "at least one uint8 picture, channels last")
    channels = inputs.shape[-1]
    counts = np.zeros((channels, 256), dtype=np.int64)
    pictures = max(1, _VALUES_AT_ONCE * len(inputs) // inputs.size)
    for first in range(0, len(inputs), pictures):
        part = inputs[first : first + pictures].reshape(-1, channels)
        for channel in range(channels):
            counts[channel] += np.bincount(part[:, channel], minlength=256)
    values = np.arange(256, dtype=np.float64)
    total = inputs.size // channels
    mean = counts @ values / total
    variance = (counts * (values - mean[:, None]) ** 2).sum(axis=1) / total
    deviation = np.sqrt(variance)
    deviation[deviation == 0] = 1
    return mean, deviation
