"""The results of a run or a comparison, as tables in the terminal."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpbc.cli.terminal import (
    command,
    say,
    say_omitted,
    say_sentence,
    say_written,
    show,
    show_fitted,
    terminal_width,
)
from fedpbc.experiments.comparison import Comparison, ComparisonRow
from fedpbc.experiments.comparison_directory import ComparisonDirectory
from fedpbc.experiments.conditions import is_ceiling
from fedpbc.experiments.paired import Paired
from fedpbc.experiments.run_result import RunResult
from fedpbc.report.byte_units import with_unit
from fedpbc.report.comparison_table import (
    TRAIN_NOTE,
    cells_of,
    footnotes,
    headings,
    marked_view,
    metric_names,
    sent_unit,
    test_notes,
)
from fedpbc.report.paired_table import (
    DETAILS,
    MEAN_NOTE,
    RATIOS,
    paired_headings,
    paired_notes,
    paired_rows,
    shows_differences,
)
from fedpbc.report.text_table import TextTable
from fedpbc.simulation.views import DEPLOYABLE
from fedpbc.text import shell_quoted

__all__ = ["paired_table", "show_comparison", "show_summary"]

STANDARD_VALUES = ("test_accuracy", "train_accuracy", "test_loss", "train_loss", "per_class")
COMPARED = ("fedavg", "fedau", "fedpbc")
"""What a first comparison is of: the baseline, a cheap remedy, and the paper's."""
LEFT_OUT = ("train %", "worst class %")
"""Columns that a narrow terminal does not show; table.md has them."""
ESSENTIAL = ("algorithm", "view", "test %", "test loss", "local steps")
"""Columns that every terminal shows, with the bytes up."""
LONG_NAME = 10
"""Characters of a metric's name from which on it is broken at its underscores."""
WIDE = 100
"""In a terminal narrower than this, a table that does not fit has only the essential columns."""


def show_summary(summary: dict[str, Any], path: Path, deploy_view: str | None = None) -> None:
    """Print a finished run's views and cost, its files, and next steps.

    A view to deploy that was chosen beforehand is marked.
    """
    cost, views = summary["cost"], summary["views"]
    title = f"{summary['algorithm']} · {summary['data']} · {summary['links']}"
    table = TextTable(title, framed=True)
    has_classes = any(view.get("test_accuracy") is not None for view in views.values())
    columns = ["view", "test %", "train %", "test loss"] if has_classes else ["view", "test loss"]
    numbers = {k for view in views.values() for k, v in view.items() if not isinstance(v, list)}
    extra = sorted(numbers - set(STANDARD_VALUES))
    # Custom metrics stay longest, then what says how good a view is.
    ranks = {"train %": 3, "models on server": 2, **dict.fromkeys(extra, 1)}
    if extra and has_classes:
        ranks["test loss"] = 4
    for column in [*columns, *extra, "models on server"]:
        # Numbers are short: a long name has several lines.
        heading = column.replace("_", "_\n") if len(column) > LONG_NAME else column
        heading = heading.replace(" on ", "\non ")
        table.column(heading, right=column != "view", rank=ranks.get(column, 0))
    for name, view in views.items():
        accuracies = ("test_accuracy", "train_accuracy") if has_classes else ()
        table.row(
            marked_view(name, name == deploy_view),
            *(_number(view.get(key), ".1f", 100) for key in accuracies),
            *(_number(view.get(key), "#.4g") for key in ("test_loss", *extra)),
            _number(cost["models_on_server"].get(name), ""),
        )
    left_out = show_fitted(table)
    say_omitted(left_out, "summary.json")
    if deploy_view is not None:
        say("* the view to deploy, chosen beforehand (deploy_view)")
    run = RunResult(summary["algorithm"], 0, metrics=[{}]).with_summary(summary)
    for note in test_notes(Comparison([run])):
        say(note)
    say(
        f"after {summary['rounds']} rounds: {', '.join(_costs(cost))}, {summary['seconds']:.1f} s, "
        f"engine {summary['engine']}"
    )
    if "cluster" in summary:
        say(_cluster(summary["cluster"]))
    files = "config.toml, metrics.jsonl, final.safetensors, summary.json"
    say_written([path], f"/ ({files})")
    say(f"next: {command('fedpbc', 'report', path)} makes an HTML page with charts")
    others = ",".join(name for name in COMPARED if name != summary["algorithm"])
    same = command("fedpbc", "compare", path / "config.toml", "--algorithms", others)
    say(f"next: {same} runs others with the same data, links and seed")


