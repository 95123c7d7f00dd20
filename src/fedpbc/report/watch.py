"""Write the report about runs below some folders, once or whenever they progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedpbc.experiments.comparison_directory import ComparisonDirectory
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.report.load import LoadedRun, find_runs
from fedpbc.report.page import write_page

__all__ = ["watch", "write_report"]

POLL_SECONDS = 2.0
RELOAD_SECONDS = 5
"""After which an open page reloads itself."""
QUIET_SECONDS = 8.0
"""Without a change before watching ends: a grid's next run takes a moment to begin."""


def write_report(
    folders: Sequence[Path],
    out: Path,
    title: str,
    *,
    baseline: str | None = None,
    live: bool = False,
) -> list[LoadedRun]:
    """Write the page about all runs below some folders, and return the runs."""
    seconds = RELOAD_SECONDS if live else 0
    return write_page(out, find_runs(folders), title=title, baseline=baseline, live=seconds)


def watch(
    folders: Sequence[Path],
    out: Path,
    title: str,
    *,
    baseline: str | None = None,
    on_change: Callable[[Sequence[LoadedRun]], None] = lambda runs: None,
    every: float = POLL_SECONDS,
    quiet: float = QUIET_SECONDS,
) -> bool:
    """Write the page whenever runs progress, until all have ended; False if interrupted.

    A run or a comparison has a known end. In other folders new runs may begin at any time, so
    watching ends after ``quiet`` seconds without a change.
    """
    if all(_has_known_end(folder) for folder in folders):
        quiet = 0.0
    stamps: object = None
    changed = time.monotonic()
    try:
        while True:
            current = _file_stamps(folders)
            if current != stamps:
                stamps, changed = current, time.monotonic()
                runs = write_report(folders, out, title, baseline=baseline, live=True)
                on_change(runs)
                ended = all(run.state in {"finished", "failed", "damaged"} for run in runs)
            if ended and time.monotonic() - changed >= quiet:
                return True
            time.sleep(every)
    except KeyboardInterrupt:
        return False
    finally:
        if stamps is not None:
            # The last version does not reload itself.
            write_report(folders, out, title, baseline=baseline)


def _has_known_end(folder: Path) -> bool:
    return RunDirectory(folder).holds_run or ComparisonDirectory(folder).holds_comparison


def _file_stamps(folders: Sequence[Path]) -> list[tuple[Path, int, int]]:
    """Return time and size of the runs' files; 0 for a missing file."""
    stamps = []
    for path in find_runs(folders):
        run = RunDirectory(path)
        for file in (run.config_path, run.metrics_path, run.summary_path, run.failure_path):
            try:
                status = file.stat()
            except OSError:
                stamps.append((file, 0, 0))
            else:
                stamps.append((file, status.st_mtime_ns, status.st_size))
    return stamps
