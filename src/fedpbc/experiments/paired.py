"""Paired statistics: with the same seed, all algorithms of a comparison train over the same links.

They also share the partition and the first model. So what a seed makes easy or hard is the same
for all, and cancels in the difference of two algorithms with the same seed: its noise is smaller
than that of either. Every algorithm is shown in its best view that a server could deploy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from fedpbc.algorithms import ALGORITHMS
from fedpbc.errors import InputError
from fedpbc.experiments.conditions import FEDAVG
from fedpbc.experiments.intervals import (
    LEVEL,
    Interval,
    score_interval,
    seeds_to_tell,
    t_interval,
    t_quantile,
)
from fedpbc.experiments.recovered import Recovered, recovered
from fedpbc.experiments.spread import LARGEST, mean_of
from fedpbc.options import nearest

__all__ = [
    "Costs",
    "Difference",
    "EntryScores",
    "Paired",
    "PairedRow",
    "Scored",
    "Scores",
    "check_baseline",
    "paired",
]

ROUNDING = 1e-12
"""Relative; differences below it are rounding, and none."""


@dataclass(frozen=True)
class Costs:
    """What the runs of a row cost; None where it was not counted."""

    local_steps: int
    bytes_up: int | None
    bytes_down: int | None
    models_on_server: int | None
    models_on_client: int | None

    @property
    def bytes_sent(self) -> int | None:
        """Up and down together."""
        if self.bytes_up is None or self.bytes_down is None:
            return None
        return self.bytes_up + self.bytes_down


@dataclass(frozen=True)
class EntryScores:
    """One row of a comparison, in its best deployable view.

    Attributes:
        name: the row's name.
        algorithm: the algorithm's name.
        view: the view; None if no run finished or no view is deployable.
        values: by seed, the mean over the last evaluations: the accuracy, or minus the loss.
        costs: of the view; None without one.
        runs: the number of its runs.
        failed: the seeds of those that did not finish.
        diverged: the seeds of those that finished with a loss that has lost all meaning; they have
            no value.
        needs_probabilities: whether the server must know the links' probabilities.
        allowed: whether a verdict may choose it.
        is_ceiling: whether it is FedAvg's training with every link up.
    """

    name: str
    algorithm: str
    view: str | None
    values: Mapping[int, float]
    costs: Costs | None
    runs: int = 0
    failed: Sequence[int] = ()
    diverged: Sequence[int] = ()
    needs_probabilities: bool = False
    allowed: bool = True
    is_ceiling: bool = False


@dataclass(frozen=True)
class Scores:
    """All rows of a comparison; without classes, the values are minus the loss.

    ``tuned``: whether step sizes were chosen for each row.
    """

    entries: Sequence[EntryScores]
    has_classes: bool
    tuned: bool = False

    def find(self, name: str | None) -> EntryScores | None:
        """The row of this name, if it has values."""
        return next((e for e in self.entries if e.name == name and e.values), None)


class Scored(Protocol):
    """What has scores: a :class:`fedpbc.Comparison`."""

    def scores(self, allowed: Callable[[Any], bool] | None = None) -> Scores:
        """One value per seed of each row."""


@dataclass(frozen=True)
class Difference:
    """A paired difference to a baseline, over the seeds that both finished; above 0 is better.

    Attributes:
        interval: of the mean, at 95 %; None for one seed, which says nothing about noise.
        won: the number of seeds with a difference above 0.
        tied: the number of seeds without a difference.
        constant: whether all of several seeds have the same difference, which then say nothing
            about noise: either seeds change nothing, or the values are too coarse to show it.

    Example:
        >>> one = Difference.of("fedau", {0: 0.8, 1: 0.9}, "fedavg", {0: 0.7, 1: 0.7, 2: 0.6})
        >>> round(one.mean, 2), one.won, one.seeds
        (0.15, 2, (0, 1))
    """

    name: str
    baseline: str
    seeds: tuple[int, ...]
    mean: float
    interval: Interval | None
    won: int
    tied: int
    constant: bool = False

    @classmethod
    def of(
        cls, name: str, values: Mapping[int, float], baseline: str, others: Mapping[int, float]
    ) -> Difference | None:
        """The difference of two rows; None if they share no seed."""
        seeds = tuple(sorted(values.keys() & others.keys()))
        if not seeds:
            return None
        by_seed = differences(values, others, seeds)
        sizes = [abs(value) for seed in seeds for value in (values[seed], others[seed])]
        return cls(
            name,
            baseline,
            seeds,
            mean=mean_of(by_seed),
            interval=t_interval(by_seed),
            won=sum(d > 0 for d in by_seed),
            tied=sum(d == 0 for d in by_seed),
            constant=len(seeds) > 1 and max(by_seed) - min(by_seed) <= ROUNDING * max(sizes),
        )

    @property
    def clearly_above(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.interval is not None and self.interval.low > 0

    @property
    def clearly_below(self) -> bool:
        """Whether the whole interval is below 0."""
        return self.interval is not None and self.interval.high < 0

    def seeds_to_tell(self, most: int) -> int | None:
        """How many seeds would likely show a difference of this size, if it is real.

        See :func:`~fedpbc.experiments.intervals.seeds_to_tell`; None if more than ``most``.
        """
        if self.interval is None:
            return None
        half = (self.interval.high - self.interval.low) / 2
        seeds = len(self.seeds)
        return seeds_to_tell(self.mean, half * math.sqrt(seeds) / t_quantile(seeds), most)


def differences(
    values: Mapping[int, float], others: Mapping[int, float], seeds: Sequence[int]
) -> list[float]:
    """The differences by seed, without rounding errors and within the range of floats."""
    by_seed = []
    for seed in seeds:
        value, other = values[seed], others[seed]
        tied = math.isclose(value, other, rel_tol=ROUNDING)
        by_seed.append(0.0 if tied else min(max(value - other, -LARGEST), LARGEST))
    return by_seed


@dataclass(frozen=True)
class PairedRow:
    """A row in its best deployable view, and how it compares with the baseline.

    Attributes:
        mean: over its seeds.
        interval: of this mean alone; it is wider than that of a difference, and says nothing
            about who is better.
        difference: None for the baseline, and for a row that shares no seed with it.
        recovered: of what the links cost FedAvg; None in a comparison without a ceiling.
    """

    name: str
    view: str
    seeds: tuple[int, ...]
    mean: float
    interval: Interval | None
    difference: Difference | None
    recovered: Recovered | None
    costs: Costs


@dataclass(frozen=True)
class Paired:
    """The paired statistics of a comparison, in the order of its rows.

    Attributes:
        baseline: None if nothing finished.
        note: why the baseline is not the one that was requested; else empty.
        has_classes: if not, values and differences are of minus the loss.
        links_cost: the ceiling's difference to FedAvg, None without both.
    """

    baseline: str | None
    note: str
    has_classes: bool
    rows: Sequence[PairedRow]
    links_cost: Difference | None

    def row(self, name: str) -> PairedRow | None:
        """The row of this name, if it finished."""
        return next((row for row in self.rows if row.name == name), None)

    def as_dict(self) -> dict[str, Any]:
        """For ``comparison.json``; what is not known is null."""
        return {
            "baseline": self.baseline,
            "note": self.note,
            "level": LEVEL,
            "value": "test_accuracy" if self.has_classes else "minus test_loss",
            "rows": [asdict(row) for row in self.rows],
            "links_cost": None if self.links_cost is None else asdict(self.links_cost),
        }


def paired(
    comparison: Scored,
    baseline: str | None = None,
    *,
    allowed: Callable[[Any], bool] | None = None,
) -> Paired:
    """Compare each row with a baseline; by default FedAvg, or else the first row that finished.

    A baseline that did not finish is replaced by the default; ``note`` says so. ``allowed``
    restricts the views, as that of a verdict: where one is allowed, the best of these is shown.

    Example:
        >>> from fedpbc import Quadratic, compare
        >>> links = {"name": "bernoulli", "p": 0.5}
        >>> comparison = compare(lambda seed: Quadratic([[0.0], [9.0]], seed=seed),
        ...                      ["fedavg", "mifa"], links=links, rounds=50)
        >>> [(row.name, row.difference and row.difference.won) for row in paired(comparison).rows]
        [('fedavg', None), ('mifa', 3)]
    """
    scores = comparison.scores(allowed)
    reference, note = find_baseline(scores, baseline)
    fedavg, ceiling = find_fedavg(scores), find_ceiling(scores)
    rows = []
    for entry in scores.entries:
        if entry.view is None or entry.costs is None or not entry.values:
            continue
        seeds = tuple(sorted(entry.values))
        values = [entry.values[seed] for seed in seeds]
        row = PairedRow(
            name=entry.name,
            view=entry.view,
            seeds=seeds,
            mean=mean_of(values),
            interval=score_interval(values, has_classes=scores.has_classes),
            difference=difference_of(entry, reference),
            recovered=None if ceiling is None else _recovered(entry, fedavg, ceiling),
            costs=entry.costs,
        )
        rows.append(row)
    links_cost = None if ceiling is None else difference_of(ceiling, fedavg)
    name = None if reference is None else reference.name
    return Paired(name, note, scores.has_classes, rows, links_cost)


def difference_of(entry: EntryScores, baseline: EntryScores | None) -> Difference | None:
    """The difference of a row to another one; None to itself."""
    if baseline is None or baseline.name == entry.name:
        return None
    return Difference.of(entry.name, entry.values, baseline.name, baseline.values)


def check_baseline(name: str | None, names: Sequence[str]) -> None:
    """Raise unless there is a row of this name."""
    if name is not None and (not isinstance(name, str) or name not in names):
        # Another algorithm is no misspelling.
        similar = "" if str(name) in ALGORITHMS else str(name)
        raise InputError("baseline", name, nearest(similar, names))


def find_baseline(scores: Scores, requested: str | None) -> tuple[EntryScores | None, str]:
    """The row to compare with, and a note if it is not the one that was requested."""
    check_baseline(requested, [entry.name for entry in scores.entries])
    first = next((e for e in scores.entries if e.values and not e.is_ceiling), None)
    default = find_fedavg(scores) or first or find_ceiling(scores)
    if requested is None or default is None:
        return default, ""
    if (entry := scores.find(requested)) is not None:
        return entry, ""
    diverged = any(e.diverged for e in scores.entries if e.name == requested)
    why = "no run finished in a view that a server could deploy"
    if diverged:
        why = "every run diverged"
    return default, f"compared with {default.name}, not with {requested}, of which {why}"


def find_ceiling(scores: Scores) -> EntryScores | None:
    """The row of the same training with every link up, if there is one."""
    return next((e for e in scores.entries if e.values and e.is_ceiling), None)


def find_fedavg(scores: Scores) -> EntryScores | None:
    """The row of FedAvg: the one of that name, or the only one of that algorithm."""
    if (named := scores.find(FEDAVG)) is not None:
        return named
    rows = [e for e in scores.entries if e.algorithm == FEDAVG and e.values and not e.is_ceiling]
    return rows[0] if len(rows) == 1 else None


def _recovered(entry: EntryScores, fedavg: EntryScores | None, ceiling: EntryScores) -> Recovered:
    if fedavg is None:
        return Recovered(None, None, (), "there is no result of fedavg to measure it from")
    seeds = sorted(entry.values.keys() & fedavg.values.keys() & ceiling.values.keys())
    return recovered(
        seeds,
        differences(entry.values, fedavg.values, seeds),
        differences(ceiling.values, fedavg.values, seeds),
        exact=entry.name in (fedavg.name, ceiling.name),
    )
