"""Write a comparison's results to its directory."""

from __future__ import annotations

import json

from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.comparison_directory import ComparisonDirectory, ComparisonPlan
from fedpbc.experiments.entries import is_ceiling
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
    title = _title(plan)
    plot_comparison(comparison, directory.plot_path, title)
    runs = [run.path for *_, run in directory.cells(plan)]
    write_page(directory.report_path, runs, title=f"Comparison: {title}")


def _title(plan: ComparisonPlan) -> str:
    """Return what is compared: the algorithm if there is one, the data or the task, the links."""
    own = [label for label in plan.entries if not is_ceiling(label)] or list(plan.entries)
    configs = [plan.checked(label) for label in own]
    algorithms = {config.algorithm["name"] for config in configs}
    subjects = {
        config.task.name if config.task.name == "quadratic" else config.data.name
        for config in configs
    }
    links = {config.links["name"] for config in configs}
    parts = [
        subjects.pop() if len(subjects) == 1 else "several data sets",
        links.pop() if len(links) == 1 else "several links",
    ]
    return " · ".join([*algorithms, *parts] if len(algorithms) == 1 < len(own) else parts)
