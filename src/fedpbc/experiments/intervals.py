"""Confidence intervals from one value per seed.

A seed draws links, partition, first model and batches; the values of different seeds are
independent. Nothing else is assumed but that their mean is roughly normal, which the mean over the
last evaluations on thousands of test samples is. docs/statistics.md says what is not covered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from scipy.special import stdtrit

from fedpbc.experiments.spread import LARGEST, Spread, mean_of

__all__ = [
    "LEVEL",
    "Interval",
    "ratio_interval",
    "score_interval",
    "seeds_to_tell",
    "t_interval",
    "t_quantile",
]

LEVEL = 0.95
POWER = 0.8
"""How likely a number of seeds should be to show a difference: the usual value for planning."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval at the level :data:`LEVEL`, both ends included.

    Example:
        >>> 0.0 in Interval(-0.1, 0.3), 0.5 in Interval(-0.1, 0.3)
        (True, False)
    """

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def negated(self) -> Interval:
        """The interval of the negative."""
        return Interval(-self.high, -self.low)


@cache
def t_quantile(seeds: int) -> float:
    """The two-sided quantile of Student's t for a mean over this many seeds.

    Example:
        >>> [round(t_quantile(n), 3) for n in (2, 3, 5)]
        [12.706, 4.303, 2.776]
    """
    return float(stdtrit(seeds - 1, (1 + LEVEL) / 2))


def t_interval(values: Sequence[float]) -> Interval | None:
    """The interval of the mean; None for fewer than two values, which say nothing about noise.

    Example:
        >>> interval = t_interval([0.01, 0.02, 0.03])
        >>> round(interval.low, 4), round(interval.high, 4)  # 0.02 ± 4.303 × 0.01/√3
        (-0.0048, 0.0448)
        >>> t_interval([0.02]) is None
        True
    """
    if len(values) < 2:
        return None
    spread = Spread.of(values)
    half = t_quantile(len(values)) * (spread.deviation / math.sqrt(len(values)))
    return Interval(max(spread.mean - half, -LARGEST), min(spread.mean + half, LARGEST))


def score_interval(values: Sequence[float], *, has_classes: bool) -> Interval | None:
    """The interval of a mean score; that of an accuracy ends at 0 and 1.

    With two or three seeds Student's reaches beyond. Nothing lies there, so what is cut off takes
    nothing from the coverage.

    Example:
        >>> interval = score_interval([0.96, 0.98], has_classes=True)
        >>> round(interval.low, 3), interval.high
        (0.843, 1.0)
    """
    interval = t_interval(values)
    if interval is None or not has_classes:
        return interval
    return Interval(max(interval.low, 0.0), min(interval.high, 1.0))


def seeds_to_tell(mean: float, deviation: float, most: int) -> int | None:
    """The number of seeds whose interval will exclude 0 with probability :data:`POWER`.

    The usual plan of a paired t test: the smallest n with
    \\|mean\\| ≥ (t(97.5 %) + t(80 %)) × deviation/√n. It takes the mean and the deviation that were
    seen for the true ones, so it is a guide, not a promise. None if more than ``most``.

    Example:
        >>> seeds_to_tell(0.02, 0.02, 100), seeds_to_tell(0.01, 0.02, 100)
        (10, 34)
        >>> seeds_to_tell(0.001, 0.02, 100) is None
        True
    """
    for seeds in range(2, most + 1):
        quantiles = t_quantile(seeds) + float(stdtrit(seeds - 1, POWER))
        if abs(mean) >= quantiles * deviation / math.sqrt(seeds):
            return seeds
    return None


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float]) -> Interval | None:
    """Fieller's interval of mean(numerators)/mean(denominators), paired by seed.

    It has those ratios r for which the t-interval of numerators − r × denominators includes 0.
    Unlike the delta method it is exact for normal values however few seeds there are, and unlike
    a mean of ratios by seed it is not ruined by a seed whose denominator happens to be near 0.
    The bootstrap has nothing to draw from with three seeds.

    None where the denominator's own interval is not above 0: the set of these ratios is then
    unbounded, which says that the ratio has no meaning.

    Example:
        >>> interval = ratio_interval([1.0, 2.0, 3.0], [4.0, 4.0, 4.0])
        >>> round(interval.low, 3), round(interval.high, 3)  # the t-interval of the mean 2, by 4
        (-0.121, 1.121)
        >>> ratio_interval([1.0, 2.0], [-1.0, 3.0]) is None
        True
    """
    below = t_interval(denominators)
    if below is None or not below.low > 0:
        return None
    # In units of the mean denominator, so that no square is out of range.
    unit = mean_of(denominators)
    n = [min(max(value / unit, -1e150), 1e150) for value in numerators]
    d = [value / unit for value in denominators]
    mean_n, mean_d = mean_of(n), mean_of(d)
    # The variances and the covariance of the two means, times the squared quantile.
    k = t_quantile(len(n)) ** 2 / (len(n) * (len(n) - 1))
    v_nn = k * math.fsum((x - mean_n) ** 2 for x in n)
    v_dd = k * math.fsum((y - mean_d) ** 2 for y in d)
    v_nd = k * math.fsum((x - mean_n) * (y - mean_d) for x, y in zip(n, d, strict=True))
    # (mean_n − r mean_d)² ≤ v_nn − 2 r v_nd + r² v_dd, solved for r.
    a, b, c = mean_d**2 - v_dd, mean_n * mean_d - v_nd, mean_n**2 - v_nn
    if a <= 0:  # By rounding alone: the denominator's interval is above 0.
        return None
    root = math.sqrt(max(b * b - a * c, 0.0))
    return Interval((b - root) / a, (b + root) / a)
