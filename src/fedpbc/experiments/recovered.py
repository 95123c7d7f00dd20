"""How much of what failing links cost FedAvg an algorithm gets back.

recovered = (accuracy − FedAvg's) / (ceiling − FedAvg's), where the ceiling is the same training
with every link up: 0 for FedAvg, 1 for an algorithm that loses nothing by its links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedpbc.experiments.intervals import Interval, ratio_interval
from fedpbc.experiments.spread import LARGEST, mean_of

__all__ = ["NOT_ABOVE", "Recovered", "recovered"]

NOT_ABOVE = "the ceiling is not above fedavg by more than the noise"


@dataclass(frozen=True)
class Recovered:
    """A share of what links cost; below 0 or above 1 where an algorithm loses or gains more.

    Attributes:
        value: None where it is undefined.
        interval: Fieller's, at 95 %; None for one seed, and where the value is so by definition.
        seeds: those that the algorithm, FedAvg and the ceiling all finished.
        why_undefined: the reason; empty where it is defined.
    """

    value: float | None
    interval: Interval | None
    seeds: tuple[int, ...]
    why_undefined: str = ""


def recovered(
    seeds: Sequence[int], gains: Sequence[float], costs: Sequence[float], *, exact: bool = False
) -> Recovered:
    """The share that is recovered, from the differences to FedAvg by seed.

    Args:
        gains: the algorithm's differences to FedAvg.
        costs: the ceiling's differences to FedAvg.
        exact: whether the share is 0 or 1 by definition and needs no interval.

    Example:
        >>> half = recovered([0, 1, 2], [0.04, 0.05, 0.06], [0.09, 0.10, 0.11])
        >>> f"{half.value:.2f} ({half.interval.low:.2f} to {half.interval.high:.2f})"
        '0.50 (0.33 to 0.60)'
        >>> recovered([0, 1], [0.04, 0.05], [-0.01, 0.02]).why_undefined
        'the ceiling is not above fedavg by more than the noise'
    """
    shared = tuple(seeds)
    if not shared:
        return Recovered(None, None, (), "no seed was finished by fedavg, the ceiling and it")
    interval = ratio_interval(gains, costs)
    gain, cost = mean_of(gains), mean_of(costs)
    # One seed says nothing about noise: the share is shown, without an interval.
    defined = cost > 0 if len(shared) == 1 else interval is not None
    if not defined:
        return Recovered(None, None, shared, NOT_ABOVE)
    value = min(max(gain / cost, -LARGEST), LARGEST)
    return Recovered(value, None if exact else interval, shared)
