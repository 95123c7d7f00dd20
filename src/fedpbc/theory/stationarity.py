"""Do links stay the same over the rounds? Two tests that hold for links with memory.

Each client: its outages and contacts are put in random order, those that the log cuts off stay in
place. If the client's links are stationary, with independent outages and contacts of any
distribution (constant p, Markov and semi-Markov links), every order is equally likely, so the p
value is exact, however long outages last and however few they are. Two statistics are compared
with their values in the other orders: the largest deviation from a constant share (drifts, steps)
and the largest peak of the periodogram (cycles); the smaller p counts, and is compared in turn.

The overall share: its periodogram, divided by the mean one of single clients, is flat if nothing
happens to clients together but by chance, whatever the memory of their links. Each ordinate is
compared with its neighbours: their ratio follows an F distribution, corrected for the number of
ordinates by Bonferroni's rule. Half of the level is for drifts, in the first two ordinates, the
other for cycles, in all of them. Links whose clients fail together at random pass, if the log spans
many outages of each group.

With few clients, and outages that are long compared with the log, the mean periodogram is too
uncertain where it is steepest, at the first ordinates. So a drift must also stand out when each
client's rounds are rotated by a random number. Rotations keep the power of every client at every
ordinate, which need not be estimated then. They make clients independent, so by themselves they
would reject clients that fail together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from fedpbc.randomness import generator
from fedpbc.theory.arguments import Floats
from fedpbc.theory.blas import one_blas_thread
from fedpbc.theory.run_lengths import Integers, runs_of

__all__ = [
    "LEVEL",
    "ClientTests",
    "ShareTest",
    "client_tests",
    "hann",
    "peak_p_values",
    "periodogram",
    "relative_spectrum",
    "share_test",
    "tail",
]


DRAWS = 499
"""Random orders of a client's outages."""
WINDOWS = 64
"""In which a client's share is compared with a constant one."""
CYCLE_ROUNDS = 8192
"""Rounds, the first, in which a client's cycles are searched for."""
CELLS = 1 << 22
"""Of the tables of random orders that are held at once."""
NEIGHBOURS = 20
"""On each side, of an ordinate of the periodogram."""
GAP = 3
"""Neighbours on each side that may belong to the same peak."""
DRIFT = 2
"""Ordinates that a drift shows in."""
DRIFT_NEIGHBOURS = 8
"""Ordinates after those that they are compared with."""
ROTATIONS = 9999
"""Of all clients, that a drift is compared with."""
ROTATED = 1000
"""Rotations that are held at once."""
INDEPENDENT = 18 / 35
"""Of the ordinates of a periodogram with Hann's taper, so many count: the square of its second
moment over its fourth, (3/8)² / (35/128), as adjacent ones depend on each other."""
SMOOTHED = 64
"""Ordinates of single clients that make up one of their mean periodogram, at least."""
FEWEST_ROUNDS = 20
FEWEST_ORDERS = 100
"""Of a client's outages, for a test."""
QUANTILES = (0.1, 0.5)
"""Shares of the clients that have to change before the links as a whole do."""
LEVEL = 0.05


@dataclass(frozen=True)
class ClientTests:
    """The tests of single clients.

    Attributes:
        p: of each client that was tested; NaN for those with too few outages.
        combined: for all of them, whatever their dependence: rejects if too many have small p
            (Rüger's inequality for the 10 % and 50 % quantiles, the smaller one doubled).
        changing: how many change by Benjamini and Hochberg's rule at 5 %.
    """

    p: Floats
    combined: float | None
    changing: int

    @property
    def tested(self) -> int:
        """Clients with outages enough."""
        return int(np.isfinite(self.p).sum())


@dataclass(frozen=True)
class ShareTest:
    """The test of the share of all clients.

    ``period`` is that of the largest peak, in rounds; ``cycles`` says how often it fits in the log.
    """

    p: float
    period: float
    cycles: int


def client_tests(block: NDArray[np.bool_], seed: int = 0) -> ClientTests:
    """Test each client of a block, rounds x clients."""
    p = np.array([_client_p(block[:, k], seed, k) for k in range(block.shape[1])])
    tested = np.sort(p[np.isfinite(p)])
    if not len(tested):
        return ClientTests(p, None, 0)
    ranks = sorted({max(1, math.ceil(share * len(tested))) for share in QUANTILES})
    combined = min(len(tested) / k * tested[k - 1] for k in ranks) * len(ranks)
    below = tested <= LEVEL * np.arange(1, len(tested) + 1) / len(tested)
    changing = int(np.flatnonzero(below)[-1]) + 1 if below.any() else 0
    return ClientTests(p, float(min(1.0, combined)), changing)


