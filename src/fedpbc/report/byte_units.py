"""Bytes that were sent, in decimal units: one for a whole column, so that numbers compare."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["ByteUnit", "common_unit", "with_unit"]

NAMES = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
MAX_DECIMALS = 3


@dataclass(frozen=True)
class ByteUnit:
    """A unit, and the number of decimals that its numbers need.

    Example:
        >>> ByteUnit("MB", 10**6, 1).shown(12_345_678), ByteUnit("MB", 10**6, 1).shown(None)
        ('12.3', '–')
    """

    name: str
    size: int
    decimals: int

    def shown(self, count: float | None) -> str:
        """A number of bytes in this unit, without its name."""
        return "–" if count is None else f"{count / self.size:,.{self.decimals}f}"


def common_unit(counts: Iterable[float | None]) -> ByteUnit:
    """The unit in which the largest number is below 1000, and the least has two digits.

    Example:
        >>> common_unit([12_300_000, 940_000, None])
        ByteUnit(name='MB', size=1000000, decimals=2)
    """
    positive = [count for count in counts if count is not None and count > 0]
    if not positive:
        return ByteUnit("MB", 10**6, 0)
    power = min(max(_magnitude(max(positive)) // 3, 0), len(NAMES) - 1)
    decimals = 1 - _magnitude(min(positive) / 1000**power)
    return ByteUnit(NAMES[power], 1000**power, min(max(decimals, 0), MAX_DECIMALS if power else 0))


def with_unit(count: float) -> str:
    """A number of bytes with its own unit.

    Example:
        >>> with_unit(83_500), with_unit(8)
        ('83.5 kB', '8 B')
    """
    # Rounded first: 999,999 bytes are 1 MB.
    rounded = float(f"{count:.3g}")
    power = min(max(_magnitude(rounded) // 3, 0), len(NAMES) - 1) if rounded > 0 else 0
    return f"{rounded / 1000**power:.3g} {NAMES[power]}"


def _magnitude(number: float) -> int:
    """The power of ten of the first digit."""
    return math.floor(math.log10(number))
