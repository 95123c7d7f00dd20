"""Write an experiment's results: figures, Markdown, JSON and the HTML page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from fedpbc.paper.catalog import EXPERIMENTS, ExperimentRequest, ExperimentResult
from fedpbc.paper.directory import PaperDirectory
from fedpbc.paper.grid import SweepResult
from fedpbc.paper.plan import PlannedRun
from fedpbc.paper.result_table import ResultTable
from fedpbc.report.page import write_page
from fedpbc.report.plot import save_figure
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.directories import make_directory
from fedpbc.text import shell_quoted

__all__ = [
    "figure_title",
    "links_notes",
    "scale_note",
    "seeds_note",
    "window_note",
    "write_figure",
    "write_tables",
]

STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.5,
    # Embed fonts as text, which can be searched and edited in the PDF.
    "pdf.fonttype": 42,
}
"""Matplotlib settings of the paper's figures."""


def scale_note(request: ExperimentRequest, runs: Sequence[PlannedRun]) -> str:
    """What was run, and whether that is the paper's scale."""
    seeds = sorted({run.seed for run in runs})
    rounds = sorted({run.condition.rounds for run in runs})
    data = list(dict.fromkeys(run.condition.data for run in runs))
    clients = sorted({run.config.get("clients", 100) for run in runs})
    scale = (
        f"{', '.join(data)}, {_listed(rounds)} rounds, {_listed(clients)} clients, "
        f"seed{'s' if len(seeds) > 1 else ''} {_listed(seeds)}"
    )
    return f"QUICK, not the paper's scale: {scale}." if request.quick else f"Run: {scale}."


def links_notes(runs: Sequence[PlannedRun]) -> list[str]:
    """What a reader would not expect of the links."""
    configs = [run.config["links"] for run in runs if run.condition.links == "cyclic_reset"]
    if not configs:
        return []
    gammas = " and ".join(f"{g:g}" for g in sorted({links["gamma"] for links in configs}))
    return [
        f"cyclic_reset has γ = {gammas} here. The paper's text has none, but its released code has "
        "0.4, and its figures are of that: links are up for about 1 − γ times as many rounds "
        "(links.gamma = 0: the text)."
    ]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)


def seeds_note(sweep: SweepResult) -> str:
    """What ± means."""
    seeds = len({run.seed for run, _ in sweep.cells})
    return f"± one standard deviation over {seeds} seeds." if seeds > 1 else "One seed."


def window_note(sweep: SweepResult) -> str:
    """Over which rounds accuracies are averaged, and what ± means."""
    windows = sorted({c.window for _, c in sweep.comparisons if c.finished})
    rounds = " or ".join(map(str, windows))
    means = f"Accuracies are means over the evaluations in the last {rounds} rounds."
    return f"{means} {seeds_note(sweep)}"


def figure_title(title: str, quick: bool) -> str:
    """A figure's title, which says whether it has the paper's scale."""
    return f"{title} · quick, not the paper's scale" if quick else title


def write_figure(
    name: str,
    request: ExperimentRequest,
    *,
    size: tuple[float, float],
    draw: Callable[[Figure], None],
    table: ResultTable,
    numbers: Mapping[str, Any],
    quick: str,
    sweep: SweepResult | None = None,
) -> ExperimentResult:
    """Write one of the paper's figures: NAME.png, NAME.svg, NAME.pdf, NAME.json and report.html.

    ``table`` and ``numbers`` have the same content, for readers and for the JSON file. ``quick``
    says what ``--quick`` reduced. ``sweep`` are the runs behind the figure, if any.
    """
    make_directory(request.out)
    sweep = sweep or SweepResult(request.out, [])
    notes = [f"quick: {quick}"] if request.quick else []
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        if notes:
            figure.suptitle(notes[0], fontsize=9, style="italic", color="#444444")
        pictures = save_figure(figure, request.out / name)
    return _write(
        name,
        request,
        sweep,
        tables=[table],
        notes=[*notes, *_failure_notes(sweep)],
        numbers={"quick": quick if request.quick else None, **numbers},
        files=pictures,
        next=f"open {shell_quoted(request.out / 'report.html')} in a browser",
    )


def write_tables(
    name: str,
    request: ExperimentRequest,
    sweep: SweepResult,
    *,
    tables: Sequence[ResultTable],
    notes: Sequence[str],
    numbers: Mapping[str, Any],
    pictures: Sequence[Path],
    next: str,
    folders: Sequence[Path] | None = None,
) -> ExperimentResult:
    """Write the tables of an experiment: NAME.md, NAME.json and report.html.

    ``notes`` apply to all tables; ``pictures`` are written already, as PNG and PDF; ``folders`` are
    the runs whose curves the page shows, None: all that finished.
    """
    notes = [*notes, *_failure_notes(sweep)]
    markdown = request.out / f"{name}.md"
    parts = [
        f"# {_title(name, request)}",
        f"`{request.command(name)}`",
        "\n".join(f"- {note}" for note in notes),
        *(table.markdown() for table in tables),
    ]
    write_atomically(markdown, "\n\n".join(parts) + "\n")
    return _write(
        name,
        request,
        sweep,
        tables=tables,
        notes=notes,
        numbers={"notes": notes, **numbers, "failed": sweep.failed},
        files=[markdown, *pictures],
        folders=folders,
        next=next,
    )


def _title(name: str, request: ExperimentRequest) -> str:
    return f"{name}: {EXPERIMENTS[name]}" + (" (quick)" if request.quick else "")


def _failure_notes(sweep: SweepResult) -> list[str]:
    explanation = "An algorithm with failed runs shows the seeds that finished, if any."
    return [*(f"FAILED: {line}" for line in sweep.failed), *([explanation] if sweep.failed else [])]


def _write(
    name: str,
    request: ExperimentRequest,
    sweep: SweepResult,
    *,
    tables: Sequence[ResultTable],
    notes: Sequence[str],
    numbers: Mapping[str, Any],
    files: Sequence[Path],
    next: str,
    folders: Sequence[Path] | None = None,
) -> ExperimentResult:
    """Write the JSON file and the page; ``files`` are written already."""
    command = request.command(name)
    content = {"experiment": name, "command": command, "quick": request.quick, **numbers}
    json_path, page = request.out / f"{name}.json", request.out / "report.html"
    write_atomically(json_path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    write_page(
        page,
        sweep.folders if folders is None else folders,
        title=_title(name, request),
        commands=[command],
        notes=notes,
        tables=[table.page() for table in tables],
        pictures=[file for file in files if file.suffix == ".svg"],
    )
    parts = [
        *(table.terminal(request.width) for table in tables),
        *(["\n".join(notes)] if notes else []),
    ]
    written = [page, *files, json_path]
    PaperDirectory(request.out, name).record_results(written)
    return ExperimentResult("\n\n".join(parts), content, written, sweep.failed, next)
