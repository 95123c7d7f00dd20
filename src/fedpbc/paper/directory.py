"""The folder of an experiment that consists of runs.

plan.toml           which runs there are, each with a fingerprint of its options
inputs/             copies of the plugins
…/ALGORITHM/seed-K/ one run folder each
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomli_w

from fedpbc.algorithms import find_algorithm
from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.build import build_experiment
from fedpbc.experiments.checkpoints import rounds_of
from fedpbc.experiments.config_file import read_own_toml
from fedpbc.experiments.configuration import Config, identity
from fedpbc.experiments.integrity import damage_of
from fedpbc.experiments.result_folder import check_result_folder
from fedpbc.experiments.run_directory import RunDirectory, is_report, write_inputs
from fedpbc.experiments.run_result import RunResult
from fedpbc.experiments.settings import EXECUTION, FILES
from fedpbc.experiments.sweep import GridCell, GridProgress, count_run_alone, run_grid
from fedpbc.experiments.trial_round import clear_trial_round, run_trial_round
from fedpbc.experiments.trust import remember_plugins
from fedpbc.limits import parse_toml
from fedpbc.paper.plan import PlannedRun
from fedpbc.parallel import usable_cores
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.directories import LOCK, locked_directory, make_directory
from fedpbc.storage.files import read_own_file, read_regular_file
from fedpbc.storage.manifest import MANIFEST, is_inside, read_manifest, write_manifest
from fedpbc.storage.removal import remove_empty_folder, remove_files

__all__ = ["PaperDirectory", "read_plan"]

RESULT_SUFFIXES = (".md", ".json", ".png", ".svg", ".pdf")


class PaperDirectory:
    """An experiment on disk."""

    def __init__(self, path: Path | str, experiment: str) -> None:
        self.path = Path(path)
        self.experiment = experiment

    @property
    def recorded_runs(self) -> dict[str, str]:
        """The fingerprints of all runs planned here so far, by folder."""
        plan = read_plan(self.path)
        return dict(plan["cells"]) if plan else {}

    @contextmanager
    def opened(
        self, runs: Sequence[PlannedRun], command: str, *, overwrite: bool = False
    ) -> Iterator[list[PlannedRun]]:
        """Create or continue the experiment's folder, and lock it.

        Yields the runs, configured with copies of their plugins. An experiment may be widened or
        narrowed: runs whose options are unchanged are kept.
        """
        self._refuse_foreign_folder(runs)
        # Read before anything is removed: a plugin may lie in the folder that is overwritten.
        inputs = _read_plugins(runs)
        fingerprints = {run.folder: fingerprint(run.config) for run in runs}
        if not overwrite:
            self._refuse_changed_runs(runs, fingerprints)
        remember_plugins(plugin for run in runs for plugin in run.config.get("plugins") or ())
        make_directory(self.path)
        with locked_directory(self.path):
            clear_trial_round(self.path)
            if overwrite:
                if self.recorded_runs:
                    run_trial_round(self.path, self._first_configs(runs))
                self._clear([*self.recorded_runs, *fingerprints])
            write_inputs(self.path, inputs)
            plan = {
                "experiment": self.experiment,
                "command": command,
                "cells": {**self.recorded_runs, **fingerprints},
            }
            write_atomically(self.path / "plan.toml", tomli_w.dumps(plan))
            copies = [str((self.path / "inputs" / name).resolve()) for name in inputs]
            plugins = {"plugins": copies} if copies else {}
            yield [replace(run, config={**run.config, **plugins}) for run in runs]

    def _first_configs(self, runs: Sequence[PlannedRun]) -> list[Mapping[str, Any]]:
        """The first configuration of each algorithm on each data set."""
        first: dict[tuple[str, str], Mapping[str, Any]] = {}
        for run in runs:
            first.setdefault((run.condition.data, run.algorithm), run.config)
        return list(first.values())

    def _refuse_foreign_folder(self, runs: Sequence[PlannedRun]) -> None:
        if self.path.is_dir():
            self._refuse_misplaced(runs)
        plan = read_plan(self.path)
        check_result_folder(self.path, lambda: plan is not None or self._is_leftover(runs))
        if plan is not None and plan["experiment"] != self.experiment:
            raise InputError(
                f"{self.path} holds the experiment {plan['experiment']}: use another folder as out"
            )

    def _refuse_misplaced(self, runs: Sequence[PlannedRun]) -> None:
        """Refuse links on the way to the runs, and folders in place of results."""
        for folder in ("inputs", *(run.folder for run in runs)):
            if not is_inside(self.path, folder):
                raise InputError(
                    f"{self.path / folder} is a link, or behind one, which is not followed: "
                    "remove it"
                )
        for entry in self.path.iterdir():
            if entry.is_dir() and self._is_name_of_result(entry):
                raise InputError(f"{entry} is a folder where a result belongs: remove it")

    def _is_leftover(self, runs: Sequence[PlannedRun]) -> bool:
        """Whether a folder without a plan is ours: begun and killed, or of an earlier version."""
        if {entry.name for entry in self.path.iterdir()} <= {LOCK, "inputs"}:
            return True
        # Earlier versions of fig3 wrote no plan.
        return any(RunDirectory(self.path / run.folder).holds_run for run in runs)

    def _is_name_of_result(self, entry: Path) -> bool:
        """Whether the experiment writes a file of that name."""
        if entry.name in (MANIFEST, "plan.toml", "chosen.toml", "report.html"):
            return True
        return entry.name.startswith(self.experiment) and entry.suffix in RESULT_SUFFIXES

    def _refuse_changed_runs(
        self, runs: Sequence[PlannedRun], fingerprints: Mapping[str, str]
    ) -> None:
        """Refuse to continue a run, or to replace its results, with other options."""
        recorded = self.recorded_runs
        for run in runs:
            directory = RunDirectory(self.path / run.folder)
            if not directory.holds_run:
                continue
            if run.folder in recorded:
                same = recorded[run.folder] == fingerprints[run.folder]
            else:
                same = _has_options(directory, run.config)
            if not same:
                raise InputError(
                    f"in {self.path}, {run.folder} was begun with other options: use a new folder "
                    "as out, or --overwrite (or is it --tuned that differs?)"
                )

    def _clear(self, folders: Iterable[str]) -> None:
        """Remove the experiment's own files and no others; the plan last."""
        for name in folders:
            directory = RunDirectory(self.path / name)
            if not is_inside(self.path, name) or not directory.path.is_dir():
                continue
            with directory.locked():
                directory.clear()
            remove_files(directory.path, [LOCK])
            folder = directory.path
            while folder != self.path and not any(folder.iterdir()):
                remove_empty_folder(folder)
                folder = folder.parent
        if is_report(self.path / "report.html"):
            remove_files(self.path, ["report.html"])
        results = read_manifest(self.path, self.experiment)
        if results is None:  # Earlier versions wrote no manifest.
            results = [f"{self.experiment}.md", f"{self.experiment}.json"]
        patterns = ["inputs/plugin-*.py", *results, "chosen.toml", "plan.toml", MANIFEST]
        remove_files(self.path, patterns)
        remove_empty_folder(self.path / "inputs")

    def record_results(self, files: Iterable[Path]) -> None:
        """Write down which files the experiment has written, so that they can be replaced."""
        if read_plan(self.path) is None:
            return  # An experiment without runs may be written to any folder.
        names = [file.name for file in files if file.parent == self.path]
        write_manifest(
            self.path, self.experiment, [name for name in names if name != "report.html"]
        )

    def check(self, runs: Sequence[PlannedRun], *, overwrite: bool = False) -> dict[str, str]:
        """Raise if anything is wrong, before anything is written; returns each data set's engine.

        Data sets that only finished runs used may be missing, unless these are overwritten.
        """
        # Before any run is read: it may be behind a link.
        self._refuse_foreign_folder(runs)
        configs = {(run.condition.key, run.algorithm): run.config for run in runs}
        for config in configs.values():
            Config.from_dict(config)
        engines: dict[str, str] = {}
        remaining = runs if overwrite else [run for run, _ in self.pending(runs)]
        for run in sorted(remaining, key=lambda run: -run.cost):
            if run.condition.data not in engines:
                experiment = build_experiment(Config.from_dict(run.config))
                with closing(experiment.simulation):
                    engines[run.condition.data] = experiment.engine
        return engines

    def pending(self, runs: Sequence[PlannedRun]) -> list[tuple[PlannedRun, int]]:
        """The runs that are not finished or are damaged, each with the rounds already completed."""
        unfinished = []
        for run in runs:
            directory = RunDirectory(self.path / run.folder)
            checkpoints = directory.checkpoints.paths()
            # A finished run that has checkpoints was stopped before it could remove them.
            if not directory.finished or checkpoints or damage_of(directory):
                unfinished.append((run, rounds_of(checkpoints[0]) if checkpoints else 0))
        return unfinished

    def run(
        self,
        runs: Sequence[PlannedRun],
        jobs: int | None,
        engines: Mapping[str, str],
        on_progress: Callable[[GridProgress], None],
    ) -> dict[str, str]:
        """Run or resume runs, the longest first; returns the failures, by folder."""
        if not runs:
            return {}
        order = sorted(range(len(runs)), key=lambda k: -runs[k].cost)
        runs = [runs[k] for k in order]
        cells = [GridCell(self.path / run.folder, run.config, self.path) for run in runs]
        jobs = min(jobs or usable_cores(), len(cells))

        def forward(progress: GridProgress) -> None:
            on_progress(replace(progress, cell=order[progress.cell]))

        failures = run_grid(cells, jobs, forward, alone=_count_alone(runs, jobs, engines))
        named = zip(runs, failures, strict=True)
        return {run.folder: failure for run, failure in named if failure is not None}

    def cell(self, run: PlannedRun, failure: str | None, *, last: int | None = None) -> RunResult:
        """The result of a run, with the evaluations of the last rounds only, or all."""
        if failure is not None:
            return RunResult(run.algorithm, run.seed, failure=failure)
        directory = RunDirectory(self.path / run.folder)
        metrics = directory.metrics()
        if last is not None:
            # Hundreds of runs with a thousand evaluations each would fill the memory.
            metrics = [line for line in metrics if line["round"] > metrics[-1]["round"] - last]
        summary = directory.summary()
        return RunResult(
            run.algorithm,
            run.seed,
            summary["clients"],
            metrics,
        ).with_summary(summary)


