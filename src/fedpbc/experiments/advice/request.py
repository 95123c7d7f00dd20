"""What a user asks, as a configuration and limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedpbc.algorithms import ALGORITHMS
from fedpbc.errors import InputError
from fedpbc.experiments.advice.constraints import Constraints
from fedpbc.experiments.algorithm_section import AlgorithmOptions, take_algorithm
from fedpbc.experiments.build import Experiment, build_experiment, load_cached
from fedpbc.experiments.comparison_plan import parse_plan
from fedpbc.experiments.conditions import CEILING
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.entries import entries_of, is_ceiling, no_such_option
from fedpbc.experiments.plugins import load_plugins
from fedpbc.experiments.settings import LinksSection
from fedpbc.experiments.tuning.plan import plan_tuning
from fedpbc.experiments.tuning.request import TuningRequest
from fedpbc.links.trace import trace_extent
from fedpbc.options import options_of
from fedpbc.text import listed

__all__ = ["AdviceRequest", "name_of_links", "prepare_values"]

ROUNDS = 300
MINUTES = 10.0
MOST_CLIENTS = 300
"""Of a trace that says nothing of its fleet, so many devices are simulated at most."""
BASELINE = "fedavg"
TUNING_SEED = 0
"""The comparison has others, from the next one on."""


@dataclass(frozen=True)
class AdviceRequest:
    """A configuration of data, model and links; the algorithm is what is asked for.

    Attributes:
        values: the configuration's values, without an algorithm and a seed.
        tuned: settings by label, if they are known: then nothing is tuned. Those of the ceiling
            may be among them.
        fixed_rounds: whether the number of rounds was given.
        minutes: the time budget.
        constraints: what the fleet can afford.
        links_name: what the links are called in the answer: a folder of advice has a copy of a log
            under another name. By default, the name of the scheme or of the file.
    """

    values: Mapping[str, Any]
    tuned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fixed_rounds: bool = False
    minutes: float = MINUTES
    constraints: Constraints = field(default_factory=Constraints)
    links_name: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.minutes < math.inf:
            raise InputError("minutes", self.minutes, "above 0")
        if not self.links_name:
            object.__setattr__(self, "links_name", name_of_links(self.values))

    def config(self, algorithm: str | Mapping[str, Any] = BASELINE, **settings: Any) -> Config:
        """The configuration of a run."""
        values = {**self.values, "algorithm": algorithm, **settings}
        return Config.from_dict(values, lenient=True)

    def experiment(
        self, algorithm: str | Mapping[str, Any] = BASELINE, **settings: Any
    ) -> Experiment:
        """Build a run, to look at its links and task, or to measure its speed."""
        return build_experiment(self.config(algorithm, **settings))

    def check(self) -> None:
        """Raise InputError for what is wrong with data, links, model, or the settings given."""
        self.experiment()
        if self.tuned:
            plan = parse_plan({**self.values, "algorithms": self.tuned, "seeds": [0]})
            for label in plan.entries:
                plan.checked(label)
        else:
            # Whether there is time for it turns out later; what is wrong with it must not.
            plan_tuning(self.values, TuningRequest(algorithms=self.algorithms(), candidates=1))

    def algorithms(self) -> list[str]:
        """Labels of those that may be recommended: all, or the tuned ones, with FedAvg first.

        A server seldom knows how likely each link is to be up, so what needs that is left out.
        """
        names = [label for label in self.tuned or ALGORITHMS if not is_ceiling(label)]
        usable = [
            label
            for label in names
            if label != BASELINE and not ALGORITHMS[self.algorithm_of(label)].needs_probabilities
        ]
        return [BASELINE, *usable]

    def algorithm_of(self, label: str) -> str:
        """The name of an algorithm, which may have been tuned under a label of its own."""
        return str(self.tuned.get(label, {}).get("name", label))

    def options_of(self, label: str) -> dict[str, Any]:
        """The options that an algorithm was given, without the settings of its training."""
        [entry] = entries_of({label: self.tuned.get(label, {})})
        return dict(entry.options)

    def with_rounds(self, rounds: int) -> AdviceRequest:
        """The same over another number of rounds."""
        return replace(self, values={**self.values, "rounds": rounds})


def name_of_links(values: Mapping[str, Any]) -> str:
    """What the links of a configuration are called: the file of a log, or the scheme.

    Example:
        >>> name_of_links({"links": {"name": "trace", "file": "logs/plant.csv"}})
        'plant.csv'
        >>> name_of_links({"links": "markov"})
        'markov'
    """
    links = values.get("links")
    table = links if isinstance(links, Mapping) else {"name": links or LinksSection.name}
    if table.get("name") == "trace" and isinstance(table.get("file"), str):
        return Path(table["file"]).name
    return str(table.get("name", LinksSection.name))


def prepare_values(
    values: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Mapping[str, Any]], bool]:
    """The shared values, tuned settings by label, and whether the rounds were given.

    A file that ``fedpbc tune`` wrote has a table of settings for each label. A trace that does
    not say how large its fleet is counts as one of all its devices, as far as they are not too
    many, and as there is data for them.
    """
    load_plugins(values)
    shared = dict(values)
    tables, is_table = shared.pop("algorithms", {}), isinstance(shared.get("algorithm"), Mapping)
    section = take_algorithm(shared)
    for key in ("seed", "seeds", "views", "deploy_view"):
        # Of one algorithm: others may have no such view.
        shared.pop(key, None)
    if section is not None and not tables:
        if section.name is None:
            raise _of_no_algorithm(section)
        if is_table:
            train = shared.get("train", {})
            if not isinstance(train, Mapping):
                raise InputError("train", train, "a table [train]")
            tables = {section.name: {"train": dict(train)}}
    tuned = _tuned_tables(tables, section)
    fixed = "rounds" in shared
    shared.setdefault("rounds", ROUNDS)
    links = shared.get("links")
    if isinstance(links, Mapping) and links.get("name") == "trace" and "clients" not in shared:
        file = links.get("file")
        if isinstance(file, str):
            devices = trace_extent(file, "links.file")[0]
            shared["clients"] = min(devices, MOST_CLIENTS, _clients_with_data(shared))
    return shared, tuned, fixed


def _clients_with_data(shared: Mapping[str, Any]) -> int:
    """For how many clients a named data set suffices: a batch each, or those it has itself."""
    config = Config.from_dict({**shared, "algorithm": BASELINE}, lenient=True)
    if config.task.name != "classification":
        return MOST_CLIENTS
    data = load_cached(config)
    return max(1, len(data.client_names) or len(data.train.labels) // config.train.batch_size)


def _of_no_algorithm(section: AlgorithmOptions) -> InputError:
    """The error for options without an algorithm, where all of them are tuned."""
    owners = {
        option: [n for n, kind in ALGORITHMS.items() if option in options_of(kind.__init__)]
        for option in section.options
    }
    unknown = next((option for option, names in owners.items() if not names), None)
    if unknown is not None:
        return no_such_option(unknown, ALGORITHMS, "algorithm")
    option, names = next(iter(owners.items()))
    expected = f"left out: the options of {listed(names)} are tuned here"
    return InputError(f"algorithm.{option}", section.options[option], expected)


def _tuned_tables(
    tables: Any, section: AlgorithmOptions | None = None
) -> dict[str, Mapping[str, Any]]:
    """The tables of ``[algorithms]`` by label, with the algorithm's name where that differs.

    ``section`` has options for the entries of one algorithm.
    """
    entries = entries_of(tables)
    if section is not None and entries:
        entries = section.added_to(entries)
    ceilings = [k for k, entry in enumerate(entries) if is_ceiling(entry.label)]
    if len(ceilings) > 1:
        label = entries[ceilings[1]].label
        raise InputError("algorithms", label, "left out: advice has one ceiling")
    for k in ceilings:
        entries[k] = replace(entries[k], label=CEILING)
    for entry in entries:
        if str(entry.condition):
            raise InputError(
                "algorithms", entry.label, "on the data and links that are asked about, like all"
            )
    return {entry.label: entry.table() for entry in entries}
