"""Statistics of links, from a timetable of who is up in which round."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpbc.errors import InputError
from fedpbc.links import Timetable
from fedpbc.options import check_kind
from fedpbc.randomness import generator
from fedpbc.theory.arguments import Floats, array_of, number
from fedpbc.theory.client_correlation import ClientCorrelation, client_correlation
from fedpbc.theory.daily_cycle import DailyCycle, daily_cycle
from fedpbc.theory.run_lengths import RunLengths, run_lengths
from fedpbc.theory.stationarity import LEVEL, ClientTests, ShareTest, client_tests, share_test

__all__ = ["DataDependence", "LinkStatistics", "RoundDependence", "link_statistics"]

WINDOWS = 100
"""Of the curve of clients up over time, at most."""
CELLS = 20_000_000
"""Rounds × clients of the sample that outages and dependence are computed from."""
TESTED = 100
"""Clients that are tested one by one, at most."""
TESTED_CELLS = 2_000_000
FEWEST_TESTED = 20
"""Of long logs, clients with so many rounds together are tested, but not fewer than these."""
SPECTRUM_CLIENTS = 500
"""Clients whose mean periodogram stands for the memory of links, at most."""
DRAWS = 499
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True)
class RoundDependence:
    """Whether a link remembers the round before.

    Attributes:
        lag1: the autocorrelation of a client's links from one round to the next.
        p: of the test that rounds are independent: rounds are put in random order, whole, so that
            clients may depend on each other.
        stretch: how many times as long outages are as those of independent links with these shares.
    """

    lag1: float
    p: float
    stretch: float | None


@dataclass(frozen=True)
class DataDependence:
    """Whether clients that are up more often hold other classes.

    Attributes:
        total_variation: between the mean class shares of clients and those weighted by how often
            the clients are up.
        p: of the test that who is up how often has nothing to do with classes.
        over: the class that gains most by the weights.
        under: the one that loses most.
        gain: by how much, in shares.
        loss: by how much, in shares.
    """

    total_variation: float
    p: float
    over: int
    under: int
    gain: float
    loss: float


@dataclass(frozen=True)
class LinkStatistics:
    """Statistics of a timetable; p values are None where there is too little to test.

    Attributes:
        rounds: T.
        clients: m.
        sampled: clients that outages and dependence over rounds were computed from.
        round_seconds: length of a round, if known.
        shares: each client's share of rounds up.
        never: clients that were never up.
        empty_rounds: rounds in which nobody was up.
        window_rounds: length of a window of the curve.
        curve: the mean share of clients up in each window of the log.
        outages: how long links stay down.
        contacts: how long they stay up.
        share_test: whether the share of clients up stays the same; None: too short, or constant.
        client_tests: whether each client's share does.
        rounds_dependence: whether links remember; None if no sampled link ever changes.
        correlation: between clients.
        day: the daily cycle; None if the length of a round is unknown or the log too short.
        data: the dependence on classes, if these are known.
    """

    rounds: int
    clients: int
    sampled: int
    round_seconds: float | None
    shares: Floats
    never: int
    empty_rounds: int
    window_rounds: int
    curve: Floats
    outages: RunLengths
    contacts: RunLengths
    share_test: ShareTest | None
    client_tests: ClientTests
    round_dependence: RoundDependence | None
    correlation: ClientCorrelation
    day: DailyCycle | None
    data: DataDependence | None

    @cached_property
    def quantiles(self) -> dict[float, float]:
        """Quantiles over clients of the share of rounds up."""
        return dict(zip(QUANTILES, np.quantile(self.shares, QUANTILES).tolist(), strict=True))

    @property
    def constant(self) -> bool:
        """Whether every link is in the same state in all rounds."""
        return bool(np.isin(self.shares, (0, 1)).all())

    @property
    def stationarity_p(self) -> float | None:
        """Of all tests together, by Bonferroni's rule: the smallest p times their number.

        The share of clients up, each client's, and the hour of the day; None if none could be done.
        """
        tests = (
            None if self.share_test is None else self.share_test.p,
            self.client_tests.combined,
            None if self.day is None else self.day.p,
        )
        done = [p for p in tests if p is not None]
        return min(1.0, min(done) * len(done)) if done else None

    @property
    def stationary(self) -> bool | None:
        """Whether a change over time could not be shown at 5 %; None if it could not be tested."""
        p = self.stationarity_p
        return None if p is None else p > LEVEL

    def as_dict(self) -> dict[str, Any]:
        """For JSON: values that are missing or not finite are None."""
        values: dict[str, Any] = _plain(self)
        return {
            **values,
            "share_quantiles": {f"{q:g}": v for q, v in self.quantiles.items()},
            "stationarity_p": self.stationarity_p,
            "stationary": self.stationary,
        }


def link_statistics(
    timetable: Timetable,
    *,
    round_seconds: float | None = None,
    class_shares: ArrayLike | None = None,
    seed: int = 0,
) -> LinkStatistics:
    """Compute the statistics of a timetable.

    ``class_shares`` are the shares of classes in each client's data, clients x classes. ``seed`` is
    of the tests and of the clients that are sampled where they are too many.

    Example:
        >>> from fedpbc.links import from_table
        >>> statistics = link_statistics(from_table([[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0]]))
        >>> statistics.shares.tolist(), statistics.never, statistics.outages.longest
        ([0.75, 0.25, 0.0], 1, 4)
    """
    check_kind("timetable", timetable, Timetable, "a Timetable")
    if round_seconds is not None:
        round_seconds = number("round_seconds", round_seconds, 0, above=True)
    rounds, clients = timetable.rounds, timetable.clients
    shares, counts = timetable.shares(), timetable.active_counts()
    limit = max(TESTED, CELLS // rounds)
    sample = np.arange(clients)
    if clients > limit:
        sample = np.sort(generator(seed, "clients sampled").permutation(clients)[:limit])
    block = timetable.columns(sample)
    # In random order, so that the first ones are a sample, too.
    some = generator(seed, "clients tested").permutation(block.shape[1])
    spectrum_block = block[:, some[: max(TESTED, min(SPECTRUM_CLIENTS, CELLS // rounds // 4))]]
    tested = min(TESTED, max(FEWEST_TESTED, TESTED_CELLS // rounds))
    of_share = share_test(counts, spectrum_block, clients=clients, seed=seed)
    period = None
    if of_share is not None and of_share.p <= LEVEL and of_share.cycles > 1:
        period = of_share.period
    edges = np.linspace(0, rounds, min(WINDOWS, rounds) + 1).astype(np.int64)
    curve = np.add.reduceat(counts, edges[:-1]) / np.diff(edges) / clients
    return LinkStatistics(
        rounds=rounds,
        clients=clients,
        sampled=block.shape[1],
        round_seconds=round_seconds,
        shares=shares,
        never=int((shares == 0).sum()),
        empty_rounds=int((counts == 0).sum()),
        window_rounds=math.ceil(rounds / (len(edges) - 1)),
        curve=curve,
        outages=run_lengths(block, state=False),
        contacts=run_lengths(block, state=True),
        share_test=of_share,
        client_tests=client_tests(block[:, some[:tested]], seed),
        round_dependence=_round_dependence(spectrum_block, seed),
        correlation=client_correlation(counts, shares, block[:, some], period=period, seed=seed),
        day=None
        if round_seconds is None
        else daily_cycle(counts, clients, spectrum_block, round_seconds, seed),
        data=None if class_shares is None else _data_dependence(shares, class_shares, seed),
    )


def _round_dependence(block: NDArray[np.bool_], seed: int) -> RoundDependence | None:
    rounds = len(block)
    changes = _changes(np.packbits(block, axis=1))
    if not changes:
        return None
    links = block - block.mean(axis=0)
    lag1 = float((links[1:] * links[:-1]).sum() / np.square(links).sum())
    packed = np.packbits(block, axis=1)
    fewer = 1
    for k in range(DRAWS):
        order = generator(seed, "order of rounds", k).permutation(rounds)
        fewer += _changes(packed[order]) <= changes
    # Two-sided: links may also avoid the state they were in.
    low = fewer / (DRAWS + 1)
    share = block.mean(axis=0)
    # An outage begins where a link goes down: of independent ones, in each round with s(1 − s).
    begin = int((block[:-1] & ~block[1:]).sum())
    expected = float((share * (1 - share)).sum()) * rounds  # (T − 1) rounds, but exchangeable
    return RoundDependence(
        lag1, min(1.0, 2 * min(low, 1 - low + 1 / (DRAWS + 1))), expected / begin if begin else None
    )


def _changes(packed: NDArray[np.uint8]) -> int:
    return int(np.count_nonzero(np.unpackbits(packed[1:] ^ packed[:-1])))


def _data_dependence(shares: Floats, class_shares: ArrayLike, seed: int) -> DataDependence | None:
    classes: Floats = array_of("class_shares", class_shares).astype(np.float64)
    if classes.ndim != 2 or len(classes) != len(shares) or not classes.size:
        raise InputError(
            f"class_shares has shape {classes.shape}, but should have a row of shares for each of "
            f"the {len(shares)} clients"
        )
    if not shares.any():
        return None
    overall = classes.mean(axis=0)
    weights = shares / shares.sum()

    def distance(order: NDArray[np.int64] | slice) -> float:
        return float(np.abs(weights[order] @ classes - overall).sum() / 2)

    observed = distance(slice(None))
    draws = (generator(seed, "order of clients", k) for k in range(DRAWS))
    larger = sum(distance(draw.permutation(len(shares))) >= observed - 1e-12 for draw in draws)
    change = weights @ classes - overall
    over, under = int(change.argmax()), int(change.argmin())
    return DataDependence(
        observed,
        (1 + larger) / (DRAWS + 1),
        over,
        under,
        float(change[over]),
        float(-change[under]),
    )


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, np.ndarray | tuple):
        return [
            _plain(item) for item in (value.tolist() if isinstance(value, np.ndarray) else value)
        ]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
