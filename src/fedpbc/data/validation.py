"""A part of each client's samples that is kept out of training, to choose settings by."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedpbc.errors import InputError
from fedpbc.limits import MAX_INTEGER
from fedpbc.randomness import generator

__all__ = ["held_out_count", "hold_out"]

Indices = NDArray[np.int64]


def hold_out(parts: Sequence[Indices], share: float, seed: int) -> tuple[list[Indices], Indices]:
    """Return what each client keeps of its samples, and the samples of all that are held out.

    Each client gives up the same share of its samples, so that those held out are spread over
    classes and clients as all samples are. A sample that several clients have is taken from all.

    Example:
        >>> parts = [np.arange(10), np.arange(10, 20)]
        >>> kept, held_out = hold_out(parts, 0.2, seed=0)
        >>> [len(part) for part in kept], len(held_out)
        ([8, 8], 4)
    """
    chosen = []
    for client, part in enumerate(parts):
        count = int(share * len(part))
        chosen.append(generator(seed, "validation", client).permutation(part)[:count])
    held_out = np.unique(np.concatenate(chosen))
    if not len(held_out):
        needed = math.ceil(min(1 / share, MAX_INTEGER))
        raise InputError(
            "validation", share, f"larger, or clients fewer: none has {needed} samples"
        )
    kept = [part[~np.isin(part, held_out)] for part in parts]
    for client, part in enumerate(kept):
        if not len(part):
            raise InputError("validation", share, f"smaller: client {client} has no samples left")
    return kept, held_out.astype(np.int64)


def held_out_count(samples: int, share: float) -> int:
    """Return how many of a client's samples are held out, where all clients have as many.

    Example:
        >>> held_out_count(50, 0.2)
        10
    """
    count = int(share * samples)
    if share and not count:
        raise InputError("validation", share, f"larger: a client has {samples} samples")
    return count
