"""Write a comparison's results to its directory."""

from __future__ import annotations

import json

from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.comparison_directory import ComparisonDirectory, ComparisonPlan
from fedpbc.report.comparison_table import markdown, markdown_table
from fedpbc.report.page import write_page
from fedpbc.report.paired_table import (
    paired_headings,
    paired_notes,
    paired_rows,
    shows_differences,
)
from fedpbc.report.plot import plot_comparison
from fedpbc.storage.atomic import write_atomically

__all__ = ["markdown_results", "write_comparison"]


def write_comparison(
    comparison: Comparison,
    directory: ComparisonDirectory,
    plan: ComparisonPlan,
    baseline: str | None = None,
) -> None:
    """Write comparison.json, table.md, accuracy.png and report.html."""
    results = json.dumps(comparison.as_dict(baseline), indent=2, allow_nan=False)
    write_atomically(directory.json_path, results + "\n")
    table = markdown_results(comparison, baseline)
    write_atomically(directory.table_path, table.encode(errors="backslashreplace"))
    config = plan.first()
    subject = config.task.name if config.task.name == "quadratic" else config.data.name
    title = f"{subject} · {config.links['name']}"
    plot_comparison(comparison, directory.plot_path, title)
    runs = [run.path for *_, run in directory.cells(plan)]
    write_page(directory.report_path, runs, title=f"Comparison: {title}", baseline=baseline)


def markdown_results(comparison: Comparison, baseline: str | None = None) -> str:
    """Return a comparison's table, the verdict, the paired differences and all notes."""
    paired = comparison.paired(baseline)
    below = f"**Verdict:** {comparison.verdict(baseline)}"
    if shows_differences(paired):
        rows = [[text for text, _ in row] for row in paired_rows(comparison, paired)]
        below += "\n\n" + markdown(paired_headings(paired), rows)
    return markdown_table(comparison, below=below, notes=paired_notes(paired))
