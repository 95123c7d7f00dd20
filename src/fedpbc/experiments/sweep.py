"""Many runs side by side, each in a directory of its own.

A sweep that is killed can be resumed: finished runs are not run again, the others continue. A run
that fails is reported, and the rest continue.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event as StopEvent
from pathlib import Path
from typing import Any

import torch

from fedpbc.engines.malloc import keep_freed_memory
from fedpbc.errors import DivergedError, FedpbcError, one_line
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.execution import StoppedError, Watcher
from fedpbc.experiments.resume import resume_run
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.start import start_run
from fedpbc.experiments.tracking import check_trackers, checked_names
from fedpbc.interrupts import held_back, leave_to_parent
from fedpbc.parallel import leave_cores_to_others
from fedpbc.simulation.metrics import Metrics
from fedpbc.simulation.views import paper_view
from fedpbc.warning_notes import warnings_noted

__all__ = ["DivergedReason", "GridCell", "GridProgress", "long_ones_alone", "run_grid"]

REPORT_SECONDS = 0.2
GRACE_SECONDS = 5.0
"""In which a process that is to end hears whether its parent ends as well."""


@dataclass(frozen=True)
class GridCell:
    """One run: its directory, the values of its configuration, and its group, for trackers."""

    path: Path
    config: Mapping[str, Any]
    group: Path | None = None


@dataclass(frozen=True)
class GridProgress:
    """The progress of one run: rounds completed, the last test accuracy, or why it failed."""

    cell: int
    done: int
    accuracy: float | None = None
    failure: str | None = None
    note: str = ""
    """A line that a person should see."""


class DivergedReason(str):
    """The failure of a run that diverged: a grid search expects some that do."""

    __slots__ = ()


def run_grid(
    cells: Sequence[GridCell],
    jobs: int,
    on_progress: Callable[[GridProgress], None],
    *,
    alone: int = 0,
) -> list[str | None]:
    """Run all cells, ``jobs`` at a time; returns the failure of each, or None.

    Cells are started in the order given: put long ones first. The first ``alone`` of them run one
    after another, each with the whole machine, before the others start.
    """
    # Here and not in each run: a tracking server that fails later must not make a run fail.
    check_trackers(sorted({n for cell in cells for n in checked_names(cell.config.get("track"))}))
    if jobs == 1 or len(cells) == 1:
        alone = len(cells)
    failures: list[str | None] = [None] * len(cells)
    for k, cell in enumerate(cells[:alone]):
        failures[k] = _run_cell(k, cell, on_progress)
        if failures[k] is not None:
            on_progress(GridProgress(k, 0, failure=failures[k]))
    if alone >= len(cells):
        return failures
    with _workers(min(jobs, len(cells) - alone)) as (executor, messages):
        with held_back():
            futures: dict[Future[str | None], int] = {
                executor.submit(_work, k, cells[k]): k for k in range(alone, len(cells))
            }
        waiting = set(futures)
        while waiting:
            try:
                on_progress(messages.get(timeout=REPORT_SECONDS))
                continue
            except queue.Empty:
                pass
            for future in [f for f in waiting if f.done()]:
                waiting.remove(future)
                k = futures[future]
                try:
                    failures[k] = future.result()
                except BrokenProcessPool:
                    failures[k] = "its process was killed; resume to run it again"
                if failures[k] is not None:
                    on_progress(GridProgress(k, 0, failure=failures[k]))
    return failures


WASTE = 0.1
"""Share of the time for which cores may be idle at the end of a sweep."""


def long_ones_alone(weights: Sequence[float], jobs: int, most: int) -> int:
    """How many of the first runs should have the whole machine, one after another.

    Side by side, each run has one core. Where one run takes longer than all others together, the
    other cores would be idle: then it is better to let all of them work on it first. ``weights``
    are the durations on one core, longest first; the first ``most`` runs can use several cores.
    """
    for alone in range(most):
        left = weights[alone:]
        busy = [0.0] * jobs
        for weight in left:
            busy[busy.index(min(busy))] += weight
        if max(busy) <= (1 + WASTE) * sum(left) / jobs:
            return alone
    return most


@contextmanager
def _workers(jobs: int) -> Iterator[tuple[ProcessPoolExecutor, Any]]:
    """Worker processes that stop when this one is interrupted or gone."""
    context = multiprocessing.get_context("spawn")
    # These start Python's resource tracker, which would complain if a signal ended it early.
    with held_back():
        messages, stop = context.Queue(), context.Event()
    executor = ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_begin, initargs=(messages, stop, os.getpid())
    )
    try:
        yield executor, messages
    except BaseException:
        stop.set()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


_messages: Any = None
_stop: StopEvent | None = None
_told_to_end, _working = threading.Event(), threading.Event()


def _begin(messages: Any, stop: StopEvent, parent: int) -> None:
    """Set up a worker process."""
    global _messages, _stop
    _messages, _stop = messages, stop
    # There is one process per core; more threads would only compete.
    torch.set_num_threads(1)
    leave_cores_to_others()
    keep_freed_memory()
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    # A signal may reach the whole process group; the parent decides, and sets the event.
    leave_to_parent()
    # But a pool that lost one process ends the others so.
    signal.signal(signal.SIGTERM, lambda *_: _told_to_end.set())


def _leave_with(parent: int) -> None:
    """End this process when its parent was killed, or told it to: an idle one would wait forever.

    If the parent was told to end as well, the work under way is stopped in order.
    """
    last = None
    while os.getppid() == parent:
        if _told_to_end.is_set():
            last = last or time.monotonic() + GRACE_SECONDS
            in_order = _stop is not None and _stop.is_set() and _working.is_set()
            if time.monotonic() > last and not in_order:
                break
        time.sleep(0.5)
    os._exit(1)


def _work(k: int, cell: GridCell) -> str | None:
    """Run a cell in a worker process, and send its progress."""

    def on_progress(progress: GridProgress) -> None:
        if _stop is not None and _stop.is_set():
            raise StoppedError("stopped")
        _messages.put(progress)

    def on_warning(line: str) -> None:
        _messages.put(GridProgress(k, 0, note=line))

    if _stop is not None and _stop.is_set():
        return "stopped"
    _working.set()
    try:
        with warnings_noted(on_warning):
            return _run_cell(k, cell, on_progress)
    finally:
        _working.clear()


def _run_cell(k: int, cell: GridCell, on_progress: Callable[[GridProgress], None]) -> str | None:
    last, reached, rounds, accuracy, stopped = 0.0, 0, 0, None, False

    def on_round(done: int, metrics: Metrics | None) -> None:
        nonlocal last, reached, accuracy, stopped
        reached = done
        if metrics is not None:
            accuracy = metrics.views[paper_view(tuple(metrics.views))].test_accuracy
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
        if directory.holds_run:
            track = checked_names(cell.config.get("track"))
            summary = resume_run(cell.path, watcher=watcher, track=track, group=group)
        else:
            # Whoever made the grid has checked that every setting has an effect in some cell.
            config = Config.from_dict(cell.config, lenient=True)
            summary = start_run(config, cell.path, watcher=watcher, group=group)
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
        return one_line(error)
    # Nobody resumes a finished run of a sweep, and there are many of them.
    directory.checkpoints.remove()
    on_progress(GridProgress(k, summary["rounds"], accuracy))
    return None
