"""What a comparison compares: settings that all entries share, the entries, and the seeds."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Annotated, Any

from annotated_types import Ge

from fedpbc.algorithms import PAPER_ALGORITHMS
from fedpbc.errors import InputError
from fedpbc.experiments.algorithm_section import take_algorithm
from fedpbc.experiments.build import build_experiment
from fedpbc.experiments.conditions import EVERY_LINK_UP
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.entries import Entry, is_ceiling
from fedpbc.experiments.plugins import load_plugins
from fedpbc.experiments.seeds import DEFAULT_SEEDS, seed_list
from fedpbc.experiments.setting_names import CONFIGURATION
from fedpbc.experiments.settings import FILES, PLACES, SECTIONS
from fedpbc.experiments.swept_entries import comparison_entries
from fedpbc.experiments.tracking import check_trackers
from fedpbc.limits import MAX_INTEGER, check_encodable, check_values
from fedpbc.options import check_type
from fedpbc.storage.files import expanded, read_regular_file
from fedpbc.storage.toml import toml_text

__all__ = ["DEFAULT_SEEDS", "ComparisonPlan", "parse_plan", "plan_comparison"]

DEPENDENT = {"data": ("model",), "task": ("data", "model")}
"""Sections whose defaults depend on another section."""


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared: the values that all runs share, the entries by label, the seeds."""

    shared: Mapping[str, Any]
    entries: Mapping[str, Entry]
    seeds: Sequence[int]

    def config(self, label: str, seed: int) -> dict[str, Any]:
        """The values of one run's configuration."""
        return {**self.entries[label].applied_to(self.shared), "seed": seed}

    def checked(self, label: str) -> Config:
        """The checked configuration of an entry with the first seed; errors name the entry."""
        entry = self.entries[label]
        try:
            config = Config.from_dict(self.config(label, self.seeds[0]), lenient=True)
        except InputError as error:
            if not (entry.options or entry.settings):
                raise
            raise InputError(f"algorithms.{label}: {error}") from None
        if is_ceiling(label):
            _check_ceiling(entry, config)
        return config

    def first(self) -> Config:
        """The configuration of the first entry; others differ in their overrides and the seed."""
        return self.checked(next(iter(self.entries)))

    def algorithm_of(self, label: str) -> str:
        """The name of an entry's algorithm."""
        return self.entries[label].algorithm

    def self_contained(self) -> tuple[str, dict[str, bytes]]:
        """The plan as TOML with files as ``inputs/NAME``, and the content of these files."""
        overridden = {key for entry in self.entries.values() for key in entry.settings}
        nested, inputs, as_given = self._complete_shared(overridden)
        # A table of links has its own number of rounds.
        for key in ("algorithm", "seed", "rounds", "views", *as_given):
            nested.pop(key, None)
        for key in ("rounds", "views", *as_given):
            if self.shared.get(key) is not None:
                nested[key] = _with_copies(key, self.shared[key], inputs)
        for section in (overridden & {*SECTIONS} & {*nested}) - as_given:
            given = self.shared.get(section)
            nested[section] = {
                option: value
                for option, value in nested[section].items()
                if option == "name"
                or (isinstance(given, Mapping) and option in given)
                or self.reaches_an_entry(nested, section, option)
            }
        algorithms = {
            label: {
                key: _with_copies(key, value, inputs, by_content=True)
                for key, value in table.items()
            }
            for label, table in ((e.label, e.table()) for e in self.entries.values())
        }
        plan = {**nested, "seeds": list(self.seeds), "algorithms": algorithms}
        check_encodable(plan)
        return toml_text(plan), inputs

    def reaches_an_entry(self, shared: Mapping[str, Any], section: str, option: str) -> bool:
        """Whether an entry has an option that is shared: another scheme of its own has others."""
        tables = [e.applied_to(shared).get(section) for e in self.entries.values()]
        return any(isinstance(table, Mapping) and option in table for table in tables)

    def _complete_shared(
        self, overridden: set[str]
    ) -> tuple[dict[str, Any], dict[str, bytes], set[str]]:
        """The shared values with defaults, their files, and what must be written as it was given.

        A default is not written where it depends on what an entry overrides.
        """
        first = next(iter(self.entries.values()))
        as_given = {key for name in overridden for key in DEPENDENT.get(name, ())}
        as_given |= overridden & {"task"}
        try:
            values = {**self.shared, "algorithm": first.algorithm}
            nested, inputs = Config.from_dict(values, lenient=True).self_contained()
        except InputError:
            # Every entry completes it, as with a trace for each.
            nested, inputs = self.first().self_contained()
            as_given |= overridden
            names = {f"inputs/{name}" for name in inputs}
            kept = json.dumps({k: v for k, v in nested.items() if k not in as_given})
            inputs = {n.removeprefix("inputs/"): inputs[n[7:]] for n in names if n in kept}
        return nested, inputs, as_given


