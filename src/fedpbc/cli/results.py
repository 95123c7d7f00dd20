"""The results of a run or a comparison, as tables in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.comparison_directory import ComparisonDirectory
from fedpbc.report.comparison_table import cells_of, footnotes, headings
from fedpbc.simulation.views import DEPLOYABLE

__all__ = ["show_comparison", "show_summary"]

STANDARD_VALUES = ("test_accuracy", "train_accuracy", "test_loss", "train_loss", "per_class")
MIN_TABLE_WIDTH = 112


def show_summary(summary: dict[str, Any], path: Path) -> None:
    """Print a finished run's views and cost, its files, and next steps."""
    cost, views = summary["cost"], summary["views"]
    table = Table(title=f"{summary['algorithm']} · {summary['data']} · {summary['links']}")
    has_classes = any(view["test_accuracy"] is not None for view in views.values())
    columns = ["view", "test %", "train %", "test loss"] if has_classes else ["view", "test loss"]
    extra = sorted({key for view in views.values() for key in view} - set(STANDARD_VALUES))
    for column in [*columns, *extra, "models on server"]:
        table.add_column(column, justify="left" if column == "view" else "right", no_wrap=True)
    for name, view in views.items():
        accuracies = ("test_accuracy", "train_accuracy") if has_classes else ()
        models = cost["models_on_server"][name]
        table.add_row(
            name,
            *(f"{100 * view[key]:.1f}" for key in accuracies),
            *(f"{view[key]:.4g}" for key in ("test_loss", *extra)),
            "–" if models is None else str(models),
        )
    Console().print(table)
    print(
        f"after {summary['rounds']} rounds: {cost['local_steps']:,} local steps, "
        f"{cost['uploads']:,} uploads, {summary['seconds']:.1f} s, engine {summary['engine']}"
    )
    print(f"written: {path}/ (config.toml, metrics.jsonl, final.safetensors, summary.json)")
    print(f"next: 'fedpbc report {path}' makes an HTML page with charts")
    print("next: 'fedpbc compare' runs other algorithms on the same links")


def show_comparison(comparison: Comparison, directory: ComparisonDirectory) -> None:
    """Print a comparison's table, its files, and next steps."""
    rows = comparison.rows()
    # In a narrower terminal the lines wrap; the numbers must not be cut off.
    console = Console(width=max(Console().width, MIN_TABLE_WIDTH))
    table = Table(
        title="every view of every algorithm: it matters which model is evaluated",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for column in headings(rows):
        left = column in {"algorithm", "view"}
        # One word per line: the numbers decide the width of a column.
        heading = column if left else column.replace(" ", "\n")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    previous = None
    for row in rows:
        if previous not in (None, row.algorithm):
            table.add_section()
        previous = row.algorithm
        table.add_row(*cells_of(row), style=None if row.view in DEPLOYABLE else "dim")
    console.print(table)
    for note in footnotes(comparison):
        print(note)
    print(f"written: {directory.report_path}: the whole report; open it in a browser")
    print(f"         {directory.table_path}, {directory.plot_path}, {directory.json_path}")
    print(f"         and one run's folder each in {directory.path}/ALGORITHM/seed-K/")
    print("next: look at the report; 'fedpbc list' shows what else can be compared")