def _costs(cost: Mapping[str, Any]) -> list[str]:
    """What was computed, sent and kept; runs of earlier versions did not count bytes."""
    parts = [f"{cost['local_steps']:,} local steps", f"{cost['uploads']:,} uploads"]
    for key, way in (("bytes_up", "up"), ("bytes_down", "down")):
        if (count := cost.get(key)) is not None:
            parts.append(f"{with_unit(count)} {way}")
    if (models := cost.get("models_on_client")) is not None:
        parts.append(f"{models} model{'' if models == 1 else 's'} on a client")
    return parts


def _cluster(moved: Mapping[str, Any]) -> str:
    """What a cluster's nodes were sent, and which came and went."""
    parts = [
        f"cluster of {moved['nodes']} nodes: data {with_unit(moved['bytes_data'])} in all",
        "once per node",
        f"models {with_unit(moved['bytes_per_round'])} per round "
        f"({with_unit(moved['bytes_out'])} out and {with_unit(moved['bytes_back'])} back in all)",
    ]
    for key, what in (("nodes_joined", "joined"), ("nodes_lost", "lost")):
        if count := moved[key]:
            parts.append(f"{count} node{'' if count == 1 else 's'} {what}")
    if count := moved["segments_repeated"]:
        parts.append(f"{count} segment{'' if count == 1 else 's'} run again")
    return ", ".join(parts)


def _number(value: float | None, form: str, scale: int = 1) -> str:
    # "#" keeps the digits of 0.5000, but also the point of "1234.".
    return "–" if value is None else format(scale * value, form).rstrip(".")


def comparison_table(
    rows: Sequence[ComparisonRow], without: Container[str] = (), *, starred: bool = False
) -> TextTable:
    """Return the table of a comparison, or a part of its columns; the best row is bold.

    With ``starred`` it has only the best deployable view of each algorithm.
    """
    head, unit, names = headings(rows), sent_unit(rows), metric_names(rows)
    kept = [k for k, column in enumerate(head) if column not in without]
    title = "every view of every algorithm: it matters which model is evaluated"
    table = TextTable("the best deployable view of each algorithm" if starred else title)
    for column in (head[k] for k in kept):
        left = column in {"algorithm", "view"}
        # One word per line: the numbers decide the width of a column.
        heading = column if left else column.replace(" ", "\n")
        table.column(heading, right=not left, folds=column == "algorithm")
    candidates = [row for row in rows if row.best_deployable and not is_ceiling(row.label)]
    best = max(candidates, key=lambda row: row.score, default=None)
    previous = None
    for row in rows:
        if starred and not row.best_deployable:
            continue
        if previous not in (None, row.label) and not starred:
            table.section()
        previous, cells = row.label, cells_of(row, unit, metrics=names)
        style = "" if row.view in DEPLOYABLE else "dim"
        table.row(*(cells[k] for k in kept), style="bold" if row is best else style)
    return table


def fitting_table(
    rows: Sequence[ComparisonRow], width: int | None
) -> tuple[TextTable, Sequence[str]]:
    """Return the largest table that fits the terminal, and what it does not show."""
    table = comparison_table(rows)
    if width is None or table.width <= width:
        return table, ()
    head = headings(rows)
    columns = [column for column in head if column in LEFT_OUT]
    if columns and width >= WIDE:
        table = comparison_table(rows, without=columns)
        if table.width <= width:
            return table, columns
    essential = {*ESSENTIAL, *(column for column in head if column.endswith(" up"))}
    columns = [column for column in head if column not in essential]
    metrics = [name for name in metric_names(rows) if name in columns]
    table = comparison_table(rows, without=set(columns) - set(metrics), starred=True)
    if metrics and table.width <= width:
        return table, ["the other views", *(c for c in columns if c not in metrics)]
    table = comparison_table(rows, without=columns, starred=True)
    return table, ["the other views", *columns]


