"""The runs of a comparison: one after another here, or side by side in other processes."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from fedpbc.algorithms import ALGORITHMS
from fedpbc.engines.malloc import keep_freed_memory
from fedpbc.engines.shared_memory import pickled_by_value, unpickled
from fedpbc.errors import DivergedError, FedpbcError, InputError, one_line
from fedpbc.experiments.build import build_experiment
from fedpbc.experiments.entries import Entry
from fedpbc.experiments.integrity import damage_of
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.run_record import RunRecord
from fedpbc.experiments.run_result import RunResult
from fedpbc.experiments.settings import General, TrainSection
from fedpbc.experiments.side_by_side import Ended, side_by_side
from fedpbc.links import SCHEMES
from fedpbc.parallel import leave_cores_to_others, usable_cores
from fedpbc.python.progress_bar import ProgressBar
from fedpbc.python.simulate import check_task, python_config, simulate
from fedpbc.simulation.metrics import Metrics
from fedpbc.storage.files import read_own_file
from fedpbc.storage.scratch import scratch_folder
from fedpbc.tasks import Task

__all__ = ["ComparedRun", "EndedRun", "run_all"]

WORTH_SECONDS = 30.0
"""From this much work on, it pays to start other processes, which import torch first."""
REPORT_SECONDS = 0.2
MAX_BYTES = 1 << 40
"""Of what is handed to other processes: with the data in it, it may be as large as memory."""

MakeTask = Callable[[int], Task]


@dataclass(frozen=True)
class ComparedRun:
    """One run: its entry, seed, folder, and the options of :func:`fedpbc.simulate`."""

    entry: Entry
    seed: int
    folder: Path | None
    options: Mapping[str, Any]

    @property
    def algorithm(self) -> dict[str, Any]:
        """The algorithm with its options."""
        return {"name": self.entry.algorithm, **self.entry.options}


@dataclass(frozen=True)
class EndedRun:
    """The result of a run, and its record if it is not stored."""

    result: RunResult
    record: RunRecord | None = None


def run_all(
    make_task: MakeTask, runs: Sequence[ComparedRun], jobs: int | None, progress: bool | None
) -> list[EndedRun]:
    """Run all, and return their results in the same order."""
    share = [0.0] * len(runs)
    with ProgressBar(f"{len(runs)} runs", len(runs), shown=progress) as bar:

        def on_progress(number: int, done: float) -> None:
            share[number] = done
            ended = sum(each >= 1 for each in share)
            bar.update(sum(share), f"{runs[number].entry.label}, {ended} finished")

        ended: dict[int, EndedRun] = {}
        if jobs is None or jobs == 1 or len(runs) == 1:
            began = time.monotonic()
            for k in range(len(runs)):
                ended[k] = run_one(make_task, runs[k], partial(on_progress, k))
                left = (time.monotonic() - began) / (k + 1) * (len(runs) - k - 1)
                if jobs is None and left > WORTH_SECONDS and _may_leave(runs):
                    jobs = usable_cores()
                    break
        rest = [k for k in range(len(runs)) if k not in ended]
        if rest:
            ended |= _run_elsewhere(make_task, runs, rest, jobs or 1, on_progress)
    return [ended[k] for k in range(len(runs))]


def _may_leave(runs: Sequence[ComparedRun]) -> bool:
    """Whether the runs may go to other processes without having been told to."""
    own_processes = ("pool", "ray")
    return usable_cores() > 1 and all(
        run.options.get("on_round") is None and run.options.get("engine") not in own_processes
        for run in runs
    )


def run_one(
    make_task: MakeTask, run: ComparedRun, on_progress: Callable[[float], None]
) -> EndedRun:
    """Run one here; a finished one in its folder is kept."""
    entry, seed, last = run.entry, run.seed, 0.0
    task = _build_task(make_task, seed)
    result = RunResult(
        entry.algorithm,
        seed,
        task.clients,
        label=entry.label,
        condition=entry.condition,
        deploy_view=run.options.get("deploy_view"),
        step_sizes=(
            task.training.learning_rate,
            run.options.get("global_lr", TrainSection.global_learning_rate),
        ),
    )
    if run.folder is not None and (kept := _kept_run(task, run)):
        on_progress(1.0)
        return EndedRun(_with_results(result, kept.metrics(), kept.summary()))
    given = run.options.get("on_round")
    rounds = run.options.get("rounds")
    rounds = General.rounds if rounds is None else rounds

    def on_round(done: int, metrics: Metrics | None) -> None:
        nonlocal last
        if time.monotonic() - last > REPORT_SECONDS:
            last = time.monotonic()
            on_progress(min(done / rounds, 0.999))
        if given is not None:
            given(done, metrics)

    options = {**run.options, "on_round": on_round, "progress": False}
    try:
        ended = simulate(task, run.algorithm, seed=seed, out=run.folder, **options)
    except DivergedError as error:
        return EndedRun(replace(result, failure=str(error)))
    finally:
        on_progress(1.0)
    record = ended.record
    assert record is not None
    result = _with_results(result, record.metrics, record.summary)
    return EndedRun(result, record if run.folder is None else None)


def _with_results(
    run: RunResult, metrics: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
) -> RunResult:
    return replace(run, metrics=metrics).with_summary(summary)


def _run_elsewhere(
    make_task: MakeTask,
    runs: Sequence[ComparedRun],
    numbers: Sequence[int],
    jobs: int,
    on_progress: Callable[[int, float], None],
) -> dict[int, EndedRun]:
    """Run some of the runs in processes of their own."""
    user_classes = {
        "algorithms": {k: v for k, v in ALGORITHMS.items() if _is_own(v.__module__)},
        "schemes": {k: v for k, v in SCHEMES.items() if _is_own(v.rows.__module__)},
    }
    try:
        content = pickled_by_value((make_task, list(runs), user_classes))
    except Exception as error:  # Pickling runs code of whatever is pickled.
        expected = f"one that other processes can have, or jobs=1 ({one_line(error)})"
        raise InputError("make_task", "a function", expected) from error
    ended: dict[int, EndedRun] = {}
    with _in_a_file(content) as file:
        tasks = [(str(file), number) for number in numbers]
        with closing(side_by_side(_work, tasks, min(jobs, len(tasks)))) as messages:
            for message in messages:
                if not isinstance(message, Ended):
                    on_progress(*message)
                elif message.failure is not None:
                    label = runs[numbers[message.number]].entry.label
                    raise FedpbcError(f"{label} failed: {message.failure}")
                else:
                    ended[numbers[message.number]] = message.result
    return ended


def _is_own(module: str) -> bool:
    """Whether something is a user's: of a notebook, a script or a module of their own."""
    return module.split(".")[0] != "fedpbc"


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
def _loaded(file: str) -> tuple[MakeTask, list[ComparedRun]]:
    """What the process that compares has written for this one."""
    _check_private(Path(file).parent)
    make_task, runs, user_classes = unpickled(
        read_own_file(Path(file).parent, Path(file).name, MAX_BYTES)
    )
    ALGORITHMS.update(user_classes["algorithms"])
    SCHEMES.update(user_classes["schemes"])
    return make_task, runs


