"""The runs of an experiment: conditions × algorithms × seeds, each with its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedpbc.algorithms import PAPER_ALGORITHMS, find_algorithm
from fedpbc.errors import InputError
from fedpbc.experiments.sweep import round_weight
from fedpbc.paper.catalog import ExperimentRequest
from fedpbc.paper.request import (
    algorithm_options,
    data_folders,
    merge,
    requested_algorithms,
    requested_data,
    requested_links,
    requested_rounds,
)

__all__ = [
    "PAPER_DATA",
    "PaperCondition",
    "PlannedRun",
    "full_rounds",
    "plan_conditions",
    "plan_runs",
]

PAPER_DATA = ("svhn", "cifar10", "cinic10")
PAPER_ROUNDS = {"svhn": 4000}
OTHER_ROUNDS = 10_000
"""T of the paper's tables."""
LINK_OPTIONS: Mapping[str, Mapping[str, Any]] = {"cyclic_reset": {"gamma": 0.4}}
"""Of link schemes whose default is the paper's text, but whose published figures are not."""
EVALUATE_EVERY_AT_END = 10
"""As in the released code; before the rounds that are averaged, evaluations serve curves only."""


def full_rounds(data: str) -> int:
    """T of the paper's tables for a data set."""
    return PAPER_ROUNDS.get(data, OTHER_ROUNDS)


def evaluations(rounds: int) -> dict[str, int]:
    """How often to evaluate runs whose last rounds are averaged: else about 100 or 20 times.

    Example:
        >>> evaluations(10_000)["evaluate_every"], evaluations(450)["evaluate_every"]
        (100, 20)
    """
    every = EVALUATE_EVERY_AT_END * min(10, max(1, rounds // 200))
    return {"evaluate_every": every, "evaluate_every_at_end": EVALUATE_EVERY_AT_END}


@dataclass(frozen=True)
class PaperCondition:
    """What is the same for all runs that are compared: they differ in algorithm and seed only.

    Attributes:
        key: identifies the condition; also its path below the experiment's folder.
        data: name of the data set.
        links: name of the link scheme.
        rounds: T.
        changes: options that distinguish the condition from others.
    """

    key: tuple[str, ...]
    data: str
    links: str
    rounds: int
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """A readable name."""
        return " · ".join(self.key)


@dataclass(frozen=True)
class PlannedRun:
    """One run of an experiment; ``condition`` is shared with the runs that it is compared with."""

    condition: PaperCondition
    algorithm: str
    seed: int
    config: Mapping[str, Any]

    @property
    def weight(self) -> int:
        """Cost of a round relative to other runs."""
        return round_weight(find_algorithm(self.algorithm).everyone_trains)

    @property
    def cost(self) -> int:
        """Duration of the run relative to others."""
        return self.weight * self.condition.rounds

    @property
    def folder(self) -> str:
        """Its folder, relative to the experiment's."""
        return "/".join([*self.condition.key, self.algorithm, f"seed-{self.seed}"])

    @property
    def label(self) -> str:
        """A readable name."""
        return f"{self.condition.title} · {self.algorithm} seed {self.seed}"


def plan_conditions(
    request: ExperimentRequest, data: Sequence[str], links: Sequence[str], rounds: int | None = None
) -> list[PaperCondition]:
    """One condition for each data set and link scheme.

    ``data``, ``links`` and ``rounds`` are the defaults; ``rounds`` of None: as in the paper. With
    ``--quick`` the default data is in the package.
    """
    return [
        PaperCondition(
            (name, scheme),
            name,
            scheme,
            requested_rounds(request, rounds or full_rounds(name)),
        )
        for name in requested_data(request, ["fashion"] if request.quick else data)
        for scheme in requested_links(request, links)
    ]


def plan_runs(
    request: ExperimentRequest,
    conditions: Sequence[PaperCondition],
    seeds: Sequence[int],
    *,
    evaluate_every: int | None = None,
    train: Mapping[tuple[str, str], Mapping[str, float]] | None = None,
) -> list[PlannedRun]:
    """The runs of all conditions, in the order of the tables.

    ``evaluate_every``: rounds between evaluations; None: often only where they are averaged, in the
    last rounds. ``train`` has step sizes by data set and algorithm. The request's settings take
    precedence over them, and a condition's changes over both.
    """
    algorithms = requested_algorithms(request, PAPER_ALGORITHMS)
    settings = _shared_settings(request)
    folders = data_folders(request, dict.fromkeys(c.data for c in conditions))
    runs = []
    for condition in conditions:
        for name in algorithms:
            defaults = {
                "rounds": condition.rounds,
                **(
                    evaluations(condition.rounds)
                    if evaluate_every is None
                    else {"evaluate_every": evaluate_every}
                ),
                "data": {"name": condition.data} | folders[condition.data],
                "links": {"name": condition.links, **LINK_OPTIONS.get(condition.links, {})},
                "train": dict((train or {}).get((condition.data, name), {})),
            }
            algorithm = {"algorithm": algorithm_options(request, name)}
            for seed in seeds:
                config = merge(defaults, settings, condition.changes, algorithm, {"seed": seed})
                runs.append(PlannedRun(condition, name, seed, config))
    return runs


def _shared_settings(request: ExperimentRequest) -> dict[str, Any]:
    """The settings of every run; those with an option of their own are refused."""
    settings = {key: value for key, value in request.settings.items() if key != "algorithms"}
    for key in settings:
        if key in ("rounds", "seed", "seeds", "algorithm"):
            raise InputError(f"'--set {key}' is not allowed here: use --{key.rstrip('s')}s")
    if "task" in settings:
        raise InputError("'--set task' is not allowed here: the tables are about classification")
    for section in ("links", "data"):
        table = settings.get(section, {})
        if isinstance(table, str) or "name" in table:
            raise InputError(f"'--set {section}.name' is not allowed here: use --{section}")
    return settings
