"""Write the result of a comparison: JSON, a table in Markdown, a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.comparison import Comparison, ComparisonRow
from benchmarks.plots import plot_bars
from benchmarks.tables import digits, duration, machine_line, markdown_table, percent, write_json

__all__ = ["write"]


def write(comparison: Comparison, folder: Path) -> str:
    """Write all three; return the Markdown."""
    work = comparison.work
    name = f"{work.name}-{work.algorithm}"
    write_json(folder / f"{name}.json", comparison.as_dict())
    plot_bars(comparison, folder / f"{name}.png")
    text = fragment(comparison, f"{name}.png")
    (folder / f"{name}.md").write_text(text)
    return text


def fragment(comparison: Comparison, picture: str) -> str:
    """A part of RESULTS.md."""
    versus = [name for name in ("plain", "serial") if comparison.seconds(name)]
    heads = [
        "",
        "per round",
        "least to most",
        *[f"times as fast as {name}" for name in versus],
        "of the bound",
    ]
    lines = [cells(row, versus) for row in comparison.rows(versus)]
    repeats = len({block.repetition for block in comparison.blocks})
    parts = [
        f"### {comparison.work.title}",
        f"{machine_line(comparison.machine)}; repetitions: {repeats}.",
        markdown_table(heads, lines),
        *[f"- {name} was not run: {reason}" for name, reason in comparison.absent.items()],
        f"![the same as bars](results/{picture})",
    ]
    return "\n\n".join(parts) + "\n"


def cells(row: ComparisonRow, versus: Sequence[str]) -> list[str]:
    """One line of the table."""
    return [
        row.name,
        duration(row.seconds),
        f"{duration(row.low)} to {duration(row.high)}",
        *[digits(row.speedup[name]) for name in versus],
        "–" if row.share is None else percent(row.share),
    ]
