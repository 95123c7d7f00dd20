"""How to spend a time budget: which algorithms are tuned, with how many candidates and seeds.

The fullest plan that fits is taken. What is given up first: seeds and candidates, then algorithms
in which every client trains, which cost many times the others, then the ceiling, then all but a
short list; the number of rounds only if the user has not given it. Where the settings are given,
so are the algorithms: seeds go first, then the ceiling, then slow algorithms, then the last ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fedpbc.experiments.tuning.halving import Halving
from fedpbc.experiments.tuning.plan import START_SECONDS

__all__ = ["EVALUATIONS", "Schedule", "Speed", "affordable_finalists", "choose_schedule"]

EVALUATIONS = 20
"""Of a run of the comparison."""
RESERVE = 0.2
"""Of the budget, for what cannot be foreseen."""
FEWEST_ROUNDS = 50
FEWEST_SEEDS = 2
SHORT_LIST = ("fedavg", "fedau", "amplified_fedavg", "scaffold", "mimic", "fedpbc")
"""What is compared where there is no time for all: the best of the study (docs/study.md) with no
memory, with memory on the clients, and on the server."""
SLOW = 4
"""An algorithm is slow if its rounds take more than so many times FedAvg's."""
WITH_SLOW = 4
"""Levels that are tried with the slow algorithms."""
LEVELS = (
    # candidates, finalists besides FedAvg, seeds
    (18, 8, 10),
    (12, 8, 8),
    (12, 6, 6),
    (9, 5, 5),
    (7, 4, 4),
    (5, 3, 3),
)
LAST_LEVELS = ((5, 3, 3), (3, 2, 3))
"""With the short list."""
SEEDS = (10, 8, 6, 5, 4, 3)
"""Where settings are given: these are tried before an algorithm is left out."""
UNTUNED = (1, 2, 2)
"""With the short list, if there is no time to tune it, however few the rounds."""
CEILING_CANDIDATES = 4
"""With every link up a run may take many times as long: η_0 alone is tried, at four values."""


@dataclass(frozen=True)
class Speed:
    """Seconds of a round, of an evaluation, and of scoring a candidate, on one core."""

    round: float
    evaluation: float
    scoring: float = 0.0

    def run(self, rounds: int, evaluations: int) -> float:
        """Seconds of a run."""
        return rounds * self.round + evaluations * self.evaluation + START_SECONDS


@dataclass(frozen=True)
class Schedule:
    """What fits into the budget.

    Attributes:
        algorithms: those that are tuned.
        finalists: how many of the best are compared, besides FedAvg.
        seeds: of the comparison; fewer if time runs out.
        ceiling: whether the same training with every link up is compared, too.
        seconds: that all of it is expected to take.
        complete: whether everything was affordable.
        tuning_seconds: that the search may take at most; 0: no limit.
        ceiling_candidates: settings that are tried for the ceiling; 0: it has FedAvg's.
    """

    rounds: int
    algorithms: Sequence[str]
    candidates: int
    finalists: int
    seeds: int
    ceiling: bool
    seconds: float
    complete: bool
    tuning_seconds: float = 0.0
    ceiling_candidates: int = 0


def choose_schedule(
    speeds: Mapping[str, Speed],
    ceiling: Speed,
    *,
    rounds: int,
    seconds: float,
    jobs: int,
    fixed_rounds: bool,
    tuned: bool = False,
    slowdown: float = 1.0,
) -> Schedule:
    """The fullest schedule that is expected to fit; the smallest one if none does.

    Args:
        speeds: of each algorithm that may be recommended.
        ceiling: the speed with every link up.
        seconds: the budget.
        jobs: runs side by side.
        fixed_rounds: whether the number of rounds was given.
        tuned: whether the settings are known, so that nothing is tuned.
        slowdown: how many times as long as a core needs everything takes on this busy machine.

    Example:
        >>> speeds = {"fedavg": Speed(0.01, 0.02), "fedpbc": Speed(0.1, 0.05)}
        >>> plan = choose_schedule(speeds, Speed(0.1, 0.02), rounds=300, seconds=600, jobs=2,
        ...                        fixed_rounds=True)
        >>> plan.candidates, plan.seeds, plan.complete
        (18, 10, True)
    """
    available = seconds * (1 - RESERVE) / slowdown
    options = list(_options(speeds, ceiling, rounds, jobs, fixed_rounds, tuned))
    fitting = (option for option in options if option.seconds <= available)
    chosen = next(fitting, None) or min(options, key=lambda option: option.seconds)
    # The search gets its part of all the time there is: if it is slower than expected it tries
    # less, and if it is quicker nothing is lost.
    part = chosen.tuning_seconds / chosen.seconds if chosen.seconds else 0.0
    return replace(
        chosen,
        seconds=slowdown * chosen.seconds,
        tuning_seconds=slowdown * part * max(1.0, available),
    )