def _with_copies(
    section: str, table: Any, inputs: dict[str, bytes], *, by_content: bool = False
) -> Any:
    """A section with its files as ``inputs/NAME``; their content is added to ``inputs``.

    ``by_content`` is for an entry's file, which is named by its content, too: other entries may
    have others.
    """
    if not isinstance(table, Mapping):
        return table
    copied = dict(table)
    for name, value in table.items():
        if not isinstance(value, str):
            continue
        if (section, name) in PLACES:
            copied[name] = str(expanded(value, f"{section}.{name}").resolve())
        if (section, name) in FILES:
            file = expanded(value, f"{section}.{name}")
            try:
                content = read_regular_file(file, limit=MAX_INTEGER - 1)
            except OSError as error:
                raise InputError(f"{file} cannot be read: {error.strerror}") from None
            part = f"-{sha256(content).hexdigest()[:12]}" if by_content else ""
            inputs[f"{section}-{name}{part}{file.suffix}"] = content
            copied[name] = f"inputs/{section}-{name}{part}{file.suffix}"
    return copied


def plan_comparison(values: Mapping[str, Any], *, lenient: bool = False) -> ComparisonPlan:
    """Check what is to be compared; raises InputError before anything is written.

    A setting must have an effect for one of the entries, unless ``lenient``.

    Example:
        >>> plan = plan_comparison({"algorithms": ["fedpbc", "fedau:cutoff=5"], "data": "digits",
        ...                         "clients": 5, "rounds": 2, "seeds": "0-4", "ceiling": True})
        >>> list(plan.entries), plan.seeds
        (['fedpbc', 'fedau:cutoff=5', 'ceiling'], [0, 1, 2, 3, 4])
    """
    plan = parse_plan(values)
    configs = {label: plan.checked(label) for label in plan.entries}
    if not lenient:
        _check_used(plan, configs)
    check_trackers(plan.first().general.track or ())
    notes: dict[str, None] = {}
    for label in _distinct_setups(configs):
        settings = plan.entries[label].settings
        # What a scheme of its own does not read may be for the others.
        spared = any("name" in settings[key] for key in ("links", "downlink") if key in settings)
        experiment = build_experiment(replace(configs[label], lenient=lenient or spared))
        notes |= dict.fromkeys(experiment.notes)
    for note in notes:
        warnings.warn(note, RuntimeWarning, stacklevel=2)
    return plan


def parse_plan(values: Mapping[str, Any]) -> ComparisonPlan:
    """The plan that the values of a configuration describe; the settings are not checked yet."""
    check_values(values)
    shared = dict(values)
    load_plugins(shared)
    entries = _entries(shared)
    seed = check_type("seed", shared.pop("seed", None), Annotated[int, Ge(0)] | None)
    seeds = seed_list(shared.pop("seeds", DEFAULT_SEEDS if seed is None else [seed]))
    return ComparisonPlan(shared, {entry.label: entry for entry in entries}, seeds)


def _entries(shared: dict[str, Any]) -> list[Entry]:
    """Take the entries out of the values of a configuration."""
    section = take_algorithm(shared)
    named = section is not None and section.name is not None
    default = [section.name] if section is not None and named else list(PAPER_ALGORITHMS)
    algorithms = shared.pop("algorithms", default)
    sweep, ceiling = shared.pop("sweep", {}), shared.pop("ceiling", False)
    return comparison_entries(algorithms, sweep, ceiling, CONFIGURATION, section)


def _check_ceiling(entry: Entry, config: Config) -> None:
    """Raise InputError unless every link of a ceiling is up."""
    for section in EVERY_LINK_UP:
        name, where = getattr(config, section)["name"], f"algorithms.{entry.label}.{section}"
        if name != "always":
            raise InputError(f"{where}.name", name, "'always': it is every link up")
        table = entry.settings.get(section, {})
        for option in table if isinstance(table, Mapping) else ():
            if option != "name":
                raise InputError(f"{where}.{option}", table[option], "left out: every link is up")


def _check_used(plan: ComparisonPlan, configs: Mapping[str, Config]) -> None:
    """Raise InputError for a setting that none of those who have it reads."""
    only_ceilings = all(map(is_ceiling, plan.entries))
    for section, options in plan.shared.items() if not only_ceilings else ():
        for option in options if section in SECTIONS and isinstance(options, Mapping) else ():
            if option != "name" and not plan.reaches_an_entry(plan.shared, section, option):
                raise InputError(
                    f"{section}.{option} is {options[option]!r}, but every entry chooses its own "
                    f"{section}: give it to those entries"
                )
    for key in sorted({key for config in configs.values() for key in config.unused}):
        section, _, option = key.rpartition(".")
        labels = [
            label
            for label, entry in plan.entries.items()
            if option in (entry.settings.get(section, {}) if section else entry.settings)
        ]
        concerned = [configs[label] for label in labels or configs]
        if all(key in config.unused for config in concerned):
            raise InputError(concerned[0].unused[key])


def _distinct_setups(configs: Mapping[str, Config]) -> Iterable[str]:
    """One entry for each set-up of data, links and model: building it finds what is wrong there."""
    setups: dict[str, str] = {}
    for label, config in configs.items():
        values = config.to_dict()
        for key in ("algorithm", "train", "views", "evaluate_every", "evaluate_every_at_end"):
            values.pop(key, None)
        setups.setdefault(json.dumps(values, sort_keys=True, default=str), label)
    return setups.values()
