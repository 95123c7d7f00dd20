"""What a search tries, and with which budget."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedpbc.algorithms import find_algorithm
from fedpbc.errors import InputError
from fedpbc.experiments.build import build_experiment
from fedpbc.experiments.comparison_plan import ComparisonPlan
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.entries import Entry, entries_of
from fedpbc.experiments.overrides import set_value
from fedpbc.experiments.plugins import load_plugins
from fedpbc.experiments.seeds import seed_list
from fedpbc.experiments.settings import General
from fedpbc.experiments.sweep import makespan
from fedpbc.experiments.tuning.entries import tuned_entries
from fedpbc.experiments.tuning.halving import Halving
from fedpbc.experiments.tuning.request import MOST_CANDIDATES, TuningRequest
from fedpbc.experiments.tuning.search_space import (
    SearchSpace,
    Settings,
    resolve_space,
    tuned_key,
)
from fedpbc.limits import check_values, parse_toml
from fedpbc.options import nearest
from fedpbc.simulation.views import DEPLOYABLE
from fedpbc.storage.toml import toml_text
from fedpbc.synonyms import right_name

__all__ = ["Trial", "TuningPlan", "plan_tuning", "start_seconds", "with_affordable_count"]

VALIDATION = 0.2
CANDIDATES = 12
CANDIDATES_WITH_OPTIONS = 18
"""For an algorithm that has options of its own to tune."""
ENOUGH_CANDIDATES = 5
"""Where there is no time for so many, they are not run for all rounds."""
EVALUATIONS = 5
"""Evaluations up to the first rung; a score is the mean over the last fifth of the rounds,
100 at most."""
START_SECONDS = 0.6
"""Of a run, to start or to go on, on top of its rounds."""
TRAIN_SAMPLES = 100
"""Of an evaluation: a search does not use the accuracy on training samples."""
RESERVE = 0.1
"""Share of a budget in minutes that is kept in reserve."""


@dataclass(frozen=True)
class Trial:
    """A candidate of an entry; ``number`` counts from 0, the default settings."""

    label: str
    number: int
    settings: Settings

    @property
    def folder(self) -> str:
        """Its folder, with one run for each seed."""
        return f"{self.label}/candidate-{self.number}"


@dataclass(frozen=True)
class TuningPlan:
    """A search: the configuration, each entry's candidates, and how many of them are tried.

    Attributes:
        shared: the configuration's values, without algorithm and seed.
        entries: what is tuned, by label: an algorithm with the settings that were given for it.
        candidates: all settings that may be tried, by label, in order; the default first.
        count: how many of them are tried; 0 until the speed is known, if ``minutes`` is given.
        most_rungs: at which rung the choice is made, where there is no time for all rounds; 0: at
            the last.
    """

    shared: Mapping[str, Any]
    entries: Mapping[str, Entry]
    candidates: Mapping[str, Sequence[Settings]]
    seeds: Sequence[int]
    rounds: int
    evaluate_every: int
    validation: float | None
    count: int
    minutes: float | None = None
    most_rungs: int = 0

    def halving(self, label: str, count: int | None = None) -> Halving:
        """The rungs of one entry's search."""
        tried = min(count or self.count or 1, len(self.candidates[label]))
        return Halving.of(tried, self.rounds, self.evaluate_every, self.most_rungs)

    def cost(self, count: int | None = None) -> int:
        """The rounds of all runs together."""
        return len(self.seeds) * sum(self.halving(e, count).cost() for e in self.entries)

    def trials(self, label: str) -> list[Trial]:
        """The candidates that are tried."""
        chosen = self.candidates[label][: self.count or 1]
        return [Trial(label, k, settings) for k, settings in enumerate(chosen)]

    def config(self, trial: Trial, seed: int) -> dict[str, Any]:
        """The values of one run."""
        values = self.tuned_values(trial.label, trial.settings)
        if self.validation is not None:
            set_value(values, "task.validation", self.validation)
            if _is_classification(self.shared):
                set_value(values, "data.train_samples", TRAIN_SAMPLES)
        views = values.get("views") or list(DEPLOYABLE)
        return {
            **values,
            "seed": seed,
            "evaluate_every": self.evaluate_every,
            "views": [view for view in views if view in DEPLOYABLE],
        }

    def tuned_values(self, label: str, settings: Settings) -> dict[str, Any]:
        """The configuration with an entry and settings of it."""
        values = {
            key: dict(value) if isinstance(value, Mapping) else value
            for key, value in self.entries[label].applied_to(self.shared).items()
        }
        for key, value in settings.items():
            set_value(values, key, value)
        return values

    def self_contained(self) -> tuple[str, dict[str, bytes]]:
        """The plan as TOML with files as ``inputs/NAME``, and the content of these files."""
        text, inputs = ComparisonPlan(self.shared, self.entries, self.seeds).self_contained()
        search: dict[str, Any] = {
            "rounds": self.rounds,
            "evaluate_every": self.evaluate_every,
            "count": self.count,
            "most_rungs": self.most_rungs,
        }
        for key, value in (("validation", self.validation), ("minutes", self.minutes)):
            if value is not None:
                search[key] = value
        search["candidates"] = {
            label: [dict(settings) for settings in candidates]
            for label, candidates in self.candidates.items()
        }
        return toml_text({**parse_toml(text), "tune": search}), inputs

    @classmethod
    def from_values(cls, values: Mapping[str, Any], file: str) -> TuningPlan:
        """The plan that a tune.toml holds; raises InputError if it is not one."""
        shared = dict(values)
        try:
            search, seeds = dict(shared.pop("tune")), list(shared.pop("seeds"))
            entries = {entry.label: entry for entry in entries_of(dict(shared.pop("algorithms")))}
            candidates = {
                label: [dict(settings) for settings in search["candidates"][label]]
                for label in entries
            }
            numbers = [search[key] for key in ("rounds", "evaluate_every", "count")]
            numbers.append(search.get("most_rungs", 0))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(f"{file} is not the plan of a search") from None
        valid = (
            entries
            and all(candidates.values())
            and all(type(number) is int and number >= 0 for number in [*numbers, *seeds])
            and numbers[0] >= 1
            and numbers[1] >= 1
            and isinstance(search.get("minutes", 1.0), int | float)
        )
        if not valid:
            raise InputError(f"{file} is not the plan of a search")
        plan = cls(
            shared,
            entries,
            candidates,
            seeds,
            rounds=numbers[0],
            evaluate_every=numbers[1],
            validation=search.get("validation"),
            count=numbers[2],
            minutes=search.get("minutes"),
            most_rungs=numbers[3],
        )
        for label in plan.entries:
            for trial in plan.trials(label):
                Config.from_dict(plan.config(trial, seeds[0]), lenient=True)
        return plan


