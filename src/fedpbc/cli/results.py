"""The results of a run or a comparison, as tables in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedpbc.cli.terminal import command, say, say_written, show
from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.comparison_directory import ComparisonDirectory
from fedpbc.report.comparison_table import cells_of, footnotes, headings
from fedpbc.report.text_table import TextTable
from fedpbc.simulation.views import DEPLOYABLE
from fedpbc.text import shell_quoted

__all__ = ["show_comparison", "show_summary"]

STANDARD_VALUES = ("test_accuracy", "train_accuracy", "test_loss", "train_loss", "per_class")
MIN_TABLE_WIDTH = 112


def show_summary(summary: dict[str, Any], path: Path) -> None:
    """Print a finished run's views and cost, its files, and next steps."""
    cost, views = summary["cost"], summary["views"]
    title = f"{summary['algorithm']} · {summary['data']} · {summary['links']}"
    table = TextTable(title, framed=True)
    has_classes = any(view.get("test_accuracy") is not None for view in views.values())
    columns = ["view", "test %", "train %", "test loss"] if has_classes else ["view", "test loss"]
    numbers = {k for view in views.values() for k, v in view.items() if not isinstance(v, list)}
    extra = sorted(numbers - set(STANDARD_VALUES))
    for column in [*columns, *extra, "models on server"]:
        table.column(column, right=column != "view")
    for name, view in views.items():
        accuracies = ("test_accuracy", "train_accuracy") if has_classes else ()
        table.row(
            name,
            *(_number(view.get(key), ".1f", 100) for key in accuracies),
            *(_number(view.get(key), ".4g") for key in ("test_loss", *extra)),
            _number(cost["models_on_server"].get(name), ""),
        )
    show(table)
    say(
        f"after {summary['rounds']} rounds: {cost['local_steps']:,} local steps, "
        f"{cost['uploads']:,} uploads, {summary['seconds']:.1f} s, engine {summary['engine']}"
    )
    files = "config.toml, metrics.jsonl, final.safetensors, summary.json"
    say_written([path], f"/ ({files})")
    say(f"next: {command('fedpbc', 'report', path)} makes an HTML page with charts")
    say("next: 'fedpbc compare' runs other algorithms on the same links")


def _number(value: float | None, form: str, scale: int = 1) -> str:
    return "–" if value is None else format(scale * value, form)


def show_comparison(comparison: Comparison, directory: ComparisonDirectory) -> None:
    """Print a comparison's table, its files, and next steps."""
    rows = comparison.rows()
    table = TextTable("every view of every algorithm: it matters which model is evaluated")
    for column in headings(rows):
        left = column in {"algorithm", "view"}
        # One word per line: the numbers decide the width of a column.
        heading = column if left else column.replace(" ", "\n")
        table.column(heading, right=not left)
    previous = None
    for row in rows:
        if previous not in (None, row.algorithm):
            table.section()
        previous = row.algorithm
        table.row(*cells_of(row), style="" if row.view in DEPLOYABLE else "dim")
    # In a narrower terminal the lines wrap; the numbers must not be cut off.
    show(table, min_width=MIN_TABLE_WIDTH)
    for note in footnotes(comparison):
        say(note)
    others = [directory.table_path, directory.plot_path, directory.json_path]
    say(f"written: {shell_quoted(directory.report_path)}: the whole report; open it in a browser")
    say(f"         {', '.join(map(shell_quoted, others))}")
    say(f"         and one run's folder each in {shell_quoted(directory.path)}/ALGORITHM/seed-K/")
    say("next: look at the report; 'fedpbc list' shows what else can be compared")
