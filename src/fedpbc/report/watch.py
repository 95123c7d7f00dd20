"""A page that is kept current while runs go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedpbc.experiments.comparison_directory import ComparisonDirectory
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.report.load import ShownRun, find_runs, read_runs
from fedpbc.report.page import check_place, page_of
from fedpbc.storage.atomic import write_atomically

__all__ = ["report", "watch"]

EVERY = 2.0
"""Seconds between looks."""
RELOAD = 5
"""Seconds after which an open page reads itself again."""
QUIET = 8.0
"""Seconds for which nothing may begin before it is over: a grid's next run takes a moment."""


def report(folders: Sequence[Path], out: Path, title: str, *, live: bool = False) -> list[ShownRun]:
    """Write the page about all runs below some folders; gives the runs."""
    found = find_runs(folders)
    check_place(out)
    runs = read_runs(found)
    text = page_of(runs, title=title, live=RELOAD if live else 0)
    write_atomically(out, text)
    return runs


def watch(
    folders: Sequence[Path],
    out: Path,
    title: str,
    *,
    on_change: Callable[[Sequence[ShownRun]], None] = lambda runs: None,
    every: float = EVERY,
    quiet: float = QUIET,
) -> bool:
    """Write the page whenever runs have moved on, until all have ended; False if interrupted.

    A comparison knows which of its runs are still to come. Of others nobody can tell, so they must
    have been quiet for a while.
    """
    if all(_knows_its_end(folder) for folder in folders):
        quiet = 0.0
    marks: object = None
    changed = time.monotonic()
    try:
        while True:
            now = _marks(folders)
            if now != marks:
                marks, changed = now, time.monotonic()
                runs = report(folders, out, title, live=True)
                on_change(runs)
                ended = all(run.state in {"finished", "failed", "damaged"} for run in runs)
            if ended and time.monotonic() - changed >= quiet:
                return True
            time.sleep(every)
    except KeyboardInterrupt:
        return False
    finally:
        if marks is not None:
            # Nobody writes it any more: from now on it stays as it is.
            report(folders, out, title)


def _knows_its_end(folder: Path) -> bool:
    return RunDirectory(folder).holds_run or ComparisonDirectory(folder).holds_comparison


def _marks(folders: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Changes whenever a run does."""
    found = []
    for path in find_runs(folders):
        folder = RunDirectory(path)
        for place in (
            folder.config_path,
            folder.metrics_path,
            folder.summary_path,
            folder.failure_path,
        ):
            try:
                status = place.stat()
            except OSError:
                found.append((str(place), 0, 0))
            else:
                found.append((str(place), status.st_mtime_ns, status.st_size))
    return found
