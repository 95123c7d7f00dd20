"""A comparison's results in its folder: for machines, for people, and as a picture."""

from __future__ import annotations

import json

from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.comparison_directory import ComparisonDirectory, ComparisonPlan
from fedpbc.report.page import write_page
from fedpbc.report.plot import plot_comparison
from fedpbc.report.table import markdown_table
from fedpbc.storage.atomic import write_atomically

__all__ = ["write_comparison"]


def write_comparison(
    comparison: Comparison, folder: ComparisonDirectory, plan: ComparisonPlan
) -> None:
    """Write comparison.json, table.md, accuracy.png and report.html."""
    write_atomically(folder.json_path, json.dumps(comparison.as_dict(), indent=2) + "\n")
    write_atomically(folder.table_path, markdown_table(comparison))
    config = plan.first()
    what = config.task.name if config.task.name == "quadratic" else config.data.name
    plot_comparison(comparison, folder.plot_path, f"{what} · {config.links['name']}")
    write_page(
        folder.report_path,
        [cell.path for *_, cell in folder.cells(plan)],
        title=f"Comparison: {what} · {config.links['name']}",
    )
