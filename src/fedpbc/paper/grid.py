"""Run the grid of an experiment: checked before anything is written, shown while it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpbc.engines.malloc import keep_freed_memory
from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.comparison import Cell, Comparison
from fedpbc.experiments.sweep import DivergedReason, GridProgress
from fedpbc.paper.directory import PaperDirectory
from fedpbc.paper.experiment import ExperimentRequest
from fedpbc.paper.plan import PlannedRun, PlotGroup

__all__ = ["WINDOW", "SweepResult", "run_planned"]

WINDOW = 100
"""The paper's tables are means over so many last rounds; short runs have fewer."""


@dataclass(frozen=True)
class SweepResult:
    """What came of a grid.

    Attributes:
        path: the experiment's folder.
        cells: each planned run with what came of it.
    """

    path: Path
    cells: Sequence[tuple[PlannedRun, Cell]]

    @property
    def groups(self) -> list[tuple[PlotGroup, Comparison]]:
        """A comparison for each group, in the order planned."""
        found: dict[tuple[str, ...], tuple[PlotGroup, list[Cell]]] = {}
        for run, cell in self.cells:
            found.setdefault(run.group.key, (run.group, []))[1].append(cell)
        return [(group, Comparison(cells)) for group, cells in found.values()]

    @property
    def failed(self) -> list[str]:
        """What went wrong, a line each."""
        return [f"{run.label}: {cell.failure}" for run, cell in self.cells if cell.failure]

    @property
    def folders(self) -> list[Path]:
        """The run folders of the cells that finished."""
        return [self.path / run.place for run, cell in self.cells if cell.failure is None]


def run_planned(
    experiment: str,
    wanted: ExperimentRequest,
    runs: Sequence[PlannedRun],
    *,
    last: int | None = None,
    search: bool = False,
) -> SweepResult:
    """Run what is not finished yet; if every run failed there is nothing to show, and that is said.

    ``last``: only the evaluations of so many last rounds are wanted. ``search``: runs that diverge
    are expected, and not worth a line while others go on.
    """
    from fedpbc.cli.display import GridDisplay, GridRow
    from fedpbc.report.page import check_report_path

    if wanted.jobs is not None and wanted.jobs < 1:
        raise InputError("jobs", wanted.jobs, "at least 1")
    keep_freed_memory()
    folder = PaperDirectory(wanted.out, experiment)
    if folder.path.is_dir():
        # Found out now, and not when everything has been run.
        check_report_path(folder.path / "report.html")
    engines = folder.check(runs, fresh=wanted.overwrite)
    command = wanted.command(experiment)
    with folder.opened(runs, command, overwrite=wanted.overwrite) as own:
        pending = folder.pending(own)
        rows = [GridRow(p.run.label, p.run.group.rounds, p.run.weight, p.done) for p in pending]
        with GridDisplay(rows, folder.path, quiet=wanted.quiet) as display:

            def tell(progress: GridProgress) -> None:
                if search and isinstance(progress.failure, DivergedReason):
                    progress = GridProgress(progress.cell, rows[progress.cell].rounds)
                display.on_progress(progress)

            failures = folder.run(pending, wanted.jobs, engines, tell)
        cells = [(run, folder.cell(run, failures.get(run.place), last=last)) for run in own]
    if all(cell.failure for _, cell in cells):
        raise FedpbcError(f"every run failed; the first: {cells[0][1].failure}")
    return SweepResult(folder.path, cells)
