"""Find run directories and load them, complete or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedpbc.errors import FedpbcError, InputError, one_line
from fedpbc.experiments.checkpoints import rounds_of
from fedpbc.experiments.client_overview import ClientOverview, load_client_overview
from fedpbc.experiments.comparison_directory import ComparisonDirectory
from fedpbc.experiments.integrity import CHECKSUMS, damage_of
from fedpbc.experiments.lazy_metrics import LazyMetrics
from fedpbc.experiments.result_schema import check_metrics
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.limits import parse_toml
from fedpbc.storage.directories import folders_below
from fedpbc.storage.files import read_own_file

__all__ = ["LoadedRun", "find_runs", "has_runs", "load_run", "load_runs"]


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run as far as it has come.

    Attributes:
        path: its directory.
        config: its configuration; empty if it could not be read.
        state: finished, unfinished, failed, damaged or not begun.
        note: why it is not finished.
        metrics: all evaluations; empty for a damaged run.
        summary: summary.json; empty unless the run is finished.
        done: number of completed rounds.
        planned_beside: the labels of the comparison whose folder it is in; none without one.
        stored: whether its directory stays; a run from Python may have one for its page alone.
    """

    path: Path
    config: Mapping[str, Any]
    state: str
    note: str = ""
    metrics: Sequence[Mapping[str, Any]] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    done: int = 0
    planned_beside: Sequence[str] = ()
    stored: bool = True

    @property
    def algorithm(self) -> str:
        """Name of the algorithm; without a configuration, as the parent directory says."""
        label = self.path.parent.name
        return str(section(self.config, "algorithm").get("name", label.partition(":")[0]))

    @property
    def seed(self) -> int | None:
        """The seed, if it is known."""
        return self._integer("seed")

    @property
    def rounds(self) -> int:
        """Number of planned rounds; 0 if it is not known."""
        return self._integer("rounds") or 0

    @property
    def clients(self) -> int:
        """Number of clients; 0 if it is not known."""
        return self._integer("clients") or 0

    def _integer(self, option: str) -> int | None:
        value = self.config.get(option)
        return value if type(value) is int else None

    @property
    def peak_memory(self) -> int | None:
        """Peak memory of its process and workers together, in bytes, if it was measured."""
        memory = self.summary.get("memory")
        if not isinstance(memory, Mapping):
            return None
        return sum(value for value in memory.values() if isinstance(value, int))

    @property
    def client_accuracy(self) -> Mapping[str, Mapping[str, Any]]:
        """How well its models serve each client at the end, by view; empty if not recorded."""
        served: Mapping[str, Mapping[str, Any]] = self.summary.get("client_accuracy", {})
        return served

    @cached_property
    def fleet(self) -> ClientOverview:
        """Its links and client data, as far as they were recorded."""
        return load_client_overview(RunDirectory(self.path).overview_path)


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of a configuration; a string stands for the section's name option."""
    value = config.get(name, {})
    if isinstance(value, str):
        return {"name": value}
    return value if isinstance(value, Mapping) else {}


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Return all run directories below some folders, including a comparison's planned runs."""
    unique: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            expected = "a folder; this is a file" if folder.exists() else "a folder that exists"
            raise InputError("folder", str(folder), expected)
        paths = sorted(set(_runs_below(folder)))
        if not paths:
            expected = "one with runs in it: a run's, a comparison's, or one above them"
            raise InputError("folder", str(folder), expected)
        for path in paths:
            unique.setdefault(path.resolve(), path)
    return list(unique.values())


def has_runs(folder: Path) -> bool:
    """Return whether there is a run below a folder, or a comparison that plans one."""
    return next(_runs_below(folder), None) is not None


def _runs_below(folder: Path) -> Iterator[Path]:
    for path, subfolders, files in folders_below(folder):
        # A run with a damaged configuration counts, too.
        if RunDirectory(path).holds_run or {"config.toml", "metrics.jsonl"} <= set(files):
            yield path
            subfolders.clear()
            continue
        if "compare.toml" in files:
            planned = ComparisonDirectory(path).planned_runs()
            yield from (run.path for run in planned if not run.holds_run)
        subfolders[:] = [n for n in subfolders if not n.startswith(".") and n != "inputs"]


def load_runs(
    paths: Sequence[Path], *, labels: Sequence[str] = (), stored: bool = True
) -> list[LoadedRun]:
    """Load runs; raise if all of them are damaged.

    ``labels`` are those of a comparison that left no plan, as from Python; ``stored`` says whether
    the directories stay.
    """
    planned: dict[Path, Sequence[str]] = {}
    runs = []
    for path in paths:
        root = path.parent.parent
        if root not in planned:
            planned[root] = ComparisonDirectory(root).planned()[0] or labels
        runs.append(replace(load_run(path), planned_beside=planned[root], stored=stored))
    if runs and all(run.state == "damaged" for run in runs):
        raise FedpbcError(f"{runs[0].path} is damaged: {runs[0].note}")
    return runs


def load_run(path: Path) -> LoadedRun:
    """Load a run directory. Damaged files do not raise: they are the run's state and note."""
    directory = RunDirectory(path)
    config: dict[str, Any] = {}
    if not directory.config_path.is_file():
        seed = path.name.removeprefix("seed-")
        config = {"seed": int(seed)} if seed.isdecimal() else {}
        return LoadedRun(path, config, "not begun", "not begun")
    try:
        config = parse_toml(read_own_file(path, "config.toml").decode())
        if directory.finished:
            return _finished(directory, config)
        metrics = directory.metrics()
        check_metrics(metrics, config)
        rounds = config["rounds"]
        saved = max(map(rounds_of, directory.checkpoints.paths()), default=0)
    except InputError as error:
        return LoadedRun(path, config, "damaged", str(error))
    except (OSError, ValueError, RecursionError) as error:
        return LoadedRun(path, config, "damaged", one_line(error))
    done = max(saved, metrics[-1]["round"] if metrics else 0)
    failure = directory.failure()
    if failure is not None:
        return LoadedRun(path, config, "failed", failure, metrics, {}, done)
    note = f"not finished: round {done:,} of {rounds:,}"
    return LoadedRun(path, config, "unfinished", note, metrics, {}, done)


def _finished(directory: RunDirectory, config: Mapping[str, Any]) -> LoadedRun:
    """Load a finished run; raises InputError or OSError for a damaged one."""
    for damage in damage_of(directory, ["metrics.jsonl"]):
        raise InputError(str(damage))
    summary = directory.summary()
    metrics: Sequence[Mapping[str, Any]]
    if "metrics.jsonl" in summary.get(CHECKSUMS, {}):
        metrics = LazyMetrics(directory.metrics_bytes(), config)
    else:
        # Of an earlier version: nothing else tells whether it is whole.
        metrics = directory.metrics()
        check_metrics(metrics, config)
    rounds = config["rounds"]
    if not metrics or metrics[-1]["round"] != rounds:
        raise InputError(f"{directory.metrics_path} ends before round {rounds}")
    return LoadedRun(directory.path, config, "finished", "", metrics, summary, rounds)