def _client_p(column: NDArray[np.bool_], seed: int, client: int) -> float:
    _, _, lengths, states = runs_of(column[:, None])
    inner = np.arange(1, len(lengths) - 1)
    up, down = inner[states[inner]], inner[~states[inner]]
    draw = generator(seed, "orders of outages", client)
    if _log_orders(lengths[up]) + _log_orders(lengths[down]) < math.log(FEWEST_ORDERS):
        if min(len(up), len(down)) >= 2 and not np.ptp(lengths[up]) and not np.ptp(lengths[down]):
            return _clockwork_p(lengths, states, draw)
        return math.nan
    rounds, searched = len(column), min(len(column), CYCLE_ROUNDS)
    edges = np.linspace(0, rounds, min(WINDOWS, rounds // 2) + 1).astype(np.int64)
    drifts = np.empty(DRAWS + 1)
    spectra = np.empty((DRAWS + 1, searched // 2))
    step = max(1, CELLS // max(searched, len(lengths)))
    for start in range(0, DRAWS + 1, step):
        count = min(step, DRAWS + 1 - start)
        table = np.tile(lengths, (count, 1))
        for kind in (up, down):
            table[:, kind] = draw.permuted(table[:, kind], axis=1)
        if start == 0:
            table[0] = lengths  # What was observed.
        ends, rounds_up = table.cumsum(axis=1), (table * states).cumsum(axis=1)
        for k in range(count):
            # Between two changes it grows by one in each round, or not at all.
            totals = np.interp(edges, np.append(0, ends[k]), np.append(0, rounds_up[k]))
            drifts[start + k] = np.abs(totals - totals[-1] * (edges / rounds)).max()
        spectra[start : start + count] = periodogram(_series(ends, bool(states[0]), searched))
    # Relative to the mean over all orders, what was observed included: no order is special.
    peaks = (spectra / np.maximum(spectra.mean(axis=0), 1e-12)).max(axis=1)
    smaller = np.minimum(_rank_p(drifts), _rank_p(peaks))
    return float((smaller <= smaller[0]).mean())


def _series(ends: Integers, first: bool, rounds: int) -> NDArray[np.int32]:
    """The first rounds as rows of 0 and 1, from rows of the rounds in which the state changes."""
    changes = np.zeros((len(ends), rounds), dtype=np.int32)
    row, position = np.nonzero(ends < rounds)
    changes[row, ends[row, position]] = 1
    return (changes.cumsum(axis=1, dtype=np.int32) + first) & 1


def periodogram(series: NDArray[np.generic], *, tapered: bool = False) -> Floats:
    """At the frequencies 1, 2, … per log, without the mean.

    Hann's taper keeps the power of a cycle that does not fit into the log in one place.
    """
    values = series.astype(np.float64)
    if tapered:
        values = (values - values.mean(axis=-1, keepdims=True)) * hann(values.shape[-1])
    transform = scipy.fft.rfft(values, axis=-1)[..., 1 : values.shape[-1] // 2 + 1]
    power: Floats = transform.real**2 + transform.imag**2
    return power


def hann(rounds: int) -> Floats:
    """Hann's taper."""
    taper: Floats = np.sin(np.pi * (np.arange(rounds) + 0.5) / rounds) ** 2
    return taper


def _rank_p(values: Floats) -> Floats:
    """The share of values that are at least as large as each."""
    # Equal values may differ by rounding.
    rounded = np.round(values, 9)
    ascending = np.sort(rounded)
    return 1 - np.searchsorted(ascending, rounded) / len(values)


def _log_orders(lengths: Integers) -> float:
    """The logarithm of the number of different orders."""
    _, counts = np.unique(lengths, return_counts=True)
    return math.lgamma(len(lengths) + 1) - sum(math.lgamma(n + 1) for n in counts.tolist())


def _clockwork_p(lengths: Integers, states: NDArray[np.bool_], draw: np.random.Generator) -> float:
    """How likely links without memory are to have outages and contacts of one length each.

    Of a Markov chain with as many changes and as many rounds up, all sequences are equally likely.
    """
    equal = np.ones(DRAWS, dtype=np.bool_)
    for state in (True, False):
        mask = states == state
        total, parts = int(lengths[mask].sum()), int(mask.sum())
        inner = np.arange(1, len(lengths) - 1)
        kept = np.flatnonzero(np.isin(np.flatnonzero(mask), inner))
        for k in range(DRAWS):
            cuts = np.sort(draw.choice(total - 1, parts - 1, replace=False)) + 1
            sizes = np.diff(np.concatenate([[0], cuts, [total]]))[kept]
            equal[k] &= not len(sizes) or not np.ptp(sizes)
    return float((1 + equal.sum()) / (DRAWS + 1))


def share_test(
    counts: Integers,
    block: NDArray[np.bool_],
    *,
    clients: int | None = None,
    seed: int = 0,
) -> ShareTest | None:
    """Test the number of clients up per round; ``block`` are clients, for the memory of links.

    ``clients`` is the number that ``counts`` are of, where ``block`` is a sample of them. None if
    the log is too short, or if the number never changes.
    """
    if len(counts) < FEWEST_ROUNDS or not np.ptp(counts):
        return None
    series = counts.astype(np.float64)
    cycles = peak_p_values(relative_spectrum(series, block))
    # A drift has its power in the first ordinates, and most of it at the ends, which a taper hides.
    # Clients that fail together make low ordinates larger than high ones: only the next few count.
    low = relative_spectrum(series, block, tapered=False)[: DRIFT + DRIFT_NEIGHBOURS]
    drift = tail(low[:DRIFT] / max(float(low[DRIFT:].mean()), 1e-300), len(low) - DRIFT)
    cycle_p = min(1.0, 2 * len(cycles) * float(cycles.min()))
    rotated_p = _rotation_p(counts, block, clients or block.shape[1], seed)
    drift_p = min(1.0, 2 * max(len(drift) * float(drift.min()), rotated_p))
    if drift_p < cycle_p:
        return ShareTest(p=drift_p, period=float(len(series)), cycles=1)
    # Of several peaks, such as a cycle and its harmonics, the one with the most power.
    peaks = cycles <= max(LEVEL / (2 * len(cycles)), float(cycles.min()))
    power = periodogram(series, tapered=True)
    peak = int(np.where(peaks, power, -1).argmax())
    # Between the ordinates, by their power.
    around = np.arange(max(0, peak - 1), min(len(power), peak + 2))
    cycles_per_log = float(np.average(around + 1, weights=power[around]))
    return ShareTest(p=cycle_p, period=len(series) / cycles_per_log, cycles=peak + 1)


def _rotation_p(counts: Integers, block: NDArray[np.bool_], clients: int, seed: int) -> float:
    """How likely rotated clients are to have as much power in an ordinate of drifts."""
    rounds, sampled = block.shape
    ordinates = np.arange(1, DRIFT + 1)
    waves = np.exp(-2j * np.pi * ordinates[:, None] * np.arange(rounds) / rounds)
    transforms = np.empty((DRIFT, sampled), dtype=np.complex128)
    step = max(1, CELLS // rounds)
    for start in range(0, sampled, step):
        transforms[:, start : start + step] = waves @ block[:, start : start + step]
    single = np.maximum((np.abs(transforms) ** 2).sum(axis=1), 1e-9)
    # Relative to independent clients: of all clients, or of as many as were rotated.
    observed = (np.abs(waves @ counts) ** 2 / (single * (clients / sampled))).max()
    at_least = 1
    for start in range(0, ROTATIONS, ROTATED):
        draw = generator(seed, "rotation for drifts", start)
        size = (min(ROTATED, ROTATIONS - start), sampled)
        turns = np.exp(2j * np.pi * draw.integers(rounds, size=size) / rounds)
        with one_blas_thread():
            power = [
                np.abs(turns**k @ row) ** 2
                for k, row in zip(ordinates.tolist(), transforms, strict=True)
            ]
        largest = (np.stack(power, axis=1) / single).max(axis=1)
        at_least += int((largest >= observed * (1 - 1e-9)).sum())
    return at_least / (ROTATIONS + 1)


def relative_spectrum(series: Floats, block: NDArray[np.bool_], *, tapered: bool = True) -> Floats:
    """The periodogram of a series by the mean one of single clients, at 1, 2, … cycles per log."""
    spectrum = periodogram(series, tapered=tapered)
    single = np.zeros(len(spectrum))
    step = max(1, CELLS // len(block))
    for start in range(0, block.shape[1], step):
        links = np.ascontiguousarray(block[:, start : start + step].T)
        single += periodogram(links, tapered=tapered).sum(axis=0)
    # The mean of a few clients is itself a matter of chance: then neighbours help.
    return spectrum / np.maximum(_smoothed(single, math.ceil(SMOOTHED / block.shape[1])), 1e-9)


def _smoothed(values: Floats, width: int) -> Floats:
    half = min(width // 2, len(values) - 1)
    totals = np.concatenate([[0.0], values.cumsum()])
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    means: Floats = (totals[high] - totals[low]) / (high - low)
    return means


def peak_p_values(ratios: Floats) -> Floats:
    """How likely each ordinate is to be as large as it is beside its neighbours, if all are alike.

    ``ratios`` are of a periodogram with a taper. Ordinates of a flat spectrum are exponential. One
    of them by the mean of k independent others follows an F distribution with 2 and 2k degrees of
    freedom: see :func:`tail`.
    """
    count = len(ratios)
    totals = np.concatenate([[0.0], ratios.cumsum()])
    index = np.arange(count)
    width = 2 * (NEIGHBOURS + GAP) + 1
    low = np.clip(index - NEIGHBOURS - GAP, 0, max(0, count - width))
    high = np.minimum(low + width, count)
    near, far = np.maximum(index - GAP, 0), np.minimum(index + GAP + 1, count)
    others = (high - low) - (far - near)
    mean = (totals[high] - totals[low] - totals[far] + totals[near]) / np.maximum(others, 1)
    # Rounding may leave less than nothing.
    relative = ratios / np.maximum(mean, 1e-12 * max(float(ratios.max()), 1e-300))
    independent = np.maximum(others, 1) * INDEPENDENT
    return np.where(others > 0, tail(relative, independent), 1.0)


def tail(ratio: Any, independent: Any) -> Any:
    """P(an exponential number ≥ x times the mean of k others) = (1 + x/k)^-k.

    Example:
        >>> float(tail(3.0, 3))
        0.125
    """
    return (1 + ratio / independent) ** -independent