def plan_tuning(values: Mapping[str, Any], request: TuningRequest) -> TuningPlan:
    """Check a search; raises InputError before anything is written.

    ``values`` are those of a run's configuration, or of a comparison's with several algorithms.

    Example:
        >>> request = TuningRequest(candidates=3, space={"learning_rate": [0.05, 0.2]})
        >>> plan = plan_tuning({"data": "digits", "clients": 5, "rounds": 9}, request)
        >>> plan.candidates["fedpbc"][1]["train.learning_rate"], plan.cost()
        (0.2, 19)
    """
    check_values(values)
    load_plugins(values)
    shared = dict(values)
    entries, fixed = tuned_entries(shared, request.algorithms, ceiling=request.ceiling)
    seeds = seed_list(request.seeds)
    configs = {}
    bare = ComparisonPlan(shared, entries, seeds)
    for label in entries:
        configs[label] = bare.checked(label)
        _check_views(configs[label].general.views)
        rounds, first_rounds = (configs[k].general.rounds for k in (label, next(iter(configs))))
        if rounds != first_rounds:
            expected = f"{first_rounds} as of the others: all are scored after the same rounds"
            raise InputError(f"algorithms.{label}.rounds", rounds, expected)
    unused = set.intersection(*(set(config.unused) for config in configs.values()))
    for key in sorted(unused):
        raise InputError(next(iter(configs.values())).unused[key])
    first = next(iter(configs.values()))
    if first.task.name == "python":
        raise InputError("task", "python", "one of the command line: see docs/tuning.md")
    if (at_end := first.general.evaluate_every_at_end) is not None:
        expected = "left out: a search scores candidates after several numbers of rounds"
        raise InputError("evaluate_every_at_end", at_end, expected)
    validation = None
    if first.task.name != "quadratic":  # which has no samples to keep out
        validation = request.validation or first.task.validation or VALIDATION
    elif request.validation is not None:
        raise InputError("validation", request.validation, "left out: quadratics have no samples")
    if isinstance(task := shared.get("task"), Mapping):
        shared["task"] = {key: value for key, value in task.items() if key != "validation"}

    spaces = _spaces(request.space or {}, configs, fixed)
    plan = TuningPlan(
        shared,
        entries,
        {label: space.candidates(MOST_CANDIDATES, seeds[0]) for label, space in spaces.items()},
        seeds,
        first.general.rounds,
        _evaluate_every(shared, first.general),
        validation,
        count=request.candidates or 0,
        minutes=request.minutes,
    )
    # Building one finds what is wrong with data, links and model.
    trial = Trial(next(iter(entries)), 0, {})
    experiment = build_experiment(Config.from_dict(plan.config(trial, seeds[0]), lenient=True))
    plan = replace(plan, rounds=experiment.simulation.rounds)
    for label, candidates in plan.candidates.items():
        # Those that may be tried; how many they are is not always known yet.
        for settings in candidates[: request.candidates]:
            Config.from_dict(plan.config(Trial(label, 0, settings), seeds[0]), lenient=True)
    if request.budget is not None:
        return replace(plan, count=_largest_count(plan, request.budget))
    if not plan.count and request.minutes is None:
        options = any(find_algorithm(e.algorithm).tuned_options for e in entries.values())
        return replace(plan, count=CANDIDATES_WITH_OPTIONS if options else CANDIDATES)
    return plan


