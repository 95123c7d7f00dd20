"""A comparison's folder: one run folder for each algorithm and seed, and what comes of them.

compare.toml            what is compared
inputs/                 copies of the files that it names
ALGORITHM/seed-K/       a run's folder each
comparison.json, table.md, accuracy.png, report.html     written at the end
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedpbc.algorithms import PAPER_ALGORITHMS, find_algorithm
from fedpbc.errors import FedpbcError, InputError, Verbatim
from fedpbc.experiments.build import build_simulation
from fedpbc.experiments.comparison import Cell, Comparison
from fedpbc.experiments.configuration import Config, read_toml
from fedpbc.experiments.run import self_contained, write_inputs
from fedpbc.experiments.run_directory import (
    RunDirectory,
    is_report,
    locked_directory,
    make_directory,
)
from fedpbc.experiments.sweep import GridCell, GridProgress, run_grid
from fedpbc.experiments.tracking import check_trackers
from fedpbc.storage.atomic import write_atomically

__all__ = ["ComparisonDirectory", "ComparisonPlan", "plan_comparison"]


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared: the options that all runs share, the algorithms with theirs, the seeds.

    Example:
        >>> plan = ComparisonPlan({"rounds": 10}, {"fedau": {"cutoff": 5}}, [0, 1])
        >>> plan.config("fedau", 1)
        {'rounds': 10, 'algorithm': {'name': 'fedau', 'cutoff': 5}, 'seed': 1}
    """

    shared: Mapping[str, Any]
    algorithms: Mapping[str, Mapping[str, Any]]
    seeds: Sequence[int]

    def config(self, algorithm: str, seed: int) -> dict[str, Any]:
        """What one run is told."""
        options = {"name": algorithm, **self.algorithms[algorithm]}
        return {**self.shared, "algorithm": options, "seed": seed}

    def first(self) -> Config:
        """One run's configuration; but for the algorithm and the seed they are all the same."""
        return Config.from_dict(self.config(next(iter(self.algorithms)), self.seeds[0]))

    def self_contained(self) -> tuple[str, dict[str, bytes]]:
        """The plan as TOML, and the files it names, by the names it has for them."""
        text, inputs = self_contained(self.first())
        nested = tomllib.loads(text)
        for key in ("algorithm", "seed", "views"):
            nested.pop(key)
        if "views" in self.shared:
            nested["views"] = self.shared["views"]
        algorithms = {name: dict(options) for name, options in self.algorithms.items()}
        plan = {**nested, "seeds": list(self.seeds), "algorithms": algorithms}
        return tomli_w.dumps(plan), inputs


def plan_comparison(given: Mapping[str, Any]) -> ComparisonPlan:
    """Check what is to be compared; raises InputError before anything is written.

    Example:
        >>> plan = plan_comparison({"data": "digits", "clients": 5, "rounds": 2, "seeds": [7]})
        >>> len(plan.algorithms)
        7
    """
    shared = dict(given)
    algorithms = shared.pop("algorithms", list(PAPER_ALGORITHMS))
    if isinstance(algorithms, list | tuple):
        if not all(isinstance(name, str) for name in algorithms):
            raise InputError("algorithms", algorithms, "a list of names")
        if len(set(algorithms)) != len(algorithms):
            raise InputError("algorithms", algorithms, "different ones")
        algorithms = {name: {} for name in algorithms}
    if not isinstance(algorithms, Mapping) or not algorithms:
        raise InputError("algorithms", algorithms, "a list of names, or tables [algorithms.NAME]")
    for name, options in algorithms.items():
        if not isinstance(options, Mapping):
            raise InputError(f"algorithms.{name}", options, f"a table [algorithms.{name}]")
    seeds = shared.pop("seeds", [0, 1, 2])
    numbers = isinstance(seeds, list | tuple) and all(type(s) is int and s >= 0 for s in seeds)
    if not numbers or not seeds or len(set(seeds)) != len(seeds):
        raise InputError("seeds", seeds, "different whole numbers from 0, such as [0, 1, 2]")
    for key in ("algorithm", "seed"):
        if key in shared:
            raise InputError(key, shared[key], f"left out: a comparison has '{key}s'")
    plan = ComparisonPlan(shared, algorithms, seeds)
    for name in algorithms:
        Config.from_dict(plan.config(name, seeds[0]))
    # Data, links and model are the same for all: one of them is built to find what is wrong there.
    first = plan.first()
    check_trackers(first.general.track or ())
    build_simulation(first)
    return plan


