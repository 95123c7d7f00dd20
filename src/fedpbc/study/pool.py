"""The runs of a study: one after another here, or side by side in processes of their own.

A run that fails is reported, and the others continue. What is finished is not run again.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from fedpbc.algorithms import ALGORITHMS
from fedpbc.engines.malloc import keep_freed_memory
from fedpbc.engines.shared_memory import pickled_by_value, unpickled
from fedpbc.errors import (
    PLUGIN_MODULES,
    DivergedError,
    FedpbcError,
    InputError,
    explained,
    one_line,
)
from fedpbc.experiments.side_by_side import Ended, side_by_side
from fedpbc.links import SCHEMES
from fedpbc.parallel import leave_cores_to_others, usable_cores
from fedpbc.simulation.metrics import Metrics
from fedpbc.simulation.views import paper_view
from fedpbc.storage.files import read_own_file
from fedpbc.storage.scratch import scratch_folder
from fedpbc.study.execute import StoppedError, Watcher, execute, has_ended
from fedpbc.study.record import Record
from fedpbc.study.spec import load_plugins
from fedpbc.study.study import Run
from fedpbc.tasks import Task
from fedpbc.warning_notes import warnings_noted

__all__ = ["Progress", "is_long", "run_all"]

REPORT_SECONDS = 0.2
WORTH_SECONDS = 30.0
"""From this much work on, it pays to start other processes, which import torch first."""
MAX_BYTES = 1 << 40
"""Of what is handed to other processes: with the data in it, it may be as large as memory."""

MakeTask = Callable[[int], Task]


@dataclass(frozen=True)
class Progress:
    """How far one run is.

    Attributes:
        number: of the run, in the order in which they were given.
        done: rounds completed.
        accuracy: the last test accuracy in the view that the paper shows.
        failure: why it failed.
        note: a line that a person should see.
    """

    number: int
    done: int
    accuracy: float | None = None
    failure: str | None = None
    note: str = ""


def is_long(run: Run) -> bool:
    """Whether all clients train in every round, so that a run takes about ten times as long."""
    kind = ALGORITHMS.get(run.spec.algorithm.name)
    return run.role == "ceiling" or (kind is not None and kind.everyone_trains)


def run_all(
    runs: Sequence[tuple[Run, Path | None]],
    jobs: int | None = 1,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    *,
    until: int | None = None,
    alone: int = 0,
    one_core: bool = False,
    make_task: MakeTask | None = None,
    group: Path | None = None,
) -> list[Record]:
    """Execute runs, each with its folder or without one; returns their records in the same order.

    A run that failed has a record with the failure.

    Args:
        jobs: runs at a time; None: one per core if the first shows that it pays.
        until: pause each run after so many rounds.
        alone: so many of the first runs have the whole machine, one after another.
        one_core: also the last run that is left has one core only, as if others ran beside it.
        make_task: returns the task for a seed, where tasks are made in Python.
        group: the study's folder, for trackers.

    Example:
        >>> from fedpbc.study.study import Study
        >>> study = Study.of({"algorithms": ["fedpbc", "fedavg"], "data": "digits", "seeds": [0],
        ...                   "clients": 5, "rounds": 2})
        >>> [record.finished for record in run_all([(run, None) for run in study.runs()])]
        [True, True]
    """
    _check_trackers(runs)
    work = _Work(tuple(runs), until, make_task, group)
    records: dict[int, Record] = {}
    # The long ones first: then the cores are busy to the end.
    order = sorted(range(len(runs)), key=lambda k: k >= alone and not is_long(runs[k][0]))
    # Runs that have ended are only looked at: no process is started for that.
    left = [k for k in order if not has_ended(*runs[k], until)]
    here = {k for k in order if k not in left or k in order[:alone]}
    if jobs == 1 or (len(left) == 1 and not one_core):
        here = {*order}
    began, measured = time.monotonic(), 0
    for k in order:
        if k in here or (jobs is None and not _pays(work, left, measured, began)):
            measured += k in left
            records[k] = _attempt(work, k, on_progress)
            left = [other for other in left if other != k]
    if left:
        records |= _elsewhere(work, left, min(jobs or usable_cores(), len(left)), on_progress)
    return [records[k] for k in range(len(runs))]


@dataclass(frozen=True)
class _Work:
    """What is to be done, as it is handed to other processes."""

    runs: tuple[tuple[Run, Path | None], ...]
    until: int | None
    make_task: MakeTask | None
    group: Path | None


def _check_trackers(runs: Sequence[tuple[Run, Path | None]]) -> None:
    """Here and not in each run: a server that fails later must not make a run fail."""
    if names := sorted({name for run, _ in runs for name in run.execution.track}):
        from fedpbc.experiments.tracking import check_trackers

        check_trackers(names)


def _pays(work: _Work, left: Sequence[int], measured: int, began: float) -> bool:
    """Whether what is left takes so long that other processes pay, by what the first runs took."""
    own = any(work.runs[k][0].execution.engine.name in ("pool", "ray") for k in left)
    if own or not measured or usable_cores() == 1:
        return False
    return (time.monotonic() - began) / measured * len(left) > WORTH_SECONDS


def _attempt(work: _Work, k: int, on_progress: Callable[[Progress], None]) -> Record:
    """Execute one run in this process; what it fails with is in its record."""
    (run, folder), reached = work.runs[k], 0
    last, accuracy, listening = 0.0, None, False

    def tell(progress: Progress) -> None:
        nonlocal listening
        listening = True
        on_progress(progress)
        listening = False

    def on_round(done: int, metrics: Metrics | None) -> None:
        nonlocal last, reached, accuracy
        reached = done
        if metrics is not None:
            accuracy = metrics.views[paper_view(tuple(metrics.views))].test_accuracy
        # The last round is reported at the very end, when everything is written.
        if done < run.spec.rounds and time.monotonic() - last > REPORT_SECONDS:
            last = time.monotonic()
            tell(Progress(k, done, accuracy))

    watcher = Watcher(on_round=on_round, on_note=lambda line: tell(Progress(k, reached, note=line)))
    try:
        task = None if work.make_task is None else _made(work.make_task, run.seed)
        record = execute(run, folder, watcher, until=work.until, task=task, group=work.group)
    except StoppedError as error:
        if listening:
            raise  # The listener stopped the study.
        return _failed(run, folder, str(error), on_progress, k)
    except FedpbcError as error:
        # Without a folder nothing else would say what was wrong with the call.
        if work.make_task is not None and not isinstance(error, DivergedError):
            raise
        return _failed(run, folder, str(error), on_progress, k)
    except Exception as error:
        if listening or work.make_task is not None:
            raise
        # A plugin's algorithm may raise anything; the other runs continue.
        return _failed(run, folder, explained(error) or one_line(error), on_progress, k)
    rounds = record.metrics[-1]["round"] if record.metrics else reached
    on_progress(Progress(k, rounds, accuracy))
    # Of many runs only those that are asked for are read again.
    return replace(record, models={})


def _failed(
    run: Run,
    folder: Path | None,
    line: str,
    on_progress: Callable[[Progress], None],
    number: int,
) -> Record:
    on_progress(Progress(number, 0, failure=line))
    return Record(
        label=run.label,
        role=run.role,
        condition=run.condition,
        problem=run.problem,
        seed=run.seed,
        values={**run.spec.dump(), **run.execution.dump()},
        failure=line,
        folder=folder,
    )


def _made(make_task: MakeTask, seed: int) -> Task:
    """The task for a seed; how the user's function failed is a cause of the error."""
    try:
        return make_task(seed)
    except FedpbcError:
        raise
    except Exception as error:
        raise InputError(f"make_task({seed}) failed: {one_line(error)}") from error