def _table(section: Any, name: str) -> dict[str, Any]:
    """A section, which may be given by its name alone."""
    if not isinstance(section, str | Mapping | None):
        raise InputError(name, section, f"a name, or a table [{name}]")
    return {"name": section} if isinstance(section, str) else dict(section or {})


def _check_views(views: Sequence[str] | None) -> None:
    """Raise InputError if a configuration evaluates no view that can be scored."""
    if views is not None and not {*views} & {*DEPLOYABLE}:
        allowed = "with one that a server could deploy, since only these are scored"
        raise InputError("views", ",".join(views), f"{allowed}: {', '.join(DEPLOYABLE)}")


def _is_classification(values: Mapping[str, Any]) -> bool:
    """Whether the task is one on a data set."""
    task = _table(values.get("task"), "task")
    of_data = {"targets", "app"}.isdisjoint(task)
    return of_data and task.get("name", "classification") == "classification"


def _spaces(
    given: Mapping[str, Sequence[Any]],
    configs: Mapping[str, Config],
    fixed: Mapping[str, Collection[str]],
) -> dict[str, SearchSpace]:
    for key in given:
        if not any(tuned_key(key, label, config) for label, config in configs.items()):
            known = [o for c in configs.values() for o in c.algorithm if o != "name"]
            known += vars(next(iter(configs.values())).train)
            raise InputError("--space", key, right_name(key, known) or nearest(key, known))
        owners = {label: tuned_key(key, label, config) for label, config in configs.items()}
        if all(name in fixed.get(label, ()) for label, name in owners.items() if name):
            label = next(label for label, name in owners.items() if name)
            raise InputError("--space", key, f"left out: {label} has a value for it")
    return {
        label: resolve_space(given, label, config, fixed.get(label, ()))
        for label, config in configs.items()
    }


