"""Which runs an experiment is made of: data × links × algorithms × seeds, each with its folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpbc.algorithms import PAPER_ALGORITHMS, find_algorithm
from fedpbc.data.sources import SOURCES
from fedpbc.errors import InputError, Verbatim
from fedpbc.experiments.plugins import load_plugin
from fedpbc.options import nearest
from fedpbc.paper.experiment import ExperimentRequest

__all__ = ["PlannedRun", "PlotGroup", "algorithms_of", "groups_of", "merged", "planned", "seeds_of"]

PAPER_ROUNDS = {"svhn": 4000}
OTHER_ROUNDS = 10_000
"""T of the paper's tables."""
EVERYONE = 10
"""Where every client trains, a round takes about so many times as long as where few do."""


@dataclass(frozen=True)
class PlotGroup:
    """Runs that are compared with each other: they differ in algorithm and seed alone.

    Attributes:
        key: what tells the group from the others, and its folder.
        data: name of the data set.
        links: name of the link scheme.
        rounds: T.
        changes: options that make the group what it is.

    Example:
        >>> PlotGroup(("digits", "always"), "digits", "always", 10).title
        'digits · always'
    """

    key: tuple[str, ...]
    data: str
    links: str
    rounds: int
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """For people."""
        return " · ".join(self.key)


@dataclass(frozen=True)
class PlannedRun:
    """One run of an experiment.

    Attributes:
        group: which it is compared in.
        algorithm: by name.
        seed: of everything random.
        config: what the run is told.
        weight: how long a round takes, beside others.
    """

    group: PlotGroup
    algorithm: str
    seed: int
    config: Mapping[str, Any]
    weight: int = 1

    @property
    def length(self) -> int:
        """How long the run takes, beside others."""
        return self.weight * self.group.rounds

    @property
    def place(self) -> str:
        """Its folder, below the experiment's."""
        return "/".join([*self.group.key, self.algorithm, f"seed-{self.seed}"])

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.group.title} · {self.algorithm} seed {self.seed}"


def algorithms_of(wanted: ExperimentRequest) -> list[str]:
    """The algorithms that are wanted, the paper's seven unless others are named."""
    for plugin in wanted.settings.get("plugins") or ():
        load_plugin(plugin)
    names = _different("algorithms", wanted.algorithms, PAPER_ALGORITHMS)
    for name in names:
        find_algorithm(name)
    own = wanted.settings.get("algorithms", {})
    for name, options in own.items() if isinstance(own, Mapping) else ():
        if options and name not in names:
            raise InputError("--set", f"algorithms.{name}", f"of one of {', '.join(names)}")
    return names


def seeds_of(wanted: ExperimentRequest, default: Sequence[int]) -> list[int]:
    """The seeds that are wanted."""
    seeds = _different("seeds", wanted.seeds, default)
    if any(seed < 0 for seed in seeds):
        raise InputError("seeds", seeds, "whole numbers from 0, such as 0,1,2")
    return seeds


def _different(option: str, given: Sequence[Any] | None, default: Sequence[Any]) -> list[Any]:
    found = list(default if given is None else given)
    if not found or len(set(found)) != len(found):
        raise InputError(option, found, "different ones, at least one")
    return found


def groups_of(
    wanted: ExperimentRequest, data: Sequence[str], links: Sequence[str], rounds: int | None = None
) -> list[PlotGroup]:
    """A group for each data set and link scheme that is wanted.

    ``data`` and ``links`` are taken unless others are wanted; ``rounds`` of None: the paper's.
    """
    sets = _different("data", wanted.data, data)
    schemes = _different("links", wanted.links, links)
    for name in sets:
        if name not in SOURCES:
            raise InputError("data", name, nearest(name, SOURCES))
    if wanted.rounds is not None and wanted.rounds < 1:
        raise InputError("rounds", wanted.rounds, "at least 1")
    return [
        PlotGroup(
            (name, scheme),
            name,
            scheme,
            wanted.rounds or rounds or PAPER_ROUNDS.get(name, OTHER_ROUNDS),
        )
        for name in sets
        for scheme in schemes
    ]