def _count_alone(runs: Sequence[PlannedRun], jobs: int, engines: Mapping[str, str]) -> int:
    """How many of the first runs get the whole machine, one after another.

    Only runs in which every client trains, with an engine that uses all cores for one run.
    """
    most = 0
    for run in runs:
        uses_all_cores = engines.get(run.condition.data, "").startswith(("pool", "ray"))
        if not (uses_all_cores and find_algorithm(run.algorithm).everyone_trains):
            break
        most += 1
    return count_run_alone([run.cost for run in runs], jobs, most)


def read_plan(path: Path) -> dict[str, Any] | None:
    """The plan in a folder, or None if there is no valid one."""
    try:
        plan = parse_toml(read_own_file(path, "plan.toml").decode())
        texts = (plan["experiment"], plan["command"], *plan["cells"].values())
        return plan if all(isinstance(text, str) for text in texts) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def fingerprint(config: Mapping[str, Any]) -> str:
    """Identify a run by its options; files count by their content, not by their path."""
    options = {key: value for key, value in config.items() if key not in EXECUTION}
    if "data" in config:
        options["data"] = {key: value for key, value in config["data"].items() if key != "dir"}
    for section, option in FILES:
        table = options.get(section)
        if isinstance(table, Mapping) and isinstance(table.get(option), str):
            content = _read(Path(table[option]))
            options[section] = {**table, option: sha256(content).hexdigest()}
    plugins = config.get("plugins") or ()
    options["plugins"] = [sha256(_read(Path(file))).hexdigest() for file in plugins]
    return sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:32]


def _has_options(directory: RunDirectory, config: Mapping[str, Any]) -> bool:
    """Whether a run of which no fingerprint was recorded has these options."""
    held = Config.from_dict(read_own_toml(directory.config_path), lenient=True)
    planned = Config.from_dict(config)
    if planned.general.clients is None:
        # A run records the number of its clients.
        planned = replace(planned, general=replace(planned.general, clients=held.general.clients))
    if "views" not in config:
        # And its views: there were fewer of them once.
        planned = replace(planned, general=replace(planned.general, views=held.general.views))
    return identity(held.to_dict()) == identity(planned.to_dict())


def _read_plugins(runs: Sequence[PlannedRun]) -> dict[str, bytes]:
    files = runs[0].config.get("plugins") or () if runs else ()
    return {f"plugin-{k}.py": _read(Path(file)) for k, file in enumerate(files)}


def _read(file: Path) -> bytes:
    try:
        return read_regular_file(file)
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise FedpbcError(f"{file} cannot be read: {reason}") from None
