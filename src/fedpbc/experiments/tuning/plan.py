"""What a search tries, and with which budget."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedpbc.algorithms import ALGORITHMS, find_algorithm
from fedpbc.errors import InputError
from fedpbc.experiments.build import build_experiment
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.overrides import set_value
from fedpbc.experiments.settings import AlgorithmSection, General
from fedpbc.experiments.tuning.halving import Halving
from fedpbc.experiments.tuning.search_space import (
    SearchSpace,
    Settings,
    resolve_space,
    tuned_key,
)
from fedpbc.limits import check_values
from fedpbc.options import nearest
from fedpbc.simulation.views import DEPLOYABLE
from fedpbc.storage.manifest import is_folder_name
from fedpbc.storage.toml import toml_text

__all__ = ["Trial", "TuningPlan", "TuningRequest", "plan_tuning", "settled"]

VALIDATION = 0.2
CANDIDATES = 12
CANDIDATES_WITH_OPTIONS = 18
"""For an algorithm that has options of its own to tune."""
MOST_CANDIDATES = 60
EVALUATIONS = 5
"""Evaluations up to the first rung; a score is the mean over the last fifth of the rounds."""
START_SECONDS = 0.6
"""That a run needs to start or to go on, besides its rounds."""
TRAIN_SAMPLES = 100
"""That an evaluation uses: the accuracy on training samples is of no use to a search."""
RESERVE = 0.1
"""Of a budget in minutes, for what cannot be foreseen."""


@dataclass(frozen=True, kw_only=True)
class TuningRequest:
    """How to search.

    Attributes:
        algorithms: names; None: the configuration's.
        space: values by key, in place of the default ones; a single value is not tuned.
        candidates: settings tried per algorithm.
        budget: rounds of all runs together, instead of a number of candidates.
        minutes: the same as time: the number of candidates follows from the speed of the first.
        seeds: a candidate's score is the mean over these.
        validation: the share of each client's samples that is kept out of training for scoring.
    """

    algorithms: Sequence[str] | None = None
    space: Mapping[str, Sequence[Any]] | None = None
    candidates: int | None = None
    budget: int | None = None
    minutes: float | None = None
    seeds: Sequence[int] = (0,)
    validation: float | None = None


@dataclass(frozen=True)
class Trial:
    """A candidate of an algorithm; ``number`` counts from 0, the default settings."""

    algorithm: str
    number: int
    settings: Settings

    @property
    def folder(self) -> str:
        """Its folder, with one run for each seed."""
        return f"{self.algorithm}/candidate-{self.number}"


@dataclass(frozen=True)
class TuningPlan:
    """A search: the configuration, each algorithm's candidates, and how many of them are tried.

    Attributes:
        shared: the configuration's values, without algorithm and seed.
        algorithms: the options that were given for each.
        candidates: all settings that may be tried, by algorithm, in order; the default first.
        count: how many of them are tried; 0 until the speed is known, if ``minutes`` is given.
    """

    shared: Mapping[str, Any]
    algorithms: Mapping[str, Mapping[str, Any]]
    candidates: Mapping[str, Sequence[Settings]]
    seeds: Sequence[int]
    rounds: int
    evaluate_every: int
    validation: float | None
    count: int
    minutes: float | None = None

    def halving(self, algorithm: str, count: int | None = None) -> Halving:
        """The rungs of one algorithm's search."""
        tried = min(count or self.count or 1, len(self.candidates[algorithm]))
        return Halving.of(tried, self.rounds, self.evaluate_every)

    def cost(self, count: int | None = None) -> int:
        """The rounds of all runs together."""
        return len(self.seeds) * sum(self.halving(a, count).cost() for a in self.algorithms)

    def trials(self, algorithm: str) -> list[Trial]:
        """The candidates that are tried."""
        chosen = self.candidates[algorithm][: self.count or 1]
        return [Trial(algorithm, k, settings) for k, settings in enumerate(chosen)]

    def config(self, trial: Trial, seed: int) -> dict[str, Any]:
        """The values of one run."""
        values = self.tuned_values(trial.algorithm, trial.settings)
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

    def tuned_values(self, algorithm: str, settings: Settings) -> dict[str, Any]:
        """The configuration with an algorithm and settings of it, for runs after the search."""
        values = {
            key: dict(value) if isinstance(value, Mapping) else value
            for key, value in self.shared.items()
        }
        own = {"name": algorithm}
        for key, value in self.algorithms[algorithm].items():
            if isinstance(value, Mapping):  # a section, as an entry of a comparison has
                values[key] = {**_table(values.get(key)), **value}
            else:
                own[key] = value
        values["algorithm"] = own
        for key, value in settings.items():
            set_value(values, key, value)
        return values

    def run_names(self) -> Iterator[str]:
        """The folders of all runs that there may be."""
        for algorithm, candidates in self.candidates.items():
            for k in range(len(candidates)):
                for seed in self.seeds:
                    yield f"{algorithm}/candidate-{k}/seed-{seed}"

    def self_contained(self) -> tuple[str, dict[str, bytes]]:
        """The plan as TOML with files as ``inputs/NAME``, and the content of these files."""
        first = next(iter(self.algorithms))
        values = self.tuned_values(first, {})
        nested, inputs = Config.from_dict(values, lenient=True).self_contained()
        for key in ("algorithm", "seed", "views"):
            nested.pop(key, None)
        if "views" in self.shared:
            nested["views"] = self.shared["views"]
        search: dict[str, Any] = {
            "rounds": self.rounds,
            "evaluate_every": self.evaluate_every,
            "count": self.count,
        }
        for key, value in (("validation", self.validation), ("minutes", self.minutes)):
            if value is not None:
                search[key] = value
        search["candidates"] = {
            name: [dict(settings) for settings in candidates]
            for name, candidates in self.candidates.items()
        }
        algorithms = {name: dict(options) for name, options in self.algorithms.items()}
        plan = {**nested, "seeds": list(self.seeds), "algorithms": algorithms, "tune": search}
        return toml_text(plan), inputs

    @classmethod
    def from_values(cls, values: Mapping[str, Any], file: str) -> TuningPlan:
        """The plan that a tune.toml holds; raises InputError if it is none."""
        shared = dict(values)
        try:
            search, seeds = dict(shared.pop("tune")), list(shared.pop("seeds"))
            algorithms = {k: dict(v) for k, v in dict(shared.pop("algorithms")).items()}
            candidates = {
                name: [dict(settings) for settings in search["candidates"][name]]
                for name in algorithms
            }
            numbers = [search[key] for key in ("rounds", "evaluate_every", "count")]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(f"{file} is not the plan of a search") from None
        valid = (
            algorithms
            and all(map(is_folder_name, algorithms))
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
            {find_algorithm(name).name: options for name, options in algorithms.items()},
            candidates,
            seeds,
            rounds=numbers[0],
            evaluate_every=numbers[1],
            validation=search.get("validation"),
            count=numbers[2],
            minutes=search.get("minutes"),
        )
        for name in plan.algorithms:
            for trial in plan.trials(name):
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
    shared = dict(values)
    algorithms = _algorithms(shared, request.algorithms)
    seeds = list(request.seeds)
    if not seeds or len(set(seeds)) < len(seeds) or not all(_is_seed(seed) for seed in seeds):
        raise InputError("seeds", seeds, "different whole numbers from 0, such as 0,1")
    for name, value in (("candidates", request.candidates), ("budget", request.budget)):
        if value is not None and value < 1:
            raise InputError(name, value, "at least 1")
    if request.minutes is not None and not (0 < request.minutes < math.inf):
        raise InputError("minutes", request.minutes, "above 0")
    limits = [request.candidates, request.budget, request.minutes]
    if sum(limit is not None for limit in limits) > 1:
        raise InputError("give one of --candidates, --budget and --minutes, not several")

    configs = {}
    bare = TuningPlan(shared, algorithms, {}, seeds, 1, 1, None, 0)
    for name in algorithms:
        configs[name] = Config.from_dict(
            {**bare.tuned_values(name, {}), "seed": seeds[0]}, lenient=True
        )
    unused = set.intersection(*(set(config.unused) for config in configs.values()))
    for key in sorted(unused):
        raise InputError(next(iter(configs.values())).unused[key])
    first = next(iter(configs.values()))
    if first.task.name == "python":
        raise InputError("task", "python", "one of the command line: see docs/tuning.md")
    validation = None
    if first.task.name != "quadratic":  # which has no samples to keep out
        validation = request.validation or first.task.validation or VALIDATION
    elif request.validation is not None:
        raise InputError("validation", request.validation, "left out: quadratics have no samples")
    if validation is not None and not 0 < validation < 1:
        raise InputError("validation", validation, "above 0 and below 1")
    if isinstance(task := shared.get("task"), Mapping):
        shared["task"] = {key: value for key, value in task.items() if key != "validation"}

    spaces = _spaces(request.space or {}, configs)
    plan = TuningPlan(
        shared,
        algorithms,
        {name: space.candidates(MOST_CANDIDATES, seeds[0]) for name, space in spaces.items()},
        seeds,
        first.general.rounds,
        _evaluate_every(shared, first.general),
        validation,
        count=request.candidates or 0,
        minutes=request.minutes,
    )
    # Building one finds what is wrong with data, links and model.
    trial = Trial(next(iter(algorithms)), 0, {})
    experiment = build_experiment(Config.from_dict(plan.config(trial, seeds[0]), lenient=True))
    plan = replace(plan, rounds=experiment.simulation.rounds)
    for name, candidates in plan.candidates.items():
        for settings in candidates:
            Config.from_dict(plan.config(Trial(name, 0, settings), seeds[0]), lenient=True)
    if request.budget is not None:
        return replace(plan, count=_largest_count(plan, request.budget))
    if not plan.count and request.minutes is None:
        options = any(find_algorithm(name).tuned_options for name in algorithms)
        return replace(plan, count=CANDIDATES_WITH_OPTIONS if options else CANDIDATES)
    return plan