def _evaluate_every(shared: Mapping[str, Any], general: General) -> int:
    """Often enough for a score at the first rung, unless it was given."""
    if "evaluate_every" in shared:
        return general.evaluate_every
    first = Halving.of(1, general.rounds).rungs[0]
    return max(1, first // EVALUATIONS)


def _largest_count(plan: TuningPlan, budget: int) -> int:
    """The most candidates whose runs have at most ``budget`` rounds together."""
    counts = range(MOST_CANDIDATES, 0, -1)
    count = next((count for count in counts if plan.cost(count) <= budget), None)
    if count is None:
        raise InputError("budget", budget, f"at least {plan.cost(1):,} rounds, for one candidate")
    return count


def start_seconds(ends: Sequence[float], seconds: Sequence[float], jobs: int) -> float:
    """What a run needs besides its rounds, from runs that were started in this order.

    On a busy machine that may be longer than its rounds. The first run of each process does not
    count: it includes the start of the process, which no later run needs. Neither does one that
    diverged before it was evaluated: what its rounds took is not known.

    Args:
        ends: when each run ended.
        seconds: that the rounds of each took; 0 if not known.
        jobs: how many ran side by side.

    Example:
        >>> start_seconds([12.0, 13.0, 16.0, 18.0], [8.0, 9.0, 3.0, 4.0], jobs=2)
        1.0
        >>> start_seconds([12.0, 13.0], [8.0, 9.0], jobs=2)
        0.6
        >>> start_seconds([12.0, 13.0, 16.0, 93.0], [8.0, 9.0, 3.0, 0.0], jobs=2)
        1.0
    """
    begun = zip(sorted(ends), ends[jobs:], seconds[jobs:], strict=False)
    besides = [end - begin - of_rounds for begin, end, of_rounds in begun if of_rounds > 0]
    return max(START_SECONDS, statistics.median(besides)) if besides else START_SECONDS


def with_affordable_count(
    plan: TuningPlan,
    seconds_per_round: Mapping[str, float],
    jobs: int,
    start_seconds: float = START_SECONDS,
) -> TuningPlan:
    """The plan with as many candidates as fit into its minutes, at this speed.

    Where these are few, the choice is made at an earlier rung: one of several settings after a
    third of the rounds is better than the only one after all. So is one alone that is stopped
    there, if there is no time for all rounds of it: it only ranks its algorithm.
    ``seconds_per_round`` and ``start_seconds``, what a run needs to start or to go on, are those of
    one core. Every entry gets the same number of candidates: else those that are quick would be
    tuned better.
    """
    assert plan.minutes is not None

    def seconds(plan: TuningPlan, count: int) -> float:
        """All rungs, one after another: each ends when the last of its runs does."""
        halvings = {label: plan.halving(label, count) for label in plan.entries}
        total = 0.0
        for rung in range(len(next(iter(halvings.values())).rungs)):
            runs: list[float] = []
            for label, halving in halvings.items():
                rounds = halving.rungs[rung] - (halving.rungs[rung - 1] if rung else 0)
                one = rounds * seconds_per_round[label] + start_seconds
                runs += [one] * (halving.sizes[rung] * len(plan.seeds))
            total += makespan(sorted(runs, reverse=True), jobs)
        return total

    available = 60 * plan.minutes * (1 - RESERVE)
    most = min(MOST_CANDIDATES, max(len(candidates) for candidates in plan.candidates.values()))
    best: TuningPlan | None = None
    rungs = len(plan.halving(next(iter(plan.entries)), 1).rungs)
    for most_rungs in (0, *range(rungs - 1, 0, -1)):
        shorter = replace(plan, most_rungs=most_rungs)
        fewest = 1 if best is None else best.count + 1
        fitting = (n for n in range(most, fewest - 1, -1) if seconds(shorter, n) <= available)
        if count := next(fitting, 0):
            best = replace(shorter, count=count)
        if best is not None and best.count >= min(ENOUGH_CANDIDATES, most):
            break
    # Where nothing fits: the first rung of the default, which has been run to measure the speed.
    return best or replace(plan, count=1, most_rungs=1)
