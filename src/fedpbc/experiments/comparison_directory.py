"""A comparison's directory: one run directory for each algorithm and seed, and the results.

fedpbc-manifest.json    which files belong to the comparison; nothing else is ever removed
compare.toml            what is compared
inputs/                 copies of the files that it names
ALGORITHM/seed-K/       a run's directory each
comparison.json, table.md, accuracy.png, report.html     written at the end
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import tomli_w

from fedpbc.algorithms import PAPER_ALGORITHMS, find_algorithm
from fedpbc.errors import DivergedError, FedpbcError, InputError
from fedpbc.experiments.build import build_experiment
from fedpbc.experiments.comparison import Comparison, RunResult
from fedpbc.experiments.config_file import read_toml
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.execution import StoppedError, Watcher
from fedpbc.experiments.integrity import Damage, Verification
from fedpbc.experiments.run_directory import (
    STAGING,
    RunDirectory,
    inputs_named_in,
    is_report,
    write_inputs,
)
from fedpbc.experiments.start import start_run
from fedpbc.experiments.sweep import GridCell, GridProgress, run_grid
from fedpbc.experiments.tracking import check_trackers
from fedpbc.experiments.trust import check_trust, remember_plugins
from fedpbc.limits import parse_toml
from fedpbc.simulation.metrics import Metrics
from fedpbc.storage.atomic import temporary_names, write_atomically
from fedpbc.storage.directories import LOCK, locked_directory, make_directory
from fedpbc.storage.files import read_own_file
from fedpbc.storage.manifest import (
    MANIFEST,
    changed_files,
    is_folder_name,
    is_inside,
    read_manifest,
    write_manifest,
)
from fedpbc.storage.removal import own_files, remove_empty_folder, remove_files
from fedpbc.storage.toml import parsed_toml, toml_text

__all__ = ["DEFAULT_SEEDS", "ComparisonDirectory", "ComparisonPlan", "plan_comparison"]

DEFAULT_SEEDS = (0, 1, 2)
FILES = ("comparison.json", "table.md", "accuracy.png", "compare.toml", MANIFEST)
"""What a comparison writes besides its runs, inputs and report."""


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared: the values that all runs share, algorithms with their options, seeds."""

    shared: Mapping[str, Any]
    algorithms: Mapping[str, Mapping[str, Any]]
    seeds: Sequence[int]

    def config(self, algorithm: str, seed: int) -> dict[str, Any]:
        """The values of one run's configuration."""
        options = {"name": algorithm, **self.algorithms[algorithm]}
        return {**self.shared, "algorithm": options, "seed": seed}

    def first(self) -> Config:
        """One run's configuration; all others differ only in the algorithm and the seed."""
        values = self.config(next(iter(self.algorithms)), self.seeds[0])
        return Config.from_dict(values, lenient=True)

    def self_contained(self) -> tuple[str, dict[str, bytes]]:
        """The plan as TOML with files as ``inputs/NAME``, and the content of these files."""
        nested, inputs = self.first().self_contained()
        for key in ("algorithm", "seed", "views"):
            nested.pop(key)
        if "views" in self.shared:
            nested["views"] = self.shared["views"]
        algorithms = {name: dict(options) for name, options in self.algorithms.items()}
        plan = {**nested, "seeds": list(self.seeds), "algorithms": algorithms}
        return toml_text(plan), inputs


def plan_comparison(values: Mapping[str, Any], *, lenient: bool = False) -> ComparisonPlan:
    """Check what is to be compared; raises InputError before anything is written.

    A setting must have an effect for one of the algorithms, unless ``lenient``.
    """
    shared = dict(values)
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
        if not is_folder_name(name):
            raise InputError("algorithms", name, "a name that a folder can have")
        if not isinstance(options, Mapping):
            raise InputError(f"algorithms.{name}", options, f"a table [algorithms.{name}]")
    seeds = shared.pop("seeds", list(DEFAULT_SEEDS))
    numbers = isinstance(seeds, list | tuple) and all(type(s) is int and s >= 0 for s in seeds)
    if not numbers or not seeds or len(set(seeds)) != len(seeds):
        raise InputError("seeds", seeds, "different whole numbers from 0, such as [0, 1, 2]")
    for key in ("algorithm", "seed"):
        if key in shared:
            raise InputError(key, shared[key], f"left out: a comparison has '{key}s'")
    plan = ComparisonPlan(shared, algorithms, seeds)
    configs = [Config.from_dict(plan.config(name, seeds[0]), lenient=True) for name in algorithms]
    unused = (
        set[str]() if lenient else set.intersection(*(set(config.unused) for config in configs))
    )
    for key in sorted(unused):
        raise InputError(configs[0].unused[key])
    # Data, links and model are the same for all: building one finds what is wrong there.
    first = replace(plan.first(), lenient=lenient)
    check_trackers(first.general.track or ())
    for note in build_experiment(first).notes:
        warnings.warn(note, RuntimeWarning, stacklevel=2)
    return plan


