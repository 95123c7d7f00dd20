"""What an experiment with a grid writes at its end: Markdown, JSON and the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpbc.paper.experiment import EXPERIMENTS, ExperimentRequest, ExperimentResult
from fedpbc.paper.grid import SweepResult
from fedpbc.paper.plan import PlannedRun
from fedpbc.paper.result_table import ResultTable
from fedpbc.storage.atomic import write_atomically

__all__ = ["finish", "scale_note", "seeds_note"]


def scale_note(wanted: ExperimentRequest, runs: Sequence[PlannedRun]) -> str:
    """What was run, and whether that is the paper's scale."""
    seeds = sorted({run.seed for run in runs})
    rounds = sorted({run.group.rounds for run in runs})
    data = list(dict.fromkeys(run.group.data for run in runs))
    clients = {run.config.get("clients", 100) for run in runs}
    scale = (
        f"{_listed(data)}, {_listed(rounds)} rounds, {_listed(sorted(clients))} clients, "
        f"seed{'s' if len(seeds) > 1 else ''} {_listed(seeds)}"
    )
    if wanted.quick:
        return f"QUICK, not the paper's scale: {scale}."
    return f"Run: {scale}."


def seeds_note(runs: Sequence[PlannedRun]) -> str:
    """What ± means."""
    seeds = len({run.seed for run in runs})
    return f"± one standard deviation over {seeds} seeds." if seeds > 1 else "One seed."


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in values)


def finish(
    experiment: str,
    wanted: ExperimentRequest,
    outcome: SweepResult,
    *,
    sheets: Sequence[ResultTable],
    notes: Sequence[str],
    numbers: Mapping[str, Any],
    pictures: Sequence[Path],
    next: str,
    folders: Sequence[Path] | None = None,
) -> ExperimentResult:
    """Write everything, and say what is worth looking at.

    ``notes`` are true of all sheets; ``pictures`` are written already, as PNG and PDF; ``folders``
    are the runs whose curves the page shows, all unless given.
    """
    command = wanted.command(experiment)
    title = f"{experiment}: {EXPERIMENTS[experiment]}" + (" (quick)" if wanted.quick else "")
    notes = [*notes, *(f"FAILED: {line}" for line in outcome.failed)]
    if outcome.failed:
        notes.append("An algorithm with failed runs shows the seeds that finished, if any.")
    parts = [
        f"# {title}",
        f"`{command}`",
        "\n".join(f"- {note}" for note in notes),
        *(sheet.markdown() for sheet in sheets),
    ]
    markdown = outcome.path / f"{experiment}.md"
    machine = outcome.path / f"{experiment}.json"
    found = {
        "experiment": experiment,
        "command": command,
        "quick": wanted.quick,
        "notes": notes,
        **numbers,
        "failed": outcome.failed,
    }
    write_atomically(markdown, "\n\n".join(parts) + "\n")
    write_atomically(machine, json.dumps(found, indent=2) + "\n")
    page = outcome.path / "report.html"
    write_report(
        page,
        outcome.folders if folders is None else folders,
        title,
        command,
        notes,
        sheets,
        pictures,
    )
    text = "\n\n".join([*(sheet.terminal() for sheet in sheets), "\n".join(notes)])
    written = [page, markdown, *pictures, machine]
    return ExperimentResult(text, found, written, outcome.failed, next)


def write_report(
    place: Path,
    folders: Sequence[Path],
    title: str,
    command: str,
    notes: Sequence[str],
    sheets: Sequence[ResultTable],
    pictures: Sequence[Path],
) -> None:
    """Write the HTML page."""
    from fedpbc.report.page import write_page

    write_page(
        place,
        folders,
        title=title,
        commands=[command],
        notes=notes,
        tables=[sheet.page() for sheet in sheets],
        pictures=[picture for picture in pictures if picture.suffix == ".png"],
    )
