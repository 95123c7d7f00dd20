"""Do clients come and go together? Their correlation, and how the number up per round spreads.

The mean correlation of all pairs is that of a sum: with standardised links z_i and n clients it is
(mean of (Σ z_i)² − n) / (n (n − 1)), so no pair is looked at.

The test of independence rotates each client's rounds by a random number. That keeps the memory and
the share of every client, and makes clients independent.

That cannot tell a common cause from a common time course (a night, a drift). So the correlation is
also computed on what is left after each client's share of the course, a moving average of clients
that are up, was taken away. The course is itself a matter of chance, and would make what is left of
any two clients correlated. So clients are split into four groups; from each of two clients in
different groups, the course of one of the other two groups is subtracted. The test rotates one of
the two groups against the other, by every number of rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from fedpbc.randomness import generator
from fedpbc.theory.arguments import Floats

__all__ = ["ClientCorrelation", "client_correlation", "mean_correlation"]

DRAWS = 499
WORK = 1 << 28
"""Links that are rotated in all draws together, at most."""
MOST_CLIENTS = 500
FEWEST_CLIENTS = 20
"""Those that are rotated however many rounds there are."""
COURSES = 50
"""The moving average spans one part in so many of the log, but at least SHORTEST rounds."""
SHORTEST = 10
GROUPS = 4


@dataclass(frozen=True)
class ClientCorrelation:
    """How clients' links go together.

    Attributes:
        clients: that the correlations and tests are computed from; those always up or always down
            are not among them.
        plain: the mean correlation of two clients in the same round.
        plain_p: of the test that clients are independent.
        beyond_course: the same without the common time course; None with fewer than 8 clients.
        beyond_course_p: of the test that there is no more than a common time course.
        course_rounds: that the moving average spans.
        overdispersion: the variance of the number up per round, by that of independent clients.
    """

    clients: int
    plain: float | None
    plain_p: float | None
    beyond_course: float | None
    beyond_course_p: float | None
    course_rounds: int
    overdispersion: float | None


def client_correlation(
    counts: NDArray[np.int64],
    shares: Floats,
    block: NDArray[np.bool_],
    *,
    period: float | None = None,
    seed: int = 0,
) -> ClientCorrelation:
    """The correlation of clients.

    ``counts`` and ``shares`` are of all clients, by round and by client; ``block`` are some of
    them, rounds x clients. A known ``period`` of the course, in rounds, shortens the average.
    """
    rounds = len(block)
    variance = float((shares * (1 - shares)).sum())
    width = max(SHORTEST, rounds // COURSES)
    if period is not None:
        width = max(4, min(width, round(period / 4)))
    availability = block.mean(axis=0)
    block = block[:, (availability > 0) & (availability < 1)]
    limit = max(FEWEST_CLIENTS, min(MOST_CLIENTS, WORK // (DRAWS * rounds)))
    block = block[:, :limit]
    overdispersion = float(counts.var()) / variance if variance > 0 else None
    if block.shape[1] < 2:
        return ClientCorrelation(block.shape[1], None, None, None, None, width, overdispersion)
    plain, plain_p = _independence(np.ascontiguousarray(block.T, dtype=np.float32), seed)
    beyond, beyond_p = _beyond_course(block, width)
    return ClientCorrelation(
        block.shape[1], plain, plain_p, beyond, beyond_p, width, overdispersion
    )


def mean_correlation(links: NDArray[np.generic]) -> float:
    """The mean correlation of all pairs of clients, clients x rounds, none of them constant.

    Example:
        >>> mean_correlation(np.array([[0, 1, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1]]))
        0.3333333333333333
    """
    links = links.astype(np.float64)
    scaled = (links - links.mean(axis=1, keepdims=True)) / links.std(axis=1, keepdims=True)
    return _of_sum(scaled.sum(axis=0), len(links))


def _of_sum(total: NDArray[np.generic], clients: int) -> float:
    return (float(np.square(total.astype(np.float64)).mean()) - clients) / (clients * (clients - 1))


def _independence(links: NDArray[np.float32], seed: int) -> tuple[float, float]:
    """The mean correlation, and the share of rotations that have at least as large a one."""
    clients, rounds = links.shape
    scaled = links - links.mean(axis=1, keepdims=True)
    scaled /= links.std(axis=1, keepdims=True)
    observed = _of_sum(scaled.sum(axis=0, dtype=np.float64), clients)
    at_least = 1
    for k in range(DRAWS):
        draw = generator(seed, "rotation of clients", k)
        shifts = draw.integers(rounds, size=(clients, 1)).ravel()
        total = np.zeros(rounds)
        for row, shift in zip(scaled, shifts.tolist(), strict=True):
            total[: rounds - shift] += row[shift:]
            total[rounds - shift :] += row[:shift]
        at_least += _of_sum(total, clients) >= observed - 1e-12
    return observed, at_least / (DRAWS + 1)


def _beyond_course(block: NDArray[np.bool_], width: int) -> tuple[float, float] | tuple[None, None]:
    """The mean correlation of clients of different groups without the course, and its p value."""
    rounds, clients = block.shape
    if clients < 2 * GROUPS:
        return None, None
    share = block.mean(axis=0, dtype=np.float64)
    deviation = np.sqrt(share * (1 - share))
    groups = [np.arange(k, clients, GROUPS) for k in range(GROUPS)]
    courses, totals, slopes = [], [], []
    for group in groups:
        up = block[:, group].mean(axis=1, dtype=np.float64)
        courses.append(_around(up, width) / up.mean())
        totals.append((block[:, group] / deviation[group]).sum(axis=1))
        slopes.append(float((share[group] / deviation[group]).sum()))
    # Of each pair, one client is of group 0 or 2 and the other of group 1 or 3: the course of the
    # other group on its side is subtracted, so that all products are rotated the same way.
    products, pairs = np.zeros(rounds), 0
    for a, of_a in ((0, 2), (2, 0)):
        for b, of_b in ((1, 3), (3, 1)):
            left_a = totals[a] - slopes[a] * courses[of_a]
            left_b = totals[b] - slopes[b] * courses[of_b]
            spectrum = scipy.fft.rfft(left_a - left_a.mean()).conj() * scipy.fft.rfft(
                left_b - left_b.mean()
            )
            # Entry k: the product if b is rotated by k rounds.
            products += scipy.fft.irfft(spectrum, rounds)
            pairs += len(groups[a]) * len(groups[b])
    correlations = products / (rounds * pairs)
    observed = float(correlations[0])
    return observed, float((correlations >= observed - 1e-12).mean())


def _around(values: Floats, width: int) -> Floats:
    """The mean of the rounds around each one, without itself: it must not explain itself."""
    half = math.ceil(width / 2)
    totals = np.concatenate([[0.0], values.cumsum()])
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    means: Floats = (totals[high] - totals[low] - values) / np.maximum(high - low - 1, 1)
    return means
