"""Which slot of a file each report is in, and which slots are free: in arrays.

A million clients with two slots each would be gigabytes of Python objects.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_KEY", "FreeSlots", "Slot", "SlotIndex", "chosen"]

MAX_KEY = 40_000_000
"""Above every number under which a report is kept; a damaged file may claim any."""
BLOCK = 2**16


class Slot(NamedTuple):
    """Where a report is in the file, and the checksum of its bytes."""

    number: int
    checksum: int


class SlotIndex:
    """The slot of each report, by the number under which it is kept.

    Example:
        >>> index = SlotIndex()
        >>> index.put(5, Slot(0, 123))
        >>> index.get(5), index.get(4), index.keys().tolist()
        (Slot(number=0, checksum=123), None, [5])
    """

    def __init__(self) -> None:
        self._numbers = np.full(0, -1, dtype=np.int64)
        self._checksums = np.zeros(0, dtype=np.uint32)

    def get(self, key: int) -> Slot | None:
        """The slot of a report, or None."""
        if key >= len(self._numbers) or self._numbers[key] < 0:
            return None
        return Slot(int(self._numbers[key]), int(self._checksums[key]))

    def put(self, key: int, slot: Slot) -> None:
        """Set the slot of a report."""
        if key >= len(self._numbers):
            missing = max(key + 1, 2 * len(self._numbers)) - len(self._numbers)
            self._numbers = np.pad(self._numbers, (0, missing), constant_values=-1)
            self._checksums = np.pad(self._checksums, (0, missing))
        self._numbers[key], self._checksums[key] = slot

    def keys(self) -> NDArray[np.int64]:
        """The numbers of all reports, ascending."""
        return np.flatnonzero(self._numbers >= 0)

    def slots(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """The slots' numbers and checksums of these reports."""
        return self._numbers[keys], self._checksums[keys]


class FreeSlots:
    """Which slots are in use; the lowest free one is taken next.

    Example:
        >>> free = FreeSlots()
        >>> free.take(), free.take()
        (0, 1)
        >>> free.release(0)
        >>> free.take()
        0
    """

    def __init__(self, used: NDArray[np.int64] | None = None) -> None:
        size = 0 if used is None or not len(used) else int(used.max()) + 1
        self._used = np.zeros(size, dtype=bool)
        if size:
            self._used[used] = True
        # No slot below is free.
        self._lowest = 0

    def take(self) -> int:
        """Mark the lowest free slot as used; returns it."""
        while self._lowest < len(self._used):
            block = self._used[self._lowest : self._lowest + BLOCK]
            first = int(block.argmin())
            if not block[first]:
                self._lowest += first
                break
            self._lowest += len(block)
        if self._lowest >= len(self._used):
            missing = max(self._lowest + 1, 2 * len(self._used)) - len(self._used)
            self._used = np.pad(self._used, (0, missing))
        self._used[self._lowest] = True
        return self._lowest

    def release(self, number: int) -> None:
        """Mark a slot as free."""
        self._used[number] = False
        self._lowest = min(self._lowest, number)


def chosen(keys: NDArray[np.int64], keys_to_keep: Collection[int] | None) -> NDArray[np.int64]:
    """Return the keys that are among those to keep; None: all."""
    if keys_to_keep is None:
        return keys
    if isinstance(keys_to_keep, range) and keys_to_keep.step == 1:
        return keys[(keys >= keys_to_keep.start) & (keys < keys_to_keep.stop)]
    return keys[np.isin(keys, np.fromiter(keys_to_keep, dtype=np.int64, count=len(keys_to_keep)))]