def paired_table(
    comparison: Comparison,
    paired: Paired,
    without: Container[str] = (),
    *,
    bold: str | None = None,
    ranks: Mapping[str, int] | None = None,
) -> TextTable:
    """Return the table of paired differences, or a part of its columns.

    The row named ``bold`` is bold, by default the best; ``ranks`` are those of columns that may be
    left out.
    """
    head = paired_headings(paired)
    kept = [k for k, column in enumerate(head) if column not in without]
    table = TextTable("views to deploy, compared with the same seeds")
    for column in (head[k] for k in kept):
        left = column in {"algorithm", "view"}
        one_line = left or column.startswith("vs ")
        heading = column if one_line else column.replace(" ", "\n")
        rank = (ranks or {}).get(column, 0)
        table.column(heading, right=not left, folds=column == "algorithm", rank=rank)
    candidates = [row for row in paired.rows if not is_ceiling(row.name)]
    if bold is None and candidates:
        bold = max(candidates, key=lambda row: row.mean).name
    for row, cells in zip(paired.rows, paired_rows(comparison, paired), strict=True):
        table.row(*(cells[k][0] for k in kept), style="bold" if row.name == bold else "")
    return table


def show_differences(comparison: Comparison, paired: Paired) -> list[str]:
    """Print the paired differences; returns what a narrow terminal has no room for."""
    width = terminal_width()
    without: Sequence[str] = ()
    table = paired_table(comparison, paired)
    if width is not None and width < table.width:
        without = DETAILS
        table = paired_table(comparison, paired, without)
    if width is not None and width < table.least_width:
        without = (*DETAILS, *RATIOS)
        table = paired_table(comparison, paired, without)
    show(table, min_width=table.width if width is None else table.least_width)
    return [column for column in paired_headings(paired) if column in without]


def show_paired(comparison: Comparison, baseline: str | None) -> list[str]:
    """Print the verdict and the paired differences of each condition; returns the notes."""
    notes: list[str] = []
    for condition, part in comparison.by_condition().items():
        reference = part.baseline_label(baseline)
        paired = part.paired(reference)
        about = f"verdict with {condition}" if condition else "verdict"
        say_sentence(f"{about}: {part.verdict(reference)}")
        of_part = paired_notes(paired)
        if shows_differences(paired) and show_differences(part, paired):
            of_part = [note for note in of_part if note != MEAN_NOTE]
        notes += [note for note in of_part if note not in notes]
    return notes


def more_seeds(seeds: Iterable[int]) -> str:
    """Return a range of seeds of which some are new beside these: the first ten, or the next."""
    there = set(seeds)
    return "0-9" if set(range(10)) - there else f"{max(there) + 1}-{max(there) + 10}"


def show_comparison(
    comparison: Comparison, directory: ComparisonDirectory, baseline: str | None = None
) -> None:
    """Print a comparison's table, the verdict, its files, and next steps."""
    rows = comparison.rows()
    width = terminal_width()
    table, left_out = fitting_table(rows, width)
    # In a still narrower terminal the lines wrap; the numbers must not be cut off.
    show(table, min_width=table.width if width is None else table.least_width)
    notes = show_paired(comparison, baseline)
    for note in [*footnotes(comparison), *notes]:
        if not (left_out and note == TRAIN_NOTE):
            say_sentence(note)
    say_omitted(left_out, "table.md")
    others = [directory.table_path, directory.plot_path, directory.json_path]
    say(f"written: {shell_quoted(directory.report_path)}: the whole report; open it in a browser")
    say(f"         {', '.join(map(shell_quoted, others))}")
    say(f"         and one run's folder each in {shell_quoted(directory.path)}/LABEL/seed-K/")
    seeds = more_seeds(run.seed for run in comparison.runs)
    more = command("fedpbc", "compare", "--out", directory.path, "--seeds", seeds)
    say(f"next: {more} adds seeds, --algorithms others ('fedpbc list' shows them)")
    if len(comparison.labels) > 1 and not comparison.tuned:
        tune = command("fedpbc", "tune", directory.plan_path)
        say(f"next: {tune} chooses step sizes for each, which are the same for all here")
