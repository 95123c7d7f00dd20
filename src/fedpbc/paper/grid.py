"""Run the planned runs of an experiment and collect their results."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedpbc.engines.malloc import keep_freed_memory
from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.run_result import RunResult
from fedpbc.experiments.sweep import DivergedReason, GridProgress
from fedpbc.paper.catalog import ExperimentRequest, OnProgress, ProgressRow
from fedpbc.paper.directory import PaperDirectory
from fedpbc.paper.plan import PaperCondition, PlannedRun
from fedpbc.report.page import check_report_path

__all__ = ["WINDOW", "ConditionResult", "SweepResult", "progress_display", "run_planned"]

WINDOW = 100
"""The paper's tables are means over this many last rounds; short runs use fewer."""

ConditionResult = tuple[PaperCondition, Comparison]


@dataclass(frozen=True)
class SweepResult:
    """The results of all runs of an experiment; ``path`` is its folder."""

    path: Path
    cells: Sequence[tuple[PlannedRun, RunResult]]

    @property
    def comparisons(self) -> list[ConditionResult]:
        """A comparison for each condition, in the order planned."""
        by_key: dict[tuple[str, ...], tuple[PaperCondition, list[RunResult]]] = {}
        for run, cell in self.cells:
            by_key.setdefault(run.condition.key, (run.condition, []))[1].append(cell)
        return [(condition, Comparison(cells)) for condition, cells in by_key.values()]

    @property
    def failed(self) -> list[str]:
        """One line for each failed run."""
        return [f"{run.label}: {cell.failure}" for run, cell in self.cells if cell.failure]

    @property
    def folders(self) -> list[Path]:
        """The folders of the finished runs."""
        return [self.path / run.folder for run, cell in self.cells if cell.failure is None]


def run_planned(
    experiment: str,
    request: ExperimentRequest,
    runs: Sequence[PlannedRun],
    *,
    last: int | None = None,
    search: bool = False,
) -> SweepResult:
    """Run what is not finished yet; raises FedpbcError if every run failed.

    ``last``: keep only the evaluations of this many last rounds. ``search``: runs that diverge are
    expected and not displayed as failures.
    """
    if request.jobs is not None and request.jobs < 1:
        raise InputError("jobs", request.jobs, "at least 1")
    keep_freed_memory()
    directory = PaperDirectory(request.out, experiment)
    if directory.path.is_dir():
        # Checked now, not after everything has been run.
        check_report_path(directory.path / "report.html")
    engines = directory.check(runs, overwrite=request.overwrite)
    command = request.command(experiment)
    with directory.opened(runs, command, overwrite=request.overwrite) as runs:
        pending = directory.pending(runs)
        rows = [
            ProgressRow(run.label, run.condition.rounds, run.weight, done) for run, done in pending
        ]
        with progress_display(request, rows) as show:

            def on_progress(progress: GridProgress) -> None:
                if search and isinstance(progress.failure, DivergedReason):
                    progress = GridProgress(progress.cell, rows[progress.cell].rounds)
                show(progress)

            failures = directory.run(
                [run for run, _ in pending], request.jobs, engines, on_progress
            )
        cells = [(run, directory.cell(run, failures.get(run.folder), last=last)) for run in runs]
    result = SweepResult(directory.path, cells)
    if len(result.failed) == len(cells):
        raise FedpbcError(f"every run failed; the first: {result.failed[0]}")
    return result


@contextmanager
def progress_display(
    request: ExperimentRequest, rows: Sequence[ProgressRow]
) -> Iterator[OnProgress]:
    """The request's display; without one, only the runs' notes are shown, as warnings."""
    if request.display is not None:
        with request.display(rows, request.out) as show:
            yield show
        return

    def warn(progress: GridProgress) -> None:
        if progress.note:
            message = f"{rows[progress.cell].label}: {progress.note}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    yield warn