class ComparisonDirectory:
    """A comparison on disk.

    Example:
        >>> ComparisonDirectory("nowhere").holds_comparison
        False
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.plan_path = self.path / "compare.toml"
        self.table_path = self.path / "table.md"
        self.plot_path = self.path / "accuracy.png"
        self.json_path = self.path / "comparison.json"
        self.report_path = self.path / "report.html"

    @property
    def holds_comparison(self) -> bool:
        """Whether a comparison was begun here: a plan of ours, not just any file of that name."""
        return bool(self.planned_runs())

    def planned_runs(self) -> list[RunDirectory]:
        """The run folders that the plan in this folder speaks of."""
        try:
            plan = tomllib.loads(self.plan_path.read_text(encoding="utf-8"))
            return [
                RunDirectory(self.path / name / f"seed-{seed}")
                for name in plan["algorithms"]
                for seed in plan["seeds"]
            ]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    @contextmanager
    def opened(self, plan: ComparisonPlan, *, overwrite: bool = False) -> Iterator[None]:
        """Make the folder for a comparison, or go on with the same one, and keep others out."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError("out", str(self.path), "a folder; this is a file")
        if self.path.is_dir() and not self.holds_comparison:
            strangers = {place.name for place in self.path.iterdir()} - {".lock", "inputs"}
            if strangers:
                right = "a new or empty folder"
                raise InputError("out", Verbatim(f"{self.path}, which holds other files"), right)
        # The inputs may lie in the very folder that is to be overwritten: they are read before.
        text, inputs = plan.self_contained()
        if self.holds_comparison and not overwrite and not self._is_same(text, inputs):
            right = "a new folder, or with --overwrite"
            raise InputError("out", Verbatim(f"{self.path}, which holds another comparison"), right)
        make_directory(self.path)
        with locked_directory(self.path):
            if overwrite and self.holds_comparison:
                self._clear()
            write_inputs(self.path, inputs)
            write_atomically(self.plan_path, text)
            yield

    def _is_same(self, text: str, inputs: Mapping[str, bytes]) -> bool:
        places = {self.path / "inputs" / name: content for name, content in inputs.items()}
        same = all(p.is_file() and p.read_bytes() == content for p, content in places.items())
        begun = tomllib.loads(self.plan_path.read_text(encoding="utf-8"))
        wanted = tomllib.loads(text)
        # Who looks on may change.
        for plan in (begun, wanted):
            plan.pop("track", None)
        return same and begun == wanted

    def _clear(self) -> None:
        """Remove what an earlier comparison wrote, and nothing else; its plan last."""
        for run in self.planned_runs():
            if run.path.is_dir():
                with run.locked():
                    run.clear()
                (run.path / ".lock").unlink()
                for folder in (run.path, run.path.parent):
                    if not any(folder.iterdir()):
                        folder.rmdir()
        shutil.rmtree(self.path / "inputs", ignore_errors=True)
        if is_report(self.report_path):
            self.report_path.unlink()
        for place in (self.json_path, self.table_path, self.plot_path, self.plan_path):
            place.unlink(missing_ok=True)

    def load_plan(self, track: Sequence[str] | None = None) -> ComparisonPlan:
        """What was begun here; with other trackers if there are any."""
        given = read_toml(self.plan_path)
        return plan_comparison(given if track is None else {**given, "track": list(track)})

    def cells(self, plan: ComparisonPlan) -> list[tuple[str, int, GridCell]]:
        """All runs, the long ones first: then the cores are busy to the end."""
        found = [
            (name, seed, self._cell(plan, name, seed))
            for name in plan.algorithms
            for seed in plan.seeds
        ]
        return sorted(found, key=lambda c: not find_algorithm(c[0]).everyone_trains)

    def _cell(self, plan: ComparisonPlan, name: str, seed: int) -> GridCell:
        return GridCell(self.path / name / f"seed-{seed}", plan.config(name, seed), self.path)

    def run(
        self, plan: ComparisonPlan, jobs: int, on_progress: Callable[[GridProgress], None]
    ) -> Comparison:
        """Run what is not finished yet; the folder must be opened."""
        cells = self.cells(plan)
        failures = run_grid([cell for *_, cell in cells], jobs, on_progress)
        found = {}
        for (name, seed, cell), failure in zip(cells, failures, strict=True):
            folder = RunDirectory(cell.path)
            if failure is not None:
                found[name, seed] = Cell(name, seed, failure=failure)
                continue
            clients = folder.summary()["clients"]
            found[name, seed] = Cell(name, seed, clients, folder.metrics())
        comparison = Comparison(found[n, s] for n in plan.algorithms for s in plan.seeds)
        if not comparison.finished:
            raise FedpbcError(f"every run failed; the first: {comparison.failed[0].failure}")
        return comparison