# ------------------------------------------------------------------------------- other processes


def _elsewhere(
    work: _Work, numbers: Sequence[int], jobs: int, on_progress: Callable[[Progress], None]
) -> dict[int, Record]:
    """Execute some of the runs in processes of their own."""
    own: dict[str, Mapping[str, Any]] = {
        "algorithms": {k: v for k, v in ALGORITHMS.items() if _is_own(v.__module__)},
        "schemes": {k: v for k, v in SCHEMES.items() if _is_own(v.rows.__module__)},
    }
    try:
        content = pickled_by_value((work, own))
    except Exception as error:  # Pickling runs code of whatever is pickled.
        expected = f"one that other processes can have, or jobs=1 ({one_line(error)})"
        raise InputError("make_task", "a function", expected) from error
    records: dict[int, Record] = {}
    with _in_a_file(content) as file:
        tasks = [(str(file), number) for number in numbers]
        with closing(side_by_side(_work, tasks, jobs)) as messages:
            for message in messages:
                if not isinstance(message, Ended):
                    on_progress(message)
                    continue
                k = numbers[message.number]
                if message.failure is not None and work.make_task is not None:
                    raise FedpbcError(f"{work.runs[k][0].label} failed: {message.failure}")
                if message.failure is not None:
                    records[k] = _failed(*work.runs[k], message.failure, on_progress, k)
                else:
                    records[k] = message.result
    return records


def _is_own(module: str) -> bool:
    """Whether something is a user's: of a notebook, a script or a module; plugins are imported."""
    return module.split(".")[0] != "fedpbc" and not module.startswith(PLUGIN_MODULES)


@contextmanager
def _in_a_file(content: bytes) -> Iterator[Path]:
    """A temporary file: data that every run needs is sent once.

    It is in a folder of its own that no other user can open.
    """
    with scratch_folder() as folder:
        file = folder / "runs.pickle"
        file.write_bytes(content)
        yield file


@lru_cache(maxsize=1)
def _loaded(file: str) -> _Work:
    """What the process that has all runs has written for this one."""
    _check_private(Path(file).parent)
    work, own = unpickled(read_own_file(Path(file).parent, Path(file).name, MAX_BYTES))
    ALGORITHMS.update(own["algorithms"])
    SCHEMES.update(own["schemes"])
    made: _Work = work
    return made


def _check_private(folder: Path) -> None:
    """Raise unless only this user can have written a folder: what is in it may run code."""
    status = folder.lstat()
    is_private = os.name == "nt" or (
        status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700
    )
    if not is_private or not stat.S_ISDIR(status.st_mode):
        raise FedpbcError(f"{folder} can be written by others: set TMPDIR to a folder of your own")


def _work(
    _: int, task: tuple[str, int], send: Callable[[Progress], None], stopped: Callable[[], bool]
) -> Record:
    """Execute one run in a worker process, and send its progress."""
    # There is one process per core; more threads would only compete.
    torch.set_num_threads(1)
    leave_cores_to_others()
    keep_freed_memory()
    file, number = task
    work = _loaded(file)
    run, folder = work.runs[number]

    def on_progress(progress: Progress) -> None:
        if stopped():
            raise StoppedError("stopped")
        send(progress)

    def silent(progress: Progress) -> None:
        """Whoever stopped it wants to hear nothing."""

    try:
        load_plugins(list(run.spec.plugins))
        with warnings_noted(lambda line: send(Progress(number, 0, note=line))):
            return _attempt(work, number, on_progress)
    except (StoppedError, KeyboardInterrupt):
        # In the midst of a round: a checkpoint of the last complete one was written.
        return _failed(run, folder, "stopped", silent, number)
