"""The results of a run or a comparison, as tables in the terminal."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpbc.cli.terminal import command, say, say_written, show, terminal_width
from fedpbc.experiments.comparison import Comparison, ComparisonRow
from fedpbc.experiments.comparison_directory import ComparisonDirectory
from fedpbc.experiments.paired import Paired
from fedpbc.report.byte_units import with_unit
from fedpbc.report.comparison_table import TRAIN_NOTE, cells_of, footnotes, headings, sent_unit
from fedpbc.report.paired_table import (
    DETAILS,
    MEAN_NOTE,
    paired_headings,
    paired_notes,
    paired_rows,
    shows_differences,
)
from fedpbc.report.text_table import TextTable
from fedpbc.simulation.views import DEPLOYABLE
from fedpbc.text import shell_quoted

__all__ = ["show_comparison", "show_summary"]

STANDARD_VALUES = ("test_accuracy", "train_accuracy", "test_loss", "train_loss", "per_class")
LEFT_OUT = ("train %", "worst class %")
"""Columns that a narrow terminal does not show; table.md has them."""


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
        f"after {summary['rounds']} rounds: {', '.join(_costs(cost))}, {summary['seconds']:.1f} s, "
        f"engine {summary['engine']}"
    )
    files = "config.toml, metrics.jsonl, final.safetensors, summary.json"
    say_written([path], f"/ ({files})")
    say(f"next: {command('fedpbc', 'report', path)} makes an HTML page with charts")
    say("next: 'fedpbc compare' runs other algorithms on the same links")


def _costs(cost: Mapping[str, Any]) -> list[str]:
    """What was computed, sent and kept; runs of earlier versions did not count bytes."""
    parts = [f"{cost['local_steps']:,} local steps", f"{cost['uploads']:,} uploads"]
    for key, way in (("bytes_up", "up"), ("bytes_down", "down")):
        if (count := cost.get(key)) is not None:
            parts.append(f"{with_unit(count)} {way}")
    if (models := cost.get("models_on_client")) is not None:
        parts.append(f"{models} model{'' if models == 1 else 's'} on a client")
    return parts


def _number(value: float | None, form: str, scale: int = 1) -> str:
    return "–" if value is None else format(scale * value, form)


def comparison_table(rows: Sequence[ComparisonRow], without: Container[str] = ()) -> TextTable:
    """Return the table of a comparison, or a part of its columns."""
    head, unit = headings(rows), sent_unit(rows)
    kept = [k for k, column in enumerate(head) if column not in without]
    table = TextTable("every view of every algorithm: it matters which model is evaluated")
    for column in (head[k] for k in kept):
        left = column in {"algorithm", "view"}
        # One word per line: the numbers decide the width of a column.
        heading = column if left else column.replace(" ", "\n")
        table.column(heading, right=not left)
    previous = None
    for row in rows:
        if previous not in (None, row.label):
            table.section()
        previous, cells = row.label, cells_of(row, unit)
        style = "" if row.view in DEPLOYABLE else "dim"
        table.row(*(cells[k] for k in kept), style=style)
    return table


def paired_table(comparison: Comparison, paired: Paired, without: Container[str] = ()) -> TextTable:
    """Return the table of paired differences, or a part of its columns."""
    head = paired_headings(paired)
    kept = [k for k, column in enumerate(head) if column not in without]
    table = TextTable("best deployable views, compared with the same seeds")
    for column in (head[k] for k in kept):
        left = column in {"algorithm", "view"}
        whole = left or column.startswith("vs ")
        table.column(column if whole else column.replace(" ", "\n"), right=not left)
    for row in paired_rows(comparison, paired):
        table.row(*(row[k][0] for k in kept))
    return table


def show_paired(comparison: Comparison, baseline: str | None) -> list[str]:
    """Print the verdict and the paired differences of each condition; returns the notes."""
    notes: list[str] = []
    for condition, part in comparison.by_condition().items():
        reference = part.baseline_label(baseline)
        paired, width = part.paired(reference), terminal_width()
        say(f"verdict{f' with {condition}' if condition else ''}: {part.verdict(reference)}")
        of_part = paired_notes(paired)
        if shows_differences(paired):
            table = paired_table(part, paired)
            if width is not None and width < table.width:
                table = paired_table(part, paired, without=DETAILS)
                of_part = [note for note in of_part if note != MEAN_NOTE]
            show(table, min_width=table.width)
        notes += [note for note in of_part if note not in notes]
    return notes


def show_comparison(
    comparison: Comparison, directory: ComparisonDirectory, baseline: str | None = None
) -> None:
    """Print a comparison's table, the verdict, its files, and next steps."""
    rows = comparison.rows()
    table, width = comparison_table(rows), terminal_width()
    left_out = width is not None and width < table.width and LEFT_OUT[0] in headings(rows)
    if left_out:
        table = comparison_table(rows, without=LEFT_OUT)
    # In a still narrower terminal the lines wrap; the numbers must not be cut off.
    show(table, min_width=table.width)
    notes = show_paired(comparison, baseline)
    for note in [*footnotes(comparison), *notes]:
        if not (left_out and note == TRAIN_NOTE):
            say(note)
    if left_out:
        say(f"not shown, as the terminal is narrow: {', '.join(LEFT_OUT)}; table.md has them.")
    others = [directory.table_path, directory.plot_path, directory.json_path]
    say(f"written: {shell_quoted(directory.report_path)}: the whole report; open it in a browser")
    say(f"         {', '.join(map(shell_quoted, others))}")
    say(f"         and one run's folder each in {shell_quoted(directory.path)}/LABEL/seed-K/")
    more = command("fedpbc", "compare", "--out", directory.path, "--seeds", "0-9")
    say(f"next: {more} adds seeds, --algorithms others ('fedpbc list' shows them)")
