"""Write a comparison's results to its directory."""

from __future__ import annotations

import json

from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.comparison_directory import ComparisonDirectory, ComparisonPlan
from fedpbc.report.comparison_table import markdown_table
from fedpbc.report.page import write_page
from fedpbc.report.plot import plot_comparison
from fedpbc.storage.atomic import write_atomically

__all__ = ["write_comparison"]


def write_comparison(
    comparison: Comparison, directory: ComparisonDirectory, plan: ComparisonPlan
) -> None:
    """Write comparison.json, table.md, accuracy.png and report.html."""
    write_atomically(directory.json_path, json.dumps(comparison.as_dict(), indent=2) + "\n")
    table = markdown_table(comparison)
    write_atomically(directory.table_path, table.encode(errors="backslashreplace"))
    config = plan.first()
    subject = config.data.name if config.task.name == "classification" else config.task.name
    title = f"{subject} · {config.links['name']}"
    plot_comparison(comparison, directory.plot_path, title)
    runs = [run.path for *_, run in directory.cells(plan)]
    write_page(directory.report_path, runs, title=f"Comparison: {title}")