def affordable_finalists(
    ranked: Sequence[str],
    seconds: Mapping[str, float],
    *,
    available: float,
    jobs: int,
    ceiling: float,
    ceiling_seeds: int = FEWEST_SEEDS,
) -> tuple[list[str], bool]:
    """How many of the best can be compared with two seeds in the time that is left.

    Args:
        ranked: the baseline, then the others, the best first.
        seconds: of a whole run of each, as measured.
        ceiling: seconds of a run with every link up.
        ceiling_seeds: for so many seeds of it and of all others there must be time.

    Returns the names, and whether there is time for the ceiling; it is given up first.

    Example:
        >>> seconds = {"fedavg": 10.0, "mifa": 10.0, "fedau": 10.0}
        >>> affordable_finalists(list(seconds), seconds, available=30, jobs=2, ceiling=90.0)
        (['fedavg', 'mifa', 'fedau'], False)
        >>> affordable_finalists(list(seconds), seconds, available=20, jobs=2, ceiling=90.0)
        (['fedavg', 'mifa'], False)
        >>> affordable_finalists(list(seconds), seconds, available=130, jobs=2, ceiling=90.0)
        (['fedavg', 'mifa', 'fedau'], True)
    """

    def of_one_seed(names: Sequence[str]) -> float:
        return sum(seconds[name] for name in names) / jobs

    names = list(ranked)
    if ceiling_seeds * (of_one_seed(names) + ceiling / jobs) <= available:
        return names, True
    while len(names) > 2 and FEWEST_SEEDS * of_one_seed(names) > available:
        names.pop()
    return names, False


def _options(
    speeds: Mapping[str, Speed],
    ceiling: Speed,
    rounds: int,
    jobs: int,
    fixed_rounds: bool,
    tuned: bool,
) -> Iterator[Schedule]:
    """All schedules, the fullest first."""
    names = list(speeds)
    short = [name for name in SHORT_LIST if name in speeds] or names[:3]
    # An algorithm in which every client trains may cost more than all others together.
    usual = [name for name in names if speeds[name].round <= SLOW * speeds[names[0]].round]
    quick = [name for name in short if name in usual] or usual[:3]
    horizons = [rounds]
    while not fixed_rounds and horizons[-1] // 2 >= FEWEST_ROUNDS:
        horizons.append(horizons[-1] // 2)
    levels = list(_levels_of_given(names, usual) if tuned else _levels(names, usual, quick))
    smallest = [(usual if tuned else quick, UNTUNED, with_it) for with_it in (True, False)]
    # Fewer rounds before no tuning: at untuned step sizes the order says little.
    steps = [
        *((horizon, level) for horizon in horizons for level in levels),
        *((horizon, level) for horizon in horizons for level in smallest),
    ]
    for number, (horizon, (tried, (candidates, finalists, seeds), has_ceiling)) in enumerate(steps):
        yield _priced(
            speeds,
            ceiling if has_ceiling else None,
            horizon,
            tried,
            candidates,
            finalists,
            seeds,
            jobs,
            complete=number == 0,
        )


Level = tuple[Sequence[str], tuple[int, int, int], bool]
"""Algorithms; candidates, finalists besides FedAvg, and seeds; whether the ceiling is compared."""


def _levels(names: Sequence[str], usual: Sequence[str], quick: Sequence[str]) -> Iterator[Level]:
    """What is tried, the fullest first.

    With every link up a round may take many times as long, but without the ceiling nobody knows
    what links cost: all levels are tried with it before any is tried without.
    """
    for has_ceiling in (True, False):
        yield from ((names, level, has_ceiling) for level in LEVELS[:WITH_SLOW])
        yield from ((usual, level, has_ceiling) for level in LEVELS)
    for has_ceiling in (True, False):
        yield from ((quick, level, has_ceiling) for level in LAST_LEVELS)


def _levels_of_given(names: Sequence[str], usual: Sequence[str]) -> Iterator[Level]:
    """What is tried where the settings are given, and nothing is tuned."""
    for group in (names, usual):
        for has_ceiling in (True, False):
            yield from ((group, (1, len(group) - 1, seeds), has_ceiling) for seeds in SEEDS)
    for finalists in range(len(usual) - 2, 1, -1):
        for has_ceiling in (True, False):
            yield usual, (1, finalists, SEEDS[-1]), has_ceiling


def _priced(
    speeds: Mapping[str, Speed],
    ceiling: Speed | None,
    rounds: int,
    names: Sequence[str],
    candidates: int,
    finalists: int,
    seeds: int,
    jobs: int,
    *,
    complete: bool,
) -> Schedule:
    """A schedule with the seconds that it takes; the slowest are assumed to be the finalists."""
    of_ceiling = min(candidates, CEILING_CANDIDATES) if ceiling and candidates > 1 else 0
    total = 0.0
    if candidates > 1:
        total += sum(_search(speeds[name], candidates, rounds) for name in names)
    if ceiling and of_ceiling:
        total += _search(ceiling, of_ceiling, rounds)
    tuning = total
    full = sorted((speeds[name].run(rounds, EVALUATIONS) for name in names), reverse=True)
    # FedAvg is quicker than most, and one of the finalists only if there are no others.
    of_one_seed = sum(full[: min(finalists, len(full) - 1)]) + full[-1]
    if ceiling is not None:
        of_one_seed += ceiling.run(rounds, EVALUATIONS)
    total += seeds * of_one_seed
    return Schedule(
        rounds,
        tuple(names),
        candidates,
        finalists,
        seeds,
        ceiling is not None,
        total / jobs,
        complete,
        tuning / jobs,
        of_ceiling,
    )


def _search(speed: Speed, candidates: int, rounds: int) -> float:
    """Seconds of the search of one algorithm's settings, on one core."""
    every = max(1, rounds // 45)
    halving = Halving.of(candidates, rounds, every)
    cost = halving.cost()
    return cost * speed.round + cost / every * speed.scoring + START_SECONDS * sum(halving.sizes)