def planned(
    wanted: ExperimentRequest,
    groups: Sequence[PlotGroup],
    seeds: Sequence[int],
    *,
    evaluate_every: int,
    train: Mapping[tuple[str, str], Mapping[str, float]] | None = None,
) -> list[PlannedRun]:
    """The runs of all groups, in the order in which they are shown.

    ``train`` has step sizes for data sets and algorithms; what is set by hand outranks them, and
    what makes a group what it is outranks everything.
    """
    algorithms = algorithms_of(wanted)
    settings = _settings(wanted)
    own = settings.pop("algorithms", {})
    folders = _data_folders(wanted, [group.data for group in groups])
    runs = []
    for group in groups:
        for name in algorithms:
            base = {
                "rounds": group.rounds,
                "evaluate_every": evaluate_every,
                "data": {"name": group.data} | folders[group.data],
                "links": {"name": group.links},
                "train": dict((train or {}).get((group.data, name), {})),
            }
            fixed = {"algorithm": {"name": name, **own.get(name, {})}}
            everyone = EVERYONE if find_algorithm(name).everyone_trains else 1
            for seed in seeds:
                config = merged(base, settings, group.changes, fixed, {"seed": seed})
                runs.append(PlannedRun(group, name, seed, config, everyone))
    return runs


OPTION_OF = {
    "rounds": "--rounds",
    "seed": "--seeds",
    "seeds": "--seeds",
    "algorithm": "--algorithms",
}


def _settings(wanted: ExperimentRequest) -> dict[str, Any]:
    """What was set for every run, without what has an option of its own."""
    settings = dict(wanted.settings)
    for key, option in OPTION_OF.items():
        if key in settings:
            raise InputError("--set", key, f"left out: {option} says that here")
    if "task" in settings:
        raise InputError("--set", "task", "left out: the paper's tables are of classification")
    for section, option in (("links", "--links"), ("data", "--data")):
        table = settings.get(section, {})
        if isinstance(table, str) or "name" in table:
            raise InputError("--set", f"{section}.name", f"left out: {option} says that here")
    own = settings.get("algorithms", {})
    if not isinstance(own, Mapping):
        raise InputError("--set", "algorithms", "left out: --algorithms says that here")
    return settings


def _data_folders(wanted: ExperimentRequest, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Where each data set is: in the given folder, or in one of its name there."""
    names = list(dict.fromkeys(names))
    if wanted.data_dir is None:
        return {name: {} for name in names}
    place = Path(wanted.data_dir).expanduser()
    fetched = [name for name in names if SOURCES[name].repository]
    if not fetched:
        right = f"left out: {', '.join(names)} lies in the package"
        raise InputError("--data-dir", str(place), right)
    if not place.is_dir():
        raise InputError("--data-dir", str(place), "an existing folder")
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    for name in fetched:
        repository = SOURCES[name].repository
        inside = place / name
        if len(fetched) > 1 and not inside.is_dir() and not (place / repository).is_dir():
            # Files that lie in it directly could be any one of them, and not all.
            right = f"one that holds {repository}/ or {name}/, for {name}"
            raise InputError("--data-dir", Verbatim(str(place)), right)
        found[name] = {"dir": str((inside if inside.is_dir() else place).resolve())}
    return found


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables in one; the later outranks.

    Example:
        >>> merged({"links": {"name": "always"}}, {"links": {"p": 0.5}, "seed": 1})
        {'links': {'name': 'always', 'p': 0.5}, 'seed': 1}
    """
    found: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            inner = found.get(key)
            both = isinstance(value, Mapping) and isinstance(inner, Mapping)
            found[key] = merged(inner, value) if both else value  # type: ignore[arg-type]
    return found
