"""The runs that a page is about: found below any folders and read, whole or not."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedpbc.errors import FedpbcError, InputError, Verbatim, one_line
from fedpbc.experiments.checkpoints import rounds_of
from fedpbc.experiments.client_overview import ClientOverview, load_client_overview
from fedpbc.experiments.comparison_directory import ComparisonDirectory
from fedpbc.experiments.run_directory import RunDirectory

__all__ = ["ShownRun", "find_runs", "read_run", "read_runs"]


@dataclass(frozen=True, eq=False)
class ShownRun:
    """One run as far as it has come.

    Attributes:
        path: its folder.
        config: what was set; empty where it could not be read.
        state: finished, unfinished, failed, damaged or not begun.
        note: why, where it is not finished.
        metrics: of every evaluation; none of a damaged run.
        summary: how it ended; empty unless it is finished.
        done: how many rounds are done.

    Example:
        >>> run = ShownRun(Path("runs/a"), {"algorithm": {"name": "fedavg"}, "seed": 3}, "finished")
        >>> run.algorithm, run.seed
        ('fedavg', 3)
    """

    path: Path
    config: Mapping[str, Any]
    state: str
    note: str = ""
    metrics: Sequence[Mapping[str, Any]] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    done: int = 0

    @property
    def algorithm(self) -> str:
        """By name; a folder's name where the configuration is not there."""
        return str(section(self.config, "algorithm").get("name", self.path.parent.name))

    @property
    def seed(self) -> int | None:
        """Of the run, if it is known."""
        seed = self.config.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def rounds(self) -> int:
        """How many it was to be."""
        rounds = self.config.get("rounds")
        return rounds if isinstance(rounds, int) else 0

    @property
    def clients(self) -> int:
        """m, if it is known."""
        clients = self.config.get("clients")
        return clients if isinstance(clients, int) else 0

    @cached_property
    def fleet(self) -> ClientOverview:
        """What its fleet looks like, if that was written down."""
        return load_client_overview(RunDirectory(self.path).overview_path)


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of a configuration as a table; a name alone is short for one."""
    found = config.get(name, {})
    if isinstance(found, str):
        return {"name": found}
    return found if isinstance(found, Mapping) else {}


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """All run folders below some folders, also those that a comparison has not begun yet.

    Example:
        >>> find_runs([Path("nowhere")])
        Traceback (most recent call last):
        fedpbc.errors.InputError: folder is 'nowhere', but should be a folder that exists
    """
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            right = "a folder; this is a file" if folder.exists() else "a folder that exists"
            raise InputError("folder", str(folder), right)
        below = list(_runs_below(folder))
        if not below:
            right = "one with runs in it: a run's, a comparison's, or one above them"
            raise InputError("folder", str(folder), right)
        for path in below:
            found.setdefault(path.resolve(), path)
    return list(found.values())


def _runs_below(folder: Path) -> list[Path]:
    found = []
    for place, inner, names in os.walk(folder):
        here = Path(place)
        inner.sort()
        # One whose configuration is damaged was a run, too.
        if RunDirectory(here).holds_run or {"config.toml", "metrics.jsonl"} <= set(names):
            found.append(here)
            inner.clear()
            continue
        planned = ComparisonDirectory(here).planned_runs() if "compare.toml" in names else []
        found += [run.path for run in planned if not run.holds_run]
        inner[:] = [name for name in inner if not name.startswith(".") and name != "inputs"]
    return sorted(dict.fromkeys(found))


def read_runs(paths: Sequence[Path]) -> list[ShownRun]:
    """Read all runs; raises if none of them can be shown."""
    runs = [read_run(path) for path in paths]
    if runs and all(run.state == "damaged" for run in runs):
        raise FedpbcError(f"{runs[0].path} is damaged: {runs[0].note}")
    return runs


def read_run(path: Path) -> ShownRun:
    """Read what a run's folder holds; what is damaged is said, not raised."""
    folder = RunDirectory(path)
    if not folder.config_path.is_file():
        known = {"algorithm": {"name": path.parent.name}, **_seed_of(path)}
        return ShownRun(path, known, "not begun", "not begun")
    config: dict[str, Any] = {}
    try:
        config = tomllib.loads(folder.config_path.read_text(encoding="utf-8"))
        lines = folder.metrics()
        check(lines, config)
        if folder.finished:
            if not lines or lines[-1]["round"] != config["rounds"]:
                raise InputError(str(folder.metrics_path), Verbatim("cut short"), "whole")
            return ShownRun(path, config, "finished", "", lines, folder.summary(), config["rounds"])
    except InputError as error:
        return ShownRun(path, config, "damaged", str(error))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return ShownRun(path, config, "damaged", one_line(error))
    saved = max((rounds_of(place) for place in folder.checkpoints.paths()), default=0)
    done = max(saved, lines[-1]["round"] if lines else 0)
    failure = folder.failure()
    if failure is not None:
        return ShownRun(path, config, "failed", failure, lines, {}, done)
    note = f"not finished: round {done:,} of {config['rounds']:,}"
    return ShownRun(path, config, "unfinished", note, lines, {}, done)


def _seed_of(path: Path) -> dict[str, int]:
    number = path.name.removeprefix("seed-")
    return {"seed": int(number)} if number.isdigit() else {}


NUMBERS = ("local_steps", "uploads", "seconds", "staleness_mean", "staleness_max")


def check(lines: Sequence[Any], config: Mapping[str, Any]) -> None:
    """Raise unless these are the metrics that such a run writes."""
    every, rounds = config["evaluate_every"], config["rounds"]
    for number, line in enumerate(lines, start=1):
        where = f"metrics.jsonl line {number}"
        if not isinstance(line, dict):
            raise InputError(where, Verbatim("damaged"), "one JSON object")
        if line.get("round") != min(number * every, rounds):
            right = f"{min(number * every, rounds)}: it is evaluated every {every} rounds"
            raise InputError(f"round in {where}", line.get("round"), right)
        views = line.get("views")
        if not isinstance(views, dict) or not views:
            raise InputError(f"views in {where}", views, "one for each view")
        if views.keys() != lines[0]["views"].keys():
            right = f"the same as in line 1: {', '.join(lines[0]['views'])}"
            raise InputError(f"views in {where}", Verbatim(", ".join(views)), right)
        for key in NUMBERS:
            if not _is_number(line.get(key)):
                raise InputError(f"{key} in {where}", line.get(key), "a number")
        for view, judged in views.items():
            accuracy = judged.get("test_accuracy") if isinstance(judged, dict) else None
            if not isinstance(judged, dict) or not _is_number(judged.get("test_loss")):
                raise InputError(f"{view} in {where}", judged, "with a test loss")
            if accuracy is not None and not _is_number(accuracy):
                raise InputError(f"{view} in {where}", judged, "with a test accuracy, or null")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
