"""Many runs side by side, each in a directory of its own.

A sweep that is killed can be resumed: finished runs are not run again, the others continue. A run
that fails is reported, and the rest continue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedpbc.algorithms import find_algorithm
from fedpbc.engines.malloc import keep_freed_memory
from fedpbc.errors import DivergedError, FedpbcError, explained, one_line
from fedpbc.experiments.checkpoints import rounds_of
from fedpbc.experiments.conditions import is_ceiling
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.execution import StoppedError, Watcher
from fedpbc.experiments.integrity import verify_run
from fedpbc.experiments.resume import resume_run
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.run_identity import check_same_run
from fedpbc.experiments.side_by_side import Ended, side_by_side
from fedpbc.experiments.start import start_run
from fedpbc.experiments.tracking import check_trackers, checked_names
from fedpbc.parallel import leave_cores_to_others
from fedpbc.simulation.metrics import Metrics
from fedpbc.simulation.views import paper_view
from fedpbc.warning_notes import warnings_noted

__all__ = [
    "DivergedReason",
    "GridCell",
    "GridProgress",
    "count_run_alone",
    "everyone_trains",
    "is_paused_at",
    "makespan",
    "round_weight",
    "run_grid",
]

REPORT_SECONDS = 0.2


@dataclass(frozen=True)
class GridCell:
    """One run: its directory, the values of its configuration, and its group, for trackers.

    With ``until`` it pauses after that many rounds, with a checkpoint, and can go on later.
    ``sealed``: it has paused there, and its evaluations match their checksums, so that it can be
    scored without a checkpoint.
    """

    path: Path
    config: Mapping[str, Any]
    group: Path | None = None
    until: int | None = None
    sealed: bool = False


@dataclass(frozen=True)
class GridProgress:
    """The progress of one run: rounds completed, the last test accuracy, or why it failed."""

    cell: int
    done: int
    accuracy: float | None = None
    failure: str | None = None
    note: str = ""
    """A line that a person should see."""


class _PausedError(StoppedError):
    """Raised to pause a run; it keeps a checkpoint."""

    def __init__(self) -> None:
        super().__init__("paused")


class DivergedReason(str):
    """The failure of a run that diverged: a grid search expects some that do."""

    __slots__ = ()


def run_grid(
    cells: Sequence[GridCell],
    jobs: int,
    on_progress: Callable[[GridProgress], None],
    *,
    alone: int = 0,
    one_core: bool = False,
) -> list[str | None]:
    """Run all cells, ``jobs`` at a time; returns the failure of each, or None.

    Cells are started in the order given: put long ones first. The first ``alone`` of them run one
    after another, each with the whole machine, before the others start. So does one that is the
    only one left, unless ``one_core``: then it is as fast as if others ran beside it.
    """
    # Here and not in each run: a tracking server that fails later must not make a run fail.
    check_trackers(sorted({n for cell in cells for n in checked_names(cell.config.get("track"))}))
    # Runs that have ended are only looked at: no process is started for that.
    elsewhere = [k for k, cell in enumerate(cells) if k >= alone and not _seems_done(cell)]
    if jobs == 1 or (len(elsewhere) == 1 and not one_core):
        elsewhere = []
    failures: list[str | None] = [None] * len(cells)
    for k in sorted({*range(len(cells))} - {*elsewhere}):
        failures[k] = _run_cell(k, cells[k], on_progress)
        if failures[k] is not None:
            on_progress(GridProgress(k, 0, failure=failures[k]))
    if not elsewhere:
        return failures
    jobs = min(jobs, len(elsewhere))
    with closing(side_by_side(_work, [cells[k] for k in elsewhere], jobs)) as messages:
        for message in messages:
            if not isinstance(message, Ended):
                on_progress(replace(message, cell=elsewhere[message.cell]))
                continue
            k = elsewhere[message.number]
            failures[k] = message.result if message.failure is None else message.failure
            if failures[k] is not None:
                on_progress(GridProgress(k, 0, failure=failures[k]))
    return failures


def _seems_done(cell: GridCell) -> bool:
    """Whether there is nothing left to run, unless its files are damaged."""
    return RunDirectory(cell.path).finished or (cell.sealed and cell.until is not None)


def everyone_trains(label: str, algorithm: str) -> bool:
    """Whether all clients train in every round of an entry, so that its runs take longest.

    By its algorithm's rule, or since every link is up.
    """
    return is_ceiling(label) or find_algorithm(algorithm).everyone_trains


def round_weight(everyone: bool) -> int:
    """The approximate cost of a round, relative to one in which few clients train."""
    return 10 if everyone else 1


def is_paused_at(directory: RunDirectory, rounds: int) -> bool:
    """Whether a run has been evaluated after so many rounds, and can go on from there."""
    if not directory.holds_run or not directory.metrics_path.is_file():
        return False
    if not directory.finished:
        newest = max(map(rounds_of, directory.checkpoints.paths()), default=0)
        if newest < rounds:
            return False
    # A checkpoint has the evaluations, too: they decide what is chosen.
    if verify_run(directory.path).damage:
        return False
    return _is_evaluated(directory, rounds)


def _has_ended(directory: RunDirectory, rounds: int, sealed: bool) -> bool:
    if sealed and not directory.finished:
        return _is_evaluated(directory, rounds)
    return is_paused_at(directory, rounds)


def _is_evaluated(directory: RunDirectory, rounds: int) -> bool:
    return any(line.get("round") == rounds for line in directory.metrics())


def makespan(seconds: Sequence[float], jobs: int) -> float:
    """How long runs take side by side, if each goes to the core that is free first.

    Example:
        >>> makespan([3.0, 2.0, 2.0], jobs=2)
        4.0
    """
    busy = [0.0] * jobs
    for duration in seconds:
        busy[busy.index(min(busy))] += duration
    return max(busy)


WASTE = 0.1
"""Share of the time for which cores may be idle at the end of a sweep."""


def count_run_alone(weights: Sequence[float], jobs: int, most: int) -> int:
    """How many of the first runs should have the whole machine, one after another.

    Side by side, each run has one core. Where one run takes longer than all others together, the
    other cores would be idle: then it is better to let all of them work on it first. ``weights``
    are the durations on one core, longest first; the first ``most`` runs can use several cores.
    """
    for alone in range(most):
        left = weights[alone:]
        if makespan(left, jobs) <= (1 + WASTE) * sum(left) / jobs:
            return alone
    return most


def _work(
    k: int, cell: GridCell, send: Callable[[GridProgress], None], stopped: Callable[[], bool]
) -> str | None:
    """Run a cell in a worker process, and send its progress."""
    # There is one process per core; more threads would only compete.
    torch.set_num_threads(1)
    leave_cores_to_others()
    keep_freed_memory()

    def on_progress(progress: GridProgress) -> None:
        if stopped():
            raise StoppedError("stopped")
        send(progress)

    def on_warning(line: str) -> None:
        send(GridProgress(k, 0, note=line))

    if stopped():
        return "stopped"
    try:
        with warnings_noted(on_warning):
            return _run_cell(k, cell, on_progress)
    except KeyboardInterrupt:
        # In the midst of a round: a checkpoint of the last complete one is written.
        return "stopped"


def _run_cell(k: int, cell: GridCell, on_progress: Callable[[GridProgress], None]) -> str | None:
    last, reached, rounds, accuracy, stopped = 0.0, 0, 0, None, False

    def on_round(done: int, metrics: Metrics | None) -> None:
        nonlocal last, reached, accuracy, stopped
        reached = done
        if metrics is not None:
            accuracy = metrics.views[paper_view(tuple(metrics.views))].test_accuracy
        if done < rounds and cell.until is not None and done >= cell.until:
            raise _PausedError
        # The last round is reported at the very end, when everything is written.
        if done < rounds and time.monotonic() - last > REPORT_SECONDS:
            last = time.monotonic()
            stopped = True
            on_progress(GridProgress(k, done, accuracy))
            stopped = False

    def on_start(done: int, total: int, engine: str) -> None:
        nonlocal rounds
        rounds = total

    def on_note(line: str) -> None:
        on_progress(GridProgress(k, reached, accuracy, note=line))

    directory, watcher = RunDirectory(cell.path), Watcher(on_start, on_round, on_note)
    group = cell.group or cell.path.parent
    try:
        # Whoever made the grid has checked that every setting has an effect in some cell.
        config = Config.from_dict(cell.config, lenient=True)
        if directory.holds_run:
            check_same_run(directory, config)
            if cell.until is not None and _has_ended(directory, cell.until, cell.sealed):
                on_progress(GridProgress(k, cell.until))
                return None
            track = checked_names(cell.config.get("track"))
            summary = resume_run(cell.path, watcher=watcher, track=track, group=group)
        else:
            summary = start_run(config, cell.path, watcher=watcher, group=group)
    except _PausedError:
        on_progress(GridProgress(k, reached, accuracy))
        return None
    except StoppedError:
        return "stopped"
    except DivergedError as error:
        return DivergedReason(error)
    except FedpbcError as error:
        return str(error)
    except Exception as error:
        if stopped:
            raise  # The listener stopped the sweep.
        # A plugin's algorithm may raise anything; the other runs continue.
        return explained(error) or one_line(error)
    # Nobody resumes a finished run of a sweep, and there are many of them.
    directory.checkpoints.remove()
    on_progress(GridProgress(k, summary["rounds"], accuracy))
    return None
