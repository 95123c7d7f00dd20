"""A comparison's folder: one run folder for each algorithm and seed, and what comes of them.

compare.toml            what is compared
ALGORITHM/seed-K/       a run's folder each
comparison.json         the table for machines
table.md                the table for people
accuracy.png            the plot
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedpbc.algorithms import PAPER_ALGORITHMS, find_algorithm
from fedpbc.comparison import Cell, Comparison
from fedpbc.errors import FedpbcError, InputError, Words
from fedpbc.report.plot import plot_comparison
from fedpbc.report.table import markdown_table
from fedpbc.runs.atomic import write_atomically
from fedpbc.runs.build import build_simulation
from fedpbc.runs.config import Config, read_toml
from fedpbc.runs.folder import RunFolder
from fedpbc.runs.grid import GridCell, GridProgress, run_grid
from fedpbc.runs.start import with_own_inputs

__all__ = ["CompareFolder", "ComparePlan", "plan_comparison"]


class ComparePlan:
    """What is compared: the options that all runs share, the algorithms and the seeds."""

    def __init__(
        self,
        shared: Mapping[str, Any],
        algorithms: Mapping[str, Mapping[str, Any]],
        seeds: Sequence[int],
    ) -> None:
        self.shared, self.algorithms, self.seeds = shared, algorithms, seeds

    def config(self, algorithm: str, seed: int) -> dict[str, Any]:
        """What one run is told."""
        options = {"name": algorithm, **self.algorithms[algorithm]}
        return {**self.shared, "algorithm": options, "seed": seed}


def plan_comparison(given: Mapping[str, Any]) -> ComparePlan:
    """Check what is to be compared; raises InputError before anything is written."""
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
    seeds = shared.pop("seeds", [0, 1, 2])
    numbers = isinstance(seeds, Sequence) and all(type(s) is int and s >= 0 for s in seeds)
    if not numbers or not seeds or len(set(seeds)) != len(seeds):
        raise InputError("seeds", seeds, "different whole numbers from 0, such as [0, 1, 2]")
    for key in ("algorithm", "seed"):
        if key in shared:
            raise InputError(key, shared[key], f"left out: a comparison has '{key}s'")
    plan = ComparePlan(shared, algorithms, seeds)
    configs = [Config.from_dict(plan.config(name, seeds[0])) for name in algorithms]
    # Data, links and model are the same for all: one of them is built to find what is wrong there.
    build_simulation(configs[0])
    return plan


class CompareFolder:
    """A comparison on disk."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def plan_path(self) -> Path:
        """What is compared."""
        return self.path / "compare.toml"

    @property
    def plot_path(self) -> Path:
        """The plot."""
        return self.path / "accuracy.png"

    @property
    def table_path(self) -> Path:
        """The table."""
        return self.path / "table.md"

    @property
    def holds_comparison(self) -> bool:
        """Whether a comparison was begun here."""
        return self.plan_path.is_file()

    def create(self, plan: ComparePlan, *, overwrite: bool = False) -> None:
        """Make a folder for a comparison; the same one, begun before, goes on."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError("out", str(self.path), "a folder; this is a file")
        if self.holds_comparison and overwrite:
            self._clear()
        elif self.path.is_dir() and any(self.path.iterdir()) and not self.holds_comparison:
            right = "a new or empty folder"
            raise InputError("out", Words(f"{self.path}, which holds other files"), right)
        self.path.mkdir(parents=True, exist_ok=True)
        text = self._plan_text(plan)
        if self.holds_comparison and self.plan_path.read_text(encoding="utf-8") != text:
            right = "a new folder, or with --overwrite"
            raise InputError("out", Words(f"{self.path}, which holds another comparison"), right)
        write_atomically(self.plan_path, text)

    def _plan_text(self, plan: ComparePlan) -> str:
        first = next(iter(plan.algorithms))
        config = Config.from_dict(plan.config(first, plan.seeds[0]))
        nested = tomllib.loads(with_own_inputs(config, self.path))
        for key in ("algorithm", "seed", "views"):
            nested.pop(key)
        if "views" in plan.shared:
            nested["views"] = plan.shared["views"]
        algorithms = {name: dict(options) for name, options in plan.algorithms.items()}
        return tomli_w.dumps({**nested, "seeds": list(plan.seeds), "algorithms": algorithms})

    def _clear(self) -> None:
        """Remove an earlier comparison, and nothing else."""
        plan = tomllib.loads(self.plan_path.read_text(encoding="utf-8"))
        self.plan_path.unlink()
        for name in plan["algorithms"]:
            shutil.rmtree(self.path / name, ignore_errors=True)
        shutil.rmtree(self.path / "inputs", ignore_errors=True)
        for name in ("comparison.json", "table.md", "accuracy.png"):
            (self.path / name).unlink(missing_ok=True)

    def load_plan(self) -> ComparePlan:
        """What was begun here."""
        return plan_comparison(read_toml(self.plan_path))

    def cells(self, plan: ComparePlan) -> list[tuple[str, int, GridCell]]:
        """All runs, the long ones first: then the cores are busy to the end."""
        found = [
            (name, seed, GridCell(self.path / name / f"seed-{seed}", plan.config(name, seed)))
            for name in plan.algorithms
            for seed in plan.seeds
        ]
        return sorted(found, key=lambda c: not find_algorithm(c[0]).everyone_trains)

    def run(
        self, plan: ComparePlan, jobs: int, on_progress: Callable[[GridProgress], None]
    ) -> Comparison:
        """Run what is not finished yet, and write what comes of it."""
        cells = self.cells(plan)
        failures = run_grid([cell for *_, cell in cells], jobs, on_progress)
        found = {}
        for (name, seed, cell), failure in zip(cells, failures, strict=True):
            folder = RunFolder(cell.path)
            if failure is not None:
                found[name, seed] = Cell(name, seed, failure=failure)
                continue
            clients = folder.summary()["clients"]
            found[name, seed] = Cell(name, seed, clients, folder.metrics())
        comparison = Comparison(found[n, s] for n in plan.algorithms for s in plan.seeds)
        if not comparison.finished:
            raise FedpbcError(f"every run failed; the first: {comparison.failed[0].failure}")
        self.write(comparison, plan)
        return comparison

    def write(self, comparison: Comparison, plan: ComparePlan) -> None:
        """The table and the plot."""
        content = json.dumps(comparison.as_dict(), indent=2) + "\n"
        write_atomically(self.path / "comparison.json", content)
        write_atomically(self.table_path, markdown_table(comparison))
        plot_comparison(comparison, self.plot_path, self.title(plan))

    def title(self, plan: ComparePlan) -> str:
        """What a plot shows."""
        config = Config.from_dict(plan.config(next(iter(plan.algorithms)), plan.seeds[0]))
        what = config.task.name if config.task.name == "quadratic" else config.data.name
        return f"{what} · {config.links['name']}"
