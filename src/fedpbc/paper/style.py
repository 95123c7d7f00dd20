"""How the paper's figures look, and how they are written with their numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from fedpbc.paper.experiment import EXPERIMENTS, ExperimentRequest, ExperimentResult
from fedpbc.report.page import PageTable, write_page
from fedpbc.report.plot import save_figure
from fedpbc.report.style import style_of
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.directories import make_directory

__all__ = ["columns", "look_of", "write_experiment"]

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
    # Letters stay letters: they can be found, and edited, in the PDF.
    "pdf.fonttype": 42,
}


def look_of(algorithm: str) -> dict[str, Any]:
    """Colour, dashes and marker: an algorithm looks the same in every figure.

    Example:
        >>> look_of("fedavg")["marker"]
        's'
    """
    colour, dash, marker = style_of(algorithm)
    return {"color": colour, "linestyle": dash, "marker": marker}


def write_experiment(
    name: str,
    wanted: ExperimentRequest,
    *,
    size: tuple[float, float],
    draw: Callable[[Figure], None],
    table: PageTable,
    numbers: dict[str, Any],
    quick: str,
    runs: Sequence[Path] = (),
    failed: Sequence[str] = (),
) -> ExperimentResult:
    """Write NAME.png, NAME.pdf, NAME.json and the page.

    Args:
        name: the experiment's.
        wanted: where to, and what was asked for.
        size: of the figure, in inches.
        draw: fills it.
        table: the figure's numbers, for people.
        numbers: for machines; what was asked for is added.
        quick: what ``--quick`` left out; said on the figure and in the text.
        runs: the run folders behind it, if there are any; the page shows them too.
        failed: what went wrong while the rest went on.
    """
    make_directory(wanted.out)
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        if wanted.quick:
            figure.suptitle(f"quick: {quick}", fontsize=9, style="italic", color="#444444")
        written = save_figure(figure, wanted.out / name)
    command = wanted.command(name)
    full = {
        "experiment": name,
        "command": command,
        "quick": quick if wanted.quick else None,
        **numbers,
    }
    place, page = wanted.out / f"{name}.json", wanted.out / "report.html"
    write_atomically(place, json.dumps(full, indent=2, ensure_ascii=False) + "\n")
    said = [*([f"quick: {quick}"] if wanted.quick else []), *(f"failed: {line}" for line in failed)]
    write_page(
        page,
        runs,
        title=f"{name}: {EXPERIMENTS[name]}",
        commands=[command],
        notes=said,
        tables=[table],
        pictures=[picture for picture in written if picture.suffix == ".png"],
    )
    shown = columns([table.head, *([str(cell) for cell in row] for row in table.rows)])
    text = "\n".join([*said, shown, *table.notes, f"made by: {command}"])
    return ExperimentResult(
        text, full, [page, *written, place], failed, f"open {page} in a browser"
    )


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as lines, the first column to the left, the others to the right.

    Example:
        >>> print(columns([["p", "mean"], ["0.25", "7"]]))
        p     mean
        0.25     7
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
