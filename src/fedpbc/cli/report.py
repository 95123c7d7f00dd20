"""fedpbc report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpbc.cli.options import Baseline, default
from fedpbc.cli.terminal import say, say_written
from fedpbc.cli.workspace import remember_work
from fedpbc.text import printable, shell_quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedpbc.report.load import LoadedRun

__all__ = ["report"]


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER…", help="With runs in it: a run's, a comparison's, any."),
    ],
    out: Annotated[Path | None, default("The page", "FOLDER/report.html")] = None,
    title: Annotated[str | None, default("Of the page", "the folder's name")] = None,
    baseline: Baseline = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep it current until all runs have ended.")
    ] = False,
) -> None:
    """Make one HTML page about any runs, finished or not; it opens from disk."""
    from fedpbc.report.watch import watch as watch_runs
    from fedpbc.report.watch import write_report

    path = out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    # Not resolve(), which fails for a link to itself.
    names = [Path(os.path.realpath(folder)).name for folder in folders]
    heading = printable(title or ", ".join(names))
    if not watch:
        runs = write_report(folders, path, heading, baseline=baseline)
        say_written([path], f" ({describe_progress(runs)})")
        return

    def on_change(runs: Sequence[LoadedRun]) -> None:
        say(f"{shell_quoted(path)}: {describe_progress(runs)}", flush=True)

    ended = watch_runs(folders, path, heading, baseline=baseline, on_change=on_change)
    if not ended:
        remember_work(path, f"{shell_quoted(path)} shows the runs as they are now")
        raise KeyboardInterrupt
    say_written([path], " (all runs have ended)")


def describe_progress(runs: Sequence[LoadedRun]) -> str:
    """How many runs are in each state, and the last round."""
    states = [run.state for run in runs]
    counted = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return f"{', '.join(counted)}; round {max((run.done for run in runs), default=0):,}"
