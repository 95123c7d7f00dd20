"""Progress displays on standard error: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from rich.console import RenderableType
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

from fedpbc.cli import terminal
from fedpbc.cli.workspace import stopping_shown
from fedpbc.experiments.execution import Watcher
from fedpbc.experiments.sweep import GridProgress
from fedpbc.paper.catalog import ProgressRow
from fedpbc.progress_lines import ProgressLines
from fedpbc.report.text_table import plain
from fedpbc.simulation.metrics import Metrics
from fedpbc.simulation.views import paper_view
from fedpbc.text import printable, shell_quoted

__all__ = ["GridDisplay", "RunDisplay"]

TICK_SECONDS = 1.0
"""How often it is checked whether a line is due, however long a round takes."""


class ProgressWithLine(Progress):
    """A progress bar above a line of text: the time left stays readable in a narrow terminal."""

    line = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bar and the line."""
        yield from super().get_renderables()
        if self.line:
            text = plain(self.line, "dim")
            text.no_wrap, text.overflow = True, "ellipsis"
            yield text


class Display:
    """A progress bar, and lines above it."""

    def __init__(self, count: ProgressColumn, *, quiet: bool, speed_over_s: float = 30.0) -> None:
        console = terminal.open_console(stderr=True)
        self.live = console.is_terminal and not quiet
        self.progress = ProgressWithLine(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            count,
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not self.live,
            speed_estimate_period=speed_over_s,
        )
        self._logged = not self.live and not quiet
        self._lines, self._reached = ProgressLines(), (0.0, "starting")
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._stack = ExitStack()
        self.stopping = False

    def __enter__(self) -> Self:
        self.progress.start()
        if self.live:
            self._stack.enter_context(stopping_shown(self._show_stopping))
        if self._logged:
            thread = threading.Thread(target=self._watch, name="progress", daemon=True)
            thread.start()
            self._stack.callback(thread.join)
            self._stack.callback(self._ended.set)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        self.progress.stop()

    def _show_stopping(self, line: str) -> None:
        # In a signal handler: the thread that refreshes the display prints it.
        self.stopping, self.progress.line = True, line

    def begin(self, share: float) -> None:
        """From here on the time that is left is estimated; ``share`` was done before."""
        with self._lock:
            self._lines.begin(share)
            self._reached = share, self._reached[1]

    def log(self, share: float, line: str) -> None:
        """Without a terminal: print how far it is, if enough has happened since the last time."""
        self._reached = share, line
        self.tick()

    def tick(self) -> None:
        """Print the last state again if nothing was printed for long: a round may take minutes."""
        if not self._logged:
            return
        with self._lock:
            line = self._lines.due(*self._reached)
            if line is not None:
                terminal.say_progress(line)

    def _watch(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            self.tick()

    def print(self, line: str) -> None:
        """Print a line, in a terminal only."""
        if self.live:
            self.progress.console.print(plain(line, limit=terminal.LINE_LIMIT))

    def note(self, line: str) -> None:
        """Print a line that must not be lost, in a terminal or not."""
        if self.live:
            self.print(f"note: {line}")
        else:
            terminal.note(line)


class RunDisplay(Display):
    """The progress of one run: rounds, accuracy, time left."""

    def __init__(self, path: Path, *, quiet: bool) -> None:
        super().__init__(MofNCompleteColumn(), quiet=quiet)
        self.path = path
        self.rounds, self.quality = 1, ""
        self.task = self.progress.add_task("round", total=None, note="")
        self.watcher = Watcher(self.on_start, self.on_round, self.note)

    def on_start(self, done: int, total: int, engine: str) -> None:
        """Show that a run starts or resumes."""
        self.print(f"engine {engine}")
        self.print(
            f"running in {shell_quoted(self.path)}" + (f", from round {done}" if done else "")
        )
        # The rounds of an earlier process must not count for the time left.
        self.progress.reset(self.task, total=total, completed=done, note="")
        self.rounds = total
        self._reached = done / total, f"round {done} of {total}"
        self.begin(done / total)

    def on_round(self, done: int, metrics: Metrics | None) -> None:
        """Show a round, and the accuracy or loss in the paper's view if it was evaluated."""
        self.progress.update(self.task, completed=done)
        if metrics is not None:
            view = paper_view(tuple(metrics.views))
            evaluation = metrics.views[view]
            quality = f"loss {evaluation.test_loss:.4g}"
            if evaluation.test_accuracy is not None:
                quality = f"{100 * evaluation.test_accuracy:.1f} %"
            self.quality = f"{printable(view, 40)} {quality}"
            self.progress.update(self.task, note=self.quality)
        text = f"round {done} of {self.rounds}" + (f", {self.quality}" if self.quality else "")
        self.log(done / self.rounds, text)


class GridDisplay(Display):
    """The progress of many runs together."""

    def __init__(self, rows: Sequence[ProgressRow], path: Path, *, quiet: bool) -> None:
        # In percent, since rounds are weighted. The speed is measured over many minutes, since
        # runs differ.
        super().__init__(TaskProgressColumn(), quiet=quiet, speed_over_s=1800.0)
        self.rows = rows
        self.done = [row.done for row in rows]
        self.failed = 0
        total = sum(row.weight * row.rounds for row in rows)
        # The rounds of an earlier process are no part of the speed.
        self.overall = self.progress.add_task(
            f"{len(rows)} runs", total=total, completed=self._completed(), note=""
        )
        self.total = max(total, 1)
        self.print(f"running in {shell_quoted(path)}")
        ended = sum(row.done >= row.rounds for row in rows)
        share = self._completed() / self.total
        self._reached = share, f"{ended} of {len(rows)} runs finished"
        self.begin(share)

    def _completed(self) -> int:
        return sum(row.weight * done for row, done in zip(self.rows, self.done, strict=True))

    def on_progress(self, progress: GridProgress) -> None:
        """Show the progress or failure of one run, or a note about it."""
        row = self.rows[progress.cell]
        if progress.failure is not None:
            self.failed += 1
            self.print(f"failed: {row.label}: {progress.failure}")
        if progress.note:
            self.note(f"{row.label}: {progress.note}")
        # A failed run has nothing left to do.
        self.done[progress.cell] = progress.done if progress.failure is None else row.rounds
        accuracy = "" if progress.accuracy is None else f" {100 * progress.accuracy:.1f} %"
        if not self.stopping:
            self.progress.line = f"{row.label} round {progress.done}{accuracy}"
        ended = sum(done >= row.rounds for row, done in zip(self.rows, self.done, strict=True))
        failed = f", {self.failed} failed" if self.failed else ""
        note = f"{ended - self.failed} finished{failed}"
        self.progress.update(self.overall, completed=self._completed(), note=note)
        self.log(
            self._completed() / self.total,
            f"{ended - self.failed} of {len(self.rows)} runs finished{failed}",
        )