def _check_private(folder: Path) -> None:
    """Raise unless only this user can have written a folder: what is in it may run code."""
    status = folder.lstat()
    is_private = os.name == "nt" or (
        status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700
    )
    if not is_private or not stat.S_ISDIR(status.st_mode):
        raise FedpbcError(f"{folder} can be written by others: set TMPDIR to a folder of your own")


def _work(
    _: int, task: tuple[str, int], send: Callable[[Any], None], stopped: Callable[[], bool]
) -> EndedRun:
    """Run one in a worker process."""
    # There is one process per core; more threads would only compete.
    torch.set_num_threads(1)
    leave_cores_to_others()
    keep_freed_memory()
    file, number = task
    make_task, runs = _loaded(file)
    return run_one(make_task, runs[number], lambda done: send((number, done)))


def _kept_run(task: Task, run: ComparedRun) -> RunDirectory | None:
    """The finished run in a folder, if there is one; it must be the one that is asked for."""
    assert run.folder is not None
    directory = RunDirectory(run.folder)
    if not directory.finished or damage_of(directory):
        return None
    # How a run was watched does not matter now.
    watching = ("on_round", "track", "group", "progress")
    settings = {key: value for key, value in run.options.items() if key not in watching}
    experiment = build_experiment(python_config(task, run.algorithm, seed=run.seed, **settings))
    with closing(experiment.simulation):
        if experiment.about()["fingerprint"] != directory.summary()["fingerprint"]:
            raise FedpbcError(
                f"{run.folder} belongs to another run: its options are not these; choose a new "
                "folder"
            )
    return directory


def _build_task(make_task: MakeTask, seed: int) -> Task:
    """The task for a seed; how the user's function failed is a cause of the error."""
    try:
        task = make_task(seed)
    except FedpbcError:
        raise
    except Exception as error:
        raise InputError(f"make_task({seed}) failed: {one_line(error)}") from error
    check_task(task)
    return task