def _table(section: Any) -> dict[str, Any]:
    """A section, which may be given by its name alone."""
    return {"name": section} if isinstance(section, str) else dict(section or {})


def _is_classification(values: Mapping[str, Any]) -> bool:
    """Whether the task is one on a data set."""
    task = _table(values.get("task"))
    of_data = {"targets", "app"}.isdisjoint(task)
    return of_data and task.get("name", "classification") == "classification"


def _is_seed(seed: object) -> bool:
    return type(seed) is int and seed >= 0


def _algorithms(
    shared: dict[str, Any], names: Sequence[str] | None
) -> dict[str, Mapping[str, Any]]:
    """Each algorithm with the options that were given; removes them from the values."""
    tables = shared.pop("algorithms", None)
    section = shared.pop("algorithm", None)
    for key in ("seed", "seeds"):
        shared.pop(key, None)
    if section is not None and not isinstance(section, str | Mapping):
        raise InputError("algorithm", section, "a name, or a table [algorithm]")
    table = _table(section)
    own = str(table.pop("name", AlgorithmSection.name))
    if isinstance(tables, list | tuple):
        tables = {str(name): {} for name in tables}
    if tables and not isinstance(tables, Mapping):
        raise InputError("algorithms", tables, "a list of names, or tables [algorithms.NAME]")
    tables = dict(tables or {own: table})
    check_values(tables)
    chosen = list(tables) if names is None else list(names)
    if chosen == ["all"]:
        chosen = list(ALGORITHMS)
    if not chosen or len(set(chosen)) < len(chosen):
        raise InputError("algorithms", chosen, "different names, at least one")
    result: dict[str, Mapping[str, Any]] = {}
    for name in chosen:
        options = tables.get(name, {})
        if not isinstance(options, Mapping):
            raise InputError(f"algorithms.{name}", options, f"a table [algorithms.{name}]")
        result[find_algorithm(name).name] = {k: v for k, v in options.items() if k != "name"}
    return result