class ComparisonDirectory:
    """A comparison on disk."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.plan_path = self.path / "compare.toml"
        self.table_path = self.path / "table.md"
        self.plot_path = self.path / "accuracy.png"
        self.json_path = self.path / "comparison.json"
        self.report_path = self.path / "report.html"

    @property
    def holds_comparison(self) -> bool:
        """Whether a comparison was begun here: a plan of ours, not just a file of that name."""
        return bool(self.planned_runs())

    def planned_runs(self) -> list[RunDirectory]:
        """The run directories of the plan in this directory; never others."""
        names = [name for name in self._planned_names() if is_inside(self.path, name)]
        return [RunDirectory(self.path / name) for name in names]

    def _planned_names(self) -> list[str]:
        try:
            plan = parse_toml(read_own_file(self.path, self.plan_path.name).decode())
            pairs = product(plan["algorithms"], plan["seeds"])
            return [f"{name}/seed-{int(seed)}" for name, seed in pairs if is_folder_name(name)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return []

    def _misplaced(self, runs: Iterable[str]) -> Iterator[Damage]:
        """Links in place of the inputs or on the way to runs; a lock that is no file."""
        folders = dict.fromkeys(name for run in runs for name in (run.partition("/")[0], run))
        for path in (self.path / name for name in ("inputs", *folders)):
            if path.is_symlink():
                yield Damage(path, "it is a link, which is not followed; remove it", False)
        lock = self.path / LOCK
        if lock.is_symlink() or (lock.exists() and not lock.is_file()):
            yield Damage(lock, "it is not a regular file; remove it", False)

    @property
    def was_begun(self) -> bool:
        """Whether a comparison was begun here, even if its plan is damaged now."""
        return self.holds_comparison or read_manifest(self.path, "comparison") is not None

    @property
    def _is_ours(self) -> bool:
        """Whether we made this directory: a plan that was written by hand is the user's."""
        if read_manifest(self.path, "comparison") is not None:
            return True
        # Earlier versions wrote no manifest.
        if not any(run.path.is_dir() for run in self.planned_runs()):
            return False
        text = read_own_file(self.path, self.plan_path.name).decode()
        return tomli_w.dumps(parse_toml(text)) == text

    @contextmanager
    def opened(self, plan: ComparisonPlan, *, overwrite: bool = False) -> Iterator[None]:
        """Make the directory for a comparison, or continue the same one, and lock it."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError("out", str(self.path), "a folder; this is a file")
        runs = (f"{name}/seed-{seed}" for name, seed in product(plan.algorithms, plan.seeds))
        for misplaced in self._misplaced(runs):
            raise InputError(str(misplaced))
        entries = set(self.path.iterdir()) if self.path.is_dir() else set()
        leftovers = own_files(self.path, [LOCK, temporary_names(MANIFEST)])
        if entries - set(leftovers) and not self._is_ours:
            hint = " (its compare.toml was not written by a comparison)" * self.holds_comparison
            raise InputError(
                f"out: {self.path} holds other files{hint}; choose a new or empty folder"
            )
        # The inputs may lie in the very directory that is to be overwritten: they are read before.
        text, inputs = plan.self_contained()
        if self.holds_comparison and not overwrite and not self._is_same(text, inputs):
            raise InputError(
                f"out: {self.path} holds another comparison; choose a new folder, or replace it "
                "with --overwrite"
            )
        remember_plugins(plan.first().code)
        make_directory(self.path)
        with locked_directory(self.path):
            if overwrite and self.holds_comparison:
                self._rehearse(plan)
                self._clear()
            self._write_plan(text, inputs)
            yield

    def _write_plan(self, text: str, inputs: Mapping[str, bytes]) -> None:
        contents = {f"inputs/{name}": content for name, content in inputs.items()}
        contents[self.plan_path.name] = text.encode()
        if self.plan_path.is_file() and self.plan_path.read_bytes() == text.encode():
            return  # It goes on; the inputs were compared before.
        # Without checksums first: a kill must not make a plan look damaged that is half-written.
        write_manifest(self.path, "comparison", [*contents, *FILES])
        write_inputs(self.path, inputs)
        write_atomically(self.plan_path, text)
        checksums = {name: sha256(content).hexdigest() for name, content in contents.items()}
        write_manifest(self.path, "comparison", [*contents, *FILES], checksums)

    def _rehearse(self, plan: ComparisonPlan) -> None:
        """Run a round of every algorithm, before an earlier comparison is removed for this one."""

        def stop(done: int, metrics: Metrics | None) -> None:
            raise StoppedError("stopped after its first round")

        run, diverged = RunDirectory(self.path / STAGING), []
        for name in plan.algorithms:
            values = {**plan.config(name, plan.seeds[0]), "track": []}
            try:
                start_run(
                    Config.from_dict(values, lenient=True), run.path, watcher=Watcher(on_round=stop)
                )
            except StoppedError:
                pass
            except DivergedError as error:
                # The others may be worth comparing.
                diverged.append(error)
            finally:
                run.clear()
                remove_files(run.path, [LOCK])
                remove_empty_folder(run.path)
        if len(diverged) == len(plan.algorithms):
            raise diverged[0]

    def _is_same(self, text: str, inputs: Mapping[str, bytes]) -> bool:
        files = {self.path / "inputs" / name: content for name, content in inputs.items()}
        same = all(p.is_file() and p.read_bytes() == content for p, content in files.items())
        begun = parsed_toml(self.plan_path)
        requested = parse_toml(text)
        # Trackers may change.
        for plan in (begun, requested):
            plan.pop("track", None)
        return same and begun == requested

    def _clear(self) -> None:
        """Remove what an earlier comparison wrote, and nothing else; its plan last."""
        for run in self.planned_runs():
            if run.path.is_dir():
                with run.locked():
                    run.clear()
                remove_files(run.path, [LOCK])
                for folder in (run.path, run.path.parent):
                    remove_empty_folder(folder)
        inputs = {f"inputs/{file.name}" for file in own_files(self.path, ["inputs/*"])}
        listed = read_manifest(self.path, "comparison")
        # Earlier versions wrote no manifest; their plan names the inputs.
        known = inputs_named_in(self.plan_path.read_text(encoding="utf-8"))
        remove_files(self.path, inputs & ({*listed} if listed is not None else known))
        remove_empty_folder(self.path / "inputs")
        if is_report(self.report_path):
            remove_files(self.path, [self.report_path.name])
        remove_files(self.path, FILES)

    def verify(self) -> Verification:
        """Check the plan and its inputs; the runs are checked one by one."""
        names = changed_files(self.path, "comparison")
        reason = "it is not as it was written; restore it, or start again with --overwrite"
        damage = [Damage(self.path / name, reason, repairable=False) for name in names]
        damage += self._misplaced(self._planned_names())
        if not damage and not self.holds_comparison:
            damage = [Damage(self.plan_path, "it is no plan of runs in this folder", False)]
        state = "comparison"
        return Verification(self.path, state, tuple(damage), checked=1)

    def load_plan(
        self, track: Sequence[str] | None = None, *, trust: bool = False
    ) -> ComparisonPlan:
        """The plan in this directory, with other trackers if they are given.

        ``trust`` allows plugins that this user has not run on this machine.
        """
        for each in self.verify().damage:
            raise InputError(str(each))
        values = read_toml(self.plan_path)
        for name in values.get("algorithms", ()):
            if not is_folder_name(str(name)):
                raise InputError(f"algorithms in {self.plan_path}", name, "the name of a folder")
        check_trust(self.path, values, trust=trust)
        for run in self.planned_runs() if trust else ():
            if run.holds_run:
                check_trust(run.path, read_toml(run.config_path), trust=True)
        values = values if track is None else {**values, "track": list(track)}
        return plan_comparison(values, lenient=True)

    def cells(self, plan: ComparisonPlan) -> list[tuple[str, int, GridCell]]:
        """All runs, the long ones first: then the cores are busy to the end."""
        cells = []
        for name, seed in product(plan.algorithms, plan.seeds):
            path = self.path / name / f"seed-{seed}"
            cells.append((name, seed, GridCell(path, plan.config(name, seed), self.path)))
        return sorted(cells, key=lambda cell: not find_algorithm(cell[0]).everyone_trains)

    def run(
        self, plan: ComparisonPlan, jobs: int, on_progress: Callable[[GridProgress], None]
    ) -> Comparison:
        """Run what is not finished yet; the directory must be opened."""
        cells = self.cells(plan)
        failures = run_grid([cell for *_, cell in cells], jobs, on_progress)
        results = {}
        for (name, seed, cell), failure in zip(cells, failures, strict=True):
            result = RunResult(name, seed, failure=failure)
            if failure is None:
                run = RunDirectory(cell.path)
                summary = run.summary()
                result = RunResult(
                    name, seed, summary["clients"], run.metrics(), cost=summary["cost"]
                )
            results[name, seed] = result
        comparison = Comparison(results[pair] for pair in product(plan.algorithms, plan.seeds))
        if not comparison.finished:
            raise FedpbcError(f"every run failed; the first: {comparison.failed[0].failure}")
        return comparison
