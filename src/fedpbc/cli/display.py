"""What a person sees: progress while it runs, and how it ended. Quiet when not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rich import box
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.comparison_directory import ComparisonDirectory
from fedpbc.experiments.run import Watcher
from fedpbc.experiments.sweep import GridProgress
from fedpbc.report.table import cells_of, footnotes, headings
from fedpbc.simulation.metrics import Metrics
from fedpbc.simulation.views import DEPLOYABLE, paper_view

__all__ = ["GridDisplay", "GridRow", "RunDisplay", "show_comparison", "show_summary"]


class ProgressOver(Progress):
    """Progress with a line of text under it: in a narrow terminal the time left stays readable."""

    line = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        """What is drawn."""
        yield from super().get_renderables()
        if self.line:
            yield Text(self.line, style="dim", no_wrap=True, overflow="ellipsis")


class Display:
    """A progress display on standard error, only where that is a terminal."""

    def __init__(self, counted: ProgressColumn, *, quiet: bool, speed_over_s: float = 30.0) -> None:
        self.console = Console(stderr=True)
        self.live = self.console.is_terminal and not quiet
        self.quiet = quiet
        self.progress = ProgressOver(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            counted,
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.live,
            speed_estimate_period=speed_over_s,
        )

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def say(self, line: str) -> None:
        """A line for people."""
        if self.live:
            self.progress.console.print(line, highlight=False, markup=False)

    def note(self, line: str) -> None:
        """A line that must not be lost, terminal or not."""
        if self.live:
            self.say(f"note: {line}")
        else:
            print(f"fedpbc: note: {line}", file=sys.stderr)


class RunDisplay(Display):
    """How one run goes: round, accuracy, time left."""

    def __init__(self, path: Path, *, quiet: bool) -> None:
        super().__init__(MofNCompleteColumn(), quiet=quiet)
        self.path = path
        self.task = self.progress.add_task("round", total=None, note="")
        self.watcher = Watcher(self.on_start, self.on_round, self.note)

    def on_start(self, done: int, total: int, engine: str) -> None:
        """A run begins or goes on."""
        self.say(f"engine {engine}")
        self.say(f"running in {self.path}" + (f", from round {done}" if done else ""))
        # The time left must not be reckoned from rounds that an earlier process made.
        self.progress.reset(self.task, total=total, completed=done, note="")

    def on_round(self, done: int, metrics: Metrics | None) -> None:
        """A round is done."""
        self.progress.update(self.task, completed=done)
        if metrics is not None:
            view = paper_view(tuple(metrics.views))
            self.progress.update(self.task, note=short(view, metrics))


def short(view: str, metrics: Metrics) -> str:
    """How good a view is, in few words."""
    found = metrics.views[view]
    if found.test_accuracy is not None:
        return f"{view} {100 * found.test_accuracy:.1f} %"
    return f"{view} loss {found.test_loss:.4g}"


@dataclass(frozen=True)
class GridRow:
    """One run of a grid as it is shown: how long a round takes beside others, and rounds done."""

    label: str
    rounds: int
    weight: int = 1
    done: int = 0


class GridDisplay(Display):
    """How a grid of runs goes, and when all of it will be done."""

    def __init__(self, rows: Sequence[GridRow], path: Path, *, quiet: bool) -> None:
        # Rounds are weighted here, so their number would tell nobody anything. Runs differ: only
        # over many minutes does their speed say when the last will be done.
        super().__init__(TaskProgressColumn(), quiet=quiet, speed_over_s=1800.0)
        self.rows = rows
        self.done = [row.done for row in rows]
        self.failed = 0
        total = sum(row.weight * row.rounds for row in rows)
        # What an earlier process made is no part of the speed.
        self.overall = self.progress.add_task(
            f"{len(rows)} runs", total=total, completed=self._completed(), note=""
        )
        self.say(f"running in {path}")

    def _completed(self) -> int:
        return sum(row.weight * done for row, done in zip(self.rows, self.done, strict=True))

    def on_progress(self, progress: GridProgress) -> None:
        """Some run has come further, or has failed, or a person should see something about it."""
        if progress.failure is not None:
            self.failed += 1
            self.say(f"failed: {self.rows[progress.cell].label}: {progress.failure}")
        if progress.note:
            self.note(f"{self.rows[progress.cell].label}: {progress.note}")
        # Of one that has failed nothing is left to do.
        rounds = self.rows[progress.cell].rounds
        self.done[progress.cell] = progress.done if progress.failure is None else rounds
        accuracy = "" if progress.accuracy is None else f" {100 * progress.accuracy:.1f} %"
        ended = sum(d >= row.rounds for row, d in zip(self.rows, self.done, strict=True))
        label = self.rows[progress.cell].label
        self.progress.line = f"{label} round {progress.done}{accuracy}"
        note = f"{ended - self.failed} finished" + (
            f", {self.failed} failed" if self.failed else ""
        )
        self.progress.update(self.overall, completed=self._completed(), note=note)


def show_summary(summary: dict[str, Any], path: Path) -> None:
    """A finished run: its views, what was written where, and what to do next."""
    console = Console()
    table = Table(title=f"{summary['algorithm']} · {summary['data']} · {summary['links']}")
    has_classes = any(view["test_accuracy"] is not None for view in summary["views"].values())
    columns = ["view", "test %", "train %", "test loss"] if has_classes else ["view", "test loss"]
    extra = sorted({k for v in summary["views"].values() for k in v} - set(KNOWN))
    for column in [*columns, *extra, "models on server"]:
        table.add_column(column, justify="left" if column == "view" else "right", no_wrap=True)
    for view, found in summary["views"].items():
        accuracies = [f"{100 * found[key]:.1f}" for key in KNOWN[:2] if has_classes]
        models = summary["cost"]["models_on_server"][view]
        table.add_row(
            view,
            *accuracies,
            f"{found['test_loss']:.4g}",
            *(f"{found[key]:.4g}" for key in extra),
            "–" if models is None else str(models),
        )
    console.print(table)
    cost = summary["cost"]
    print(
        f"after {summary['rounds']} rounds: {cost['local_steps']:,} local steps, "
        f"{cost['uploads']:,} uploads, {summary['seconds']:.1f} s, engine {summary['engine']}"
    )
    print(f"written: {path}/ (config.toml, metrics.jsonl, final.safetensors, summary.json)")
    print(f"next: 'fedpbc report {path}' makes a page of it with charts")
    print("next: 'fedpbc compare' shows how other algorithms do on the same links")


TABLE_WIDTH = 112
KNOWN = ("test_accuracy", "train_accuracy", "test_loss", "train_loss", "per_class")


def show_comparison(comparison: Comparison, folder: ComparisonDirectory) -> None:
    """The table, what was written where, and what to do next."""
    rows = comparison.rows()
    # Narrower than this the numbers would be cut off; a terminal that is narrower wraps the lines.
    console = Console(width=max(Console().width, TABLE_WIDTH))
    table = Table(
        title="every view of every algorithm: which model is judged matters",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for column in headings(rows):
        left = column in {"algorithm", "view"}
        # Heads of several words go one above the other: the numbers decide how wide a column is.
        head = column if left else column.replace(" ", "\n")
        table.add_column(head, justify="left" if left else "right", no_wrap=True)
    last = None
    for row in rows:
        if last not in (None, row.algorithm):
            table.add_section()
        last = row.algorithm
        style = None if row.view in DEPLOYABLE else "dim"
        table.add_row(*cells_of(row), style=style)
    console.print(table)
    for note in footnotes(comparison):
        print(note)
    print(f"written: {folder.report_path}: the whole report; open it in a browser")
    print(f"         {folder.table_path}, {folder.plot_path}, {folder.path}/comparison.json")
    print(f"         and a run's folder each in {folder.path}/ALGORITHM/seed-K/")
    print("next: look at the report; 'fedpbc list' shows what else can be compared")