def _spaces(
    given: Mapping[str, Sequence[Any]], configs: Mapping[str, Config]
) -> dict[str, SearchSpace]:
    for key, tried in given.items():
        if not tried:
            raise InputError("--space", key, "KEY=VALUE,VALUE, such as learning_rate=0.05,0.1")
        if not any(tuned_key(key, name, config) for name, config in configs.items()):
            known = [*(o for c in configs.values() for o in c.algorithm if o != "name")]
            raise InputError("--space", key, nearest(key, [*known, *vars(first_train(configs))]))
    return {name: resolve_space(given, name, config) for name, config in configs.items()}


def first_train(configs: Mapping[str, Config]) -> Any:
    """The section of the local training, whose settings can be tuned."""
    return next(iter(configs.values())).train


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


def settled(plan: TuningPlan, seconds_per_round: Mapping[str, float], jobs: int) -> TuningPlan:
    """The plan with as many candidates as fit into its minutes, at this speed.

    Every algorithm gets the same number: else those that are quick would be tuned better.
    """
    assert plan.minutes is not None

    def seconds(count: int) -> float:
        total = 0.0
        for name in plan.algorithms:
            halving = plan.halving(name, count)
            work = halving.cost() * seconds_per_round[name] + START_SECONDS * sum(halving.sizes)
            total += len(plan.seeds) * work
        return total / jobs

    available = 60 * plan.minutes * (1 - RESERVE)
    counts = range(MOST_CANDIDATES, 0, -1)
    return replace(plan, count=next((n for n in counts if seconds(n) <= available), 1))
