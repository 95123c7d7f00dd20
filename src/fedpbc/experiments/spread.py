"""The mean and the standard deviation of one value per seed."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LARGEST", "Spread", "mean_of"]

LARGEST = sys.float_info.max
HUGE = 1e150


def mean_of(values: Sequence[float]) -> float:
    """The mean, also of numbers whose sum is beyond the range of floats.

    Example:
        >>> mean_of([1.0, 2.0]), mean_of([1.5e308, 1.5e308])
        (1.5, 1.5e+308)
    """
    try:
        return statistics.fmean(values)
    except OverflowError:
        return statistics.fmean(value / len(values) for value in values) * len(values)


@dataclass(frozen=True)
class Spread:
    """A mean and a standard deviation over seeds (0 for one seed, and then not shown).

    Example:
        >>> str(Spread.of([0.5, 0.7]))
        '60.0 ± 14.1'
        >>> str(Spread.of([0.5]))
        '50.0'
    """

    mean: float
    deviation: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of one value per seed."""
        deviation = 0.0
        if len(values) > 1:
            # Of numbers near the largest that there is, the squares would overflow.
            scale = max(map(abs, values)) if max(map(abs, values)) > HUGE else 1.0
            deviation = min(scale * statistics.stdev(v / scale for v in values), LARGEST)
        return cls(mean_of(values), deviation, len(values))

    def __str__(self) -> str:
        mean = f"{100 * self.mean:.1f}"
        return f"{mean} ± {100 * self.deviation:.1f}" if self.seeds > 1 else mean
