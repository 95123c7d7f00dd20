"""Does the hour of the day matter? For logs that span at least two days.

A sine of 24 hours and a straight line are fitted to the share of clients that are up. Two tests
must both reject. One compares the power at one cycle per day with that of other frequencies,
relative to single clients, as in :mod:`fedpbc.theory.stationarity`, so long outages are not
mistaken for nights. The other asks whether the days agree on the hour, so one event that hit many
is not: a sine and a line of its own are fitted to each day, and their phases are compared with
random ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpbc.randomness import generator
from fedpbc.theory.arguments import Floats
from fedpbc.theory.stationarity import GAP, INDEPENDENT, NEIGHBOURS, hann, periodogram, tail

__all__ = ["DAY", "DailyCycle", "daily_cycle"]

DAY = 86400.0
HOURS = 24
FEWEST_DAYS = 2
PHASES = 9999
"""Draws of random hours."""
LONGEST_ROUND = DAY / 8
"""Seconds: rounds that are longer show no hours."""


@dataclass(frozen=True)
class DailyCycle:
    """The share of clients up, by hour; hour 0 is the start of the log.

    Attributes:
        days: that the log spans.
        amplitude: of the fitted sine, in shares of the clients.
        p: of the test that there is none.
        profile: the mean share in each hour; NaN where no round ends.
        most: the hour with the most clients up.
        fewest: that with the fewest.
    """

    days: float
    amplitude: float
    p: float
    profile: Floats
    most: int
    fewest: int


def daily_cycle(
    counts: NDArray[np.int64],
    clients: int,
    block: NDArray[np.bool_],
    round_seconds: float,
    seed: int = 0,
) -> DailyCycle | None:
    """The daily cycle of the number up per round; None for a log that is too short to tell."""
    rounds = len(counts)
    days = rounds * round_seconds / DAY
    if days < FEWEST_DAYS - 1e-9 or round_seconds > LONGEST_ROUND:
        return None
    share = counts / clients
    time = np.arange(1.0, rounds + 1) * float(round_seconds)
    angle = 2 * np.pi * time / DAY
    columns = np.stack([np.ones(rounds), time, np.cos(angle), np.sin(angle)], axis=1)
    # In units of the log's length: seconds squared would spoil the fit.
    columns[:, 1] = np.linspace(-1, 1, rounds)
    fit, *_ = np.linalg.lstsq(columns, share, rcond=None)
    hour = (time % DAY // 3600).astype(np.int64)
    sizes = np.bincount(hour, minlength=HOURS)
    with np.errstate(invalid="ignore"):
        profile = np.bincount(hour, weights=share, minlength=HOURS) / np.where(sizes, sizes, np.nan)
    trend = columns[:, :2] @ fit[:2]
    return DailyCycle(
        days=days,
        amplitude=float(np.hypot(fit[2], fit[3])),
        p=max(_power_p(share - trend, block, days), _phase_p(share, time, seed)),
        profile=profile,
        most=int(np.nanargmax(profile)),
        fewest=int(np.nanargmin(profile)),
    )


def _phase_p(share: Floats, time: Floats, seed: int) -> float:
    """How likely days with random hours are to agree as much as these."""
    phases = []
    # A round that ends with a day belongs to it.
    day = np.ceil(time / DAY - 1e-9).astype(np.int64) - 1
    for k in range(int(time[-1] / DAY + 1e-9)):
        hours = (time[day == k] % DAY) / DAY
        local = (time[day == k] - k * DAY) / DAY
        angle = 2 * np.pi * hours
        columns = np.stack([np.ones(len(local)), local, np.cos(angle), np.sin(angle)], axis=1)
        fit, *_ = np.linalg.lstsq(columns, share[day == k], rcond=None)
        # A line takes more from the sine than from the cosine. Scaled, noise has every phase alike.
        spread = np.linalg.pinv(columns.T @ columns)[2:, 2:]
        cosine, sine = np.linalg.solve(np.linalg.cholesky(spread), fit[2:])
        phases.append(complex(cosine, sine))
    lengths = np.abs(phases)
    turns = generator(seed, "hours of days").random((PHASES, len(phases)))
    drawn = np.abs((lengths * np.exp(2j * np.pi * turns)).sum(axis=1))
    return float((1 + (drawn >= abs(sum(phases)) - 1e-12).sum()) / (PHASES + 1))


def _power_p(series: Floats, block: NDArray[np.bool_], days: float) -> float:
    """Compare the power at ``days`` cycles per log with that at whole numbers of cycles."""
    if not np.ptp(series):
        return 1.0
    taper = hann(len(series))
    wave = taper * np.exp(-2j * np.pi * days * np.arange(len(series)) / len(series))
    by_client = np.ascontiguousarray(block.T, dtype=np.float64)
    by_client -= by_client.mean(axis=1, keepdims=True)
    power = abs(np.dot(series - series.mean(), wave)) ** 2
    single = float((np.abs(by_client @ wave) ** 2).sum())
    frequencies = np.arange(1, len(series) // 2 + 1)
    # The straight line was taken from the first ordinate; the peak has its neighbours.
    others = np.flatnonzero((frequencies > 1) & (np.abs(frequencies - days) >= GAP))
    others = others[np.argsort(np.abs(frequencies[others] - days), kind="stable")]
    others = others[: 2 * NEIGHBOURS]
    spectrum = periodogram(series, tapered=True)[others] / np.maximum(
        periodogram(by_client, tapered=True).sum(axis=0)[others], 1e-9
    )
    ratio = power / max(single, 1e-9) / max(float(spectrum.mean()), 1e-300)
    return float(tail(ratio, INDEPENDENT * len(others)))
