"""Channel means and standard deviations for normalising images."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedpbc.errors import InputError

__all__ = ["channel_statistics"]

# np.bincount converts each value to 8 bytes: chunks bound that to a few megabytes.
_VALUES_AT_ONCE = 1 << 19


def channel_statistics(
    inputs: npt.NDArray[np.uint8],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return each channel's mean and standard deviation over all images, in units of 0 to 255.

    The last axis holds the channels. Computed from integer histograms, so the result does not
    depend on the order of the images. A constant channel gets deviation 1, so that dividing by it
    is safe.
    """
    if inputs.dtype != np.uint8 or inputs.ndim < 2 or inputs.size == 0:
        raise InputError(
            f"data is an array of {inputs.dtype} with shape {inputs.shape}, "
            "but should be at least one uint8 image, channels last"
        )
    channels = inputs.shape[-1]
    counts = np.zeros((channels, 256), dtype=np.int64)
    chunk = max(1, _VALUES_AT_ONCE * len(inputs) // inputs.size)
    for first in range(0, len(inputs), chunk):
        values = inputs[first : first + chunk].reshape(-1, channels)
        for channel in range(channels):
            counts[channel] += np.bincount(values[:, channel], minlength=256)
    levels = np.arange(256, dtype=np.float64)
    total = inputs.size // channels
    mean = counts @ levels / total
    variance = (counts * (levels - mean[:, None]) ** 2).sum(axis=1) / total
    deviation = np.sqrt(variance)
    deviation[deviation == 0] = 1
    return mean, deviation
