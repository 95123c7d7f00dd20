"""An experiment's folder: one run folder for each cell of a table, and what comes of them.

plan.toml           which runs there are, and what tells each from another of the same place
inputs/             copies of the plugins
…/ALGORITHM/seed-K/ a run's folder each
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomli_w

from fedpbc.algorithms import find_algorithm
from fedpbc.errors import FedpbcError, InputError, Verbatim
from fedpbc.experiments.build import build_experiment
from fedpbc.experiments.checkpoints import rounds_of
from fedpbc.experiments.comparison import Cell
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.run_directory import RunDirectory, write_inputs
from fedpbc.experiments.settings import FILES
from fedpbc.experiments.sweep import GridCell, GridProgress, long_ones_alone, run_grid
from fedpbc.paper.plan import PlannedRun
from fedpbc.parallel import usable_cores
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.directories import locked_directory, make_directory

__all__ = ["PaperDirectory", "Pending"]

PLACES = ("checkpoint_every", "workers", "ray_address", "reported", "track")
"""Options that may change while a run stays the same."""


@dataclass(frozen=True)
class Pending:
    """A run that is not finished, with the rounds that it has done already."""

    run: PlannedRun
    done: int


class PaperDirectory:
    """An experiment on disk.

    Example:
        >>> PaperDirectory("nowhere", "table1").begun
        {}
    """

    def __init__(self, path: Path | str, experiment: str) -> None:
        self.path = Path(path)
        self.experiment = experiment
        self.plan_path = self.path / "plan.toml"

    @property
    def begun(self) -> dict[str, str]:
        """The runs that were planned here so far, each with its fingerprint."""
        found = read_plan(self.path)
        return dict(found["cells"]) if found else {}

    @contextmanager
    def opened(
        self, runs: Sequence[PlannedRun], command: str, *, overwrite: bool = False
    ) -> Iterator[list[PlannedRun]]:
        """Make the folder, or go on with what was begun in it, and keep others out.

        Gives the runs with the copies of their plugins. An experiment may be widened or narrowed:
        runs that stay the same are kept.
        """
        self._refuse_strangers()
        # A plugin may lie in the very folder that is to be overwritten: it is read before.
        inputs = _plugins(runs)
        cells = {run.place: fingerprint(run.config) for run in runs}
        if not overwrite:
            self._refuse_others(cells)
        make_directory(self.path)
        with locked_directory(self.path):
            if overwrite:
                self._clear()
            own = [str((self.path / "inputs" / name).resolve()) for name in inputs]
            write_inputs(self.path, inputs)
            plan = {
                "experiment": self.experiment,
                "command": command,
                "cells": {**self.begun, **cells},
            }
            write_atomically(self.plan_path, tomli_w.dumps(plan))
            plugins = {"plugins": own} if own else {}
            yield [PlannedRun(**{**vars(run), "config": {**run.config, **plugins}}) for run in runs]

    def _refuse_strangers(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise InputError("out", str(self.path), "a folder; this is a file")
        if not self.path.is_dir():
            return
        found = read_plan(self.path)
        if found is None:
            if {place.name for place in self.path.iterdir()} - {".lock", "inputs"}:
                right = "a new or empty folder"
                raise InputError("out", Verbatim(f"{self.path}, which holds other files"), right)
        elif found["experiment"] != self.experiment:
            given = f"{self.path}, which holds the experiment {found['experiment']}"
            raise InputError("out", Verbatim(given), "a folder of its own")

    def _refuse_others(self, cells: Mapping[str, str]) -> None:
        """An earlier run in the same place that was told something else is not to be lost."""
        begun = self.begun
        for place, told in cells.items():
            if begun.get(place, told) != told and RunDirectory(self.path / place).holds_run:
                given = f"{self.path}, where {place} was begun with other options"
                right = "a new folder, or with --overwrite (or is it --tuned that differs?)"
                raise InputError("out", Verbatim(given), right)

    def _clear(self) -> None:
        """Remove what was made here, and nothing else; the plan last."""
        for place in self.begun:
            run = RunDirectory(self.path / place)
            if not run.path.is_dir():
                continue
            with run.locked():
                run.clear()
            (run.path / ".lock").unlink()
            folder = run.path
            while folder != self.path and not any(folder.iterdir()):
                folder.rmdir()
                folder = folder.parent
        shutil.rmtree(self.path / "inputs", ignore_errors=True)
        for pattern in (f"{self.experiment}*.*", "report.html", "chosen.toml", "plan.toml"):
            for file in self.path.glob(pattern):
                if file.is_file():
                    file.unlink()

    def check(self, runs: Sequence[PlannedRun], *, fresh: bool = False) -> dict[str, str]:
        """Find what is wrong before anything is written; the engine of each data set that is left.

        Data that only finished runs needed may be gone, unless all are run afresh.
        """
        seen = set()
        for run in runs:
            if (run.group.key, run.algorithm) not in seen:
                seen.add((run.group.key, run.algorithm))
                Config.from_dict(run.config)
        engines: dict[str, str] = {}
        left = runs if fresh else [pending.run for pending in self.pending(runs)]
        for run in sorted(left, key=lambda run: -run.length):
            if run.group.data not in engines:
                experiment = build_experiment(Config.from_dict(run.config))
                with closing(experiment.simulation):
                    engines[run.group.data] = experiment.engine
        return engines

    def pending(self, runs: Sequence[PlannedRun]) -> list[Pending]:
        """What is left to run."""
        found = []
        for run in runs:
            folder = RunDirectory(self.path / run.place)
            checkpoints = folder.checkpoints.paths()
            # A finished run that has checkpoints was stopped before it had put things away.
            if not folder.finished or checkpoints:
                found.append(Pending(run, rounds_of(checkpoints[0]) if checkpoints else 0))
        return found

    def run(
        self,
        pending: Sequence[Pending],
        jobs: int | None,
        engines: Mapping[str, str],
        on_progress: Callable[[GridProgress], None],
    ) -> dict[str, str]:
        """Run what is left, the long ones first; gives what went wrong, by place."""
        order = sorted(range(len(pending)), key=lambda k: -pending[k].run.length)
        runs = [pending[k].run for k in order]
        cells = [GridCell(self.path / run.place, run.config, self.path) for run in runs]
        count = min(jobs or usable_cores(), len(cells))

        def tell(progress: GridProgress) -> None:
            on_progress(replace(progress, cell=order[progress.cell]))

        failures = run_grid(cells, count, tell, alone=alone(runs, count, engines)) if cells else []
        named = zip(runs, failures, strict=True)
        return {run.place: failure for run, failure in named if failure is not None}

    def cell(self, run: PlannedRun, failure: str | None, *, last: int | None = None) -> Cell:
        """What came of a run; of its evaluations those of the last rounds, or all."""
        if failure is not None:
            return Cell(run.algorithm, run.seed, failure=failure)
        folder = RunDirectory(self.path / run.place)
        lines = folder.metrics()
        if last is not None:
            # Hundreds of runs with a thousand evaluations each would fill the memory.
            lines = [line for line in lines if line["round"] > lines[-1]["round"] - last]
        return Cell(run.algorithm, run.seed, folder.summary()["clients"], lines)


def alone(runs: Sequence[PlannedRun], jobs: int, engines: Mapping[str, str]) -> int:
    """How many of the first runs are to have the whole machine: where everyone trains, and only
    with an engine that shares one run among all cores."""
    most = 0
    for run in runs:
        several = engines.get(run.group.data, "").startswith(("pool", "ray"))
        if not (several and find_algorithm(run.algorithm).everyone_trains):
            break
        most += 1
    return long_ones_alone([run.length for run in runs], jobs, most)


def read_plan(path: Path) -> dict[str, Any] | None:
    """The plan in a folder, if it is one of ours."""
    try:
        found = tomllib.loads((path / "plan.toml").read_text(encoding="utf-8"))
        texts = (found["experiment"], found["command"], *found["cells"].values())
        return found if all(isinstance(text, str) for text in texts) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def fingerprint(config: Mapping[str, Any]) -> str:
    """Tells whether a run is still told the same: by the content of files, not by their places."""
    kept = {key: value for key, value in config.items() if key not in PLACES}
    kept["data"] = {key: value for key, value in config["data"].items() if key != "dir"}
    for section, option in FILES:
        table = kept.get(section)
        if isinstance(table, Mapping) and isinstance(table.get(option), str):
            kept[section] = {**table, option: _hash(Path(table[option]))}
    kept["plugins"] = [_hash(Path(file)) for file in config.get("plugins") or ()]
    return sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:32]


def _plugins(runs: Sequence[PlannedRun]) -> dict[str, bytes]:
    files = runs[0].config.get("plugins") or () if runs else ()
    return {f"plugin-{k}.py": _read(Path(file)) for k, file in enumerate(files)}


def _hash(file: Path) -> str:
    return sha256(_read(file)).hexdigest()


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise FedpbcError(f"{file} cannot be read: {reason}") from None
