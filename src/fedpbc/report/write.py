"""Write a comparison's results to its directory."""

from __future__ import annotations

import json

from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.comparison_directory import ComparisonDirectory, ComparisonPlan
from fedpbc.experiments.conditions import is_ceiling
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
    title = _title(plan)
    plot_comparison(comparison, directory.plot_path, title)
    runs = [run.path for *_, run in directory.cells(plan)]
    write_page(directory.report_path, runs, title=f"Comparison: {title}", baseline=baseline)


def markdown_results(comparison: Comparison, baseline: str | None = None) -> str:
    """Return a comparison's table, the verdict, the paired differences and all notes."""
    parts, notes = [], dict[str, None]()
    for condition, part in comparison.by_condition().items():
        reference = part.baseline_label(baseline)
        paired = part.paired(reference)
        with_ = f" with {condition}" if condition else ""
        parts.append(f"**Verdict{with_}:** {part.verdict(reference)}")
        if shows_differences(paired):
            rows = [[text for text, _ in row] for row in paired_rows(part, paired)]
            parts.append(markdown(paired_headings(paired), rows))
        notes |= dict.fromkeys(paired_notes(paired))
    return markdown_table(comparison, below="\n\n".join(parts), notes=list(notes))


def _title(plan: ComparisonPlan) -> str:
    """Return what is compared: the algorithm if there is one, the data or the task, the links."""
    labels = [label for label in plan.entries if not is_ceiling(label)] or list(plan.entries)
    configs = [plan.checked(label) for label in labels]
    algorithms = {config.algorithm["name"] for config in configs}
    subjects = {
        config.data.name if config.task.name == "classification" else config.task.name
        for config in configs
    }
    links = {config.links["name"] for config in configs}
    parts = [
        subjects.pop() if len(subjects) == 1 else "several data sets",
        links.pop() if len(links) == 1 else "several links",
    ]
    return " · ".join([*algorithms, *parts] if len(algorithms) == 1 < len(labels) else parts)
