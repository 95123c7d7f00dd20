"""Many runs, each in a folder of its own, side by side.

A grid that is killed goes on where it was: finished runs are never run again, the others resume. A
run that fails says why, while the rest go on.
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
from fedpbc.experiments.execution import StoppedError
from fedpbc.experiments.run import Watcher, resume_run, start_run
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.tracking import check_trackers, checked_names
from fedpbc.parallel import leave_cores_to_others
from fedpbc.simulation.loop import Metrics
from fedpbc.simulation.views import paper_view

__all__ = ["DivergedReason", "GridCell", "GridProgress", "long_ones_alone", "run_grid"]

REPORT_SECONDS = 0.2


@dataclass(frozen=True)
class GridCell:
    """One run of a grid: where it goes, what it is, and the folder of the grid, for trackers."""

    path: Path
    config: Mapping[str, Any]
    group: Path | None = None


@dataclass(frozen=True)
class GridProgress:
    """How far one run has come: rounds done, the last test accuracy found, or why it failed.

    A note is something that a person should see.
    """

    cell: int
    done: int
    accuracy: float | None = None
    failure: str | None = None
    note: str = ""


class DivergedReason(str):
    """What went wrong with a run that diverged: a grid search expects some that do."""

    __slots__ = ()


def run_grid(
    cells: Sequence[GridCell],
    jobs: int,
    on_progress: Callable[[GridProgress], None],
    *,
    alone: int = 0,
) -> list[str | None]:
    """Run all cells, ``jobs`` at a time; gives what went wrong with each, or None.

    Cells are begun in the order given: put long ones first. The first ``alone`` of them run one
    after another, each with the whole machine, before the others begin.
    """
    # Here and not in each of them: a server that goes away later must not make any of them fail.
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
        with _without_interrupts():
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
"""Share of the time for which cores may stand idle at the end of a grid."""


def long_ones_alone(weights: Sequence[float], jobs: int, most: int) -> int:
    """How many of the first runs should have the whole machine, one after another.

    Side by side, each run has one core. Where one takes longer than all others together, the other
    cores would wait for it: then it is better to have them all work on it first.

    Args:
        weights: how long each run takes on one core, the longest first.
        jobs: runs side by side.
        most: how many of the first can make use of several cores.

    Example:
        >>> long_ones_alone([10, 1, 1, 1, 1, 1, 1], jobs=2, most=1)
        1
        >>> long_ones_alone([10, 10, 1, 1, 1, 1, 1, 1], jobs=2, most=2)
        0
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
def _without_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C here, and in processes started meanwhile from their first moment."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread may say what signals do.
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _workers(jobs: int) -> Iterator[tuple[ProcessPoolExecutor, Any]]:
    """Worker processes that stop when this one is interrupted or gone."""
    context = multiprocessing.get_context("spawn")
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


def _begin(messages: Any, stop: StopEvent, parent: int) -> None:
    """In a worker: remember whom to tell."""
    global _messages, _stop
    _messages, _stop = messages, stop
    # There is a process for each core; threads that wait for each other would only be in the way.
    torch.set_num_threads(1)
    leave_cores_to_others()
    keep_freed_memory()
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    # Ctrl-C reaches the whole group; the parent decides, and says so through the event.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave_with(parent: int) -> None:
    """End this process when its parent was killed: an idle worker would wait for it for ever."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _work(k: int, cell: GridCell) -> str | None:
    """In a worker: run a cell and tell how it goes."""

    def tell(progress: GridProgress) -> None:
        if _stop is not None and _stop.is_set():
            raise StoppedError("stopped")
        _messages.put(progress)

    return _run_cell(k, cell, tell)


def _run_cell(k: int, cell: GridCell, tell: Callable[[GridProgress], None]) -> str | None:
    last, reached, rounds, accuracy, stopped = 0.0, 0, 0, None, False

    def on_round(done: int, metrics: Metrics | None) -> None:
        nonlocal last, reached, accuracy, stopped
        reached = done
        if metrics is not None:
            accuracy = metrics.views[paper_view(tuple(metrics.views))].test_accuracy
        # The last round is told at the very end, when everything is written.
        if done < rounds and time.monotonic() - last > REPORT_SECONDS:
            last = time.monotonic()
            stopped = True
            tell(GridProgress(k, done, accuracy))
            stopped = False

    def on_start(done: int, total: int, engine: str) -> None:
        nonlocal rounds
        rounds = total

    def on_note(line: str) -> None:
        tell(GridProgress(k, reached, accuracy, note=line))

    folder, watcher = RunDirectory(cell.path), Watcher(on_start, on_round, on_note)
    group = cell.group or cell.path.parent
    try:
        if folder.holds_run:
            track = checked_names(cell.config.get("track"))
            summary = resume_run(cell.path, watcher=watcher, track=track, group=group)
        else:
            config = Config.from_dict(cell.config)
            summary = start_run(config, cell.path, watcher=watcher, group=group)
    except StoppedError:
        return "stopped"
    except DivergedError as error:
        return DivergedReason(error)
    except FedpbcError as error:
        return str(error)
    except Exception as error:
        if stopped:
            raise  # Whoever listens wants no more.
        # Anything may go wrong in an algorithm of one's own; the other runs need not suffer.
        return one_line(error)
    # Nobody resumes a finished run of a grid, and there are many of them.
    for checkpoint in folder.checkpoints():
        checkpoint.unlink()
    tell(GridProgress(k, summary["rounds"], accuracy))
    return None
