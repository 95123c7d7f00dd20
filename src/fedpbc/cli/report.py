"""fedpbc report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpbc.cli.options import default

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
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep it current until all runs have ended.")
    ] = False,
) -> None:
    """Make one HTML page about any runs, finished or not; it opens from disk."""
    from fedpbc.report.watch import watch as watch_runs
    from fedpbc.report.watch import write_report

    path = out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    heading = title or ", ".join(folder.resolve().name for folder in folders)
    if not watch:
        runs = write_report(folders, path, heading)
        print(f"written: {path} ({describe_progress(runs)})")
        return

    def on_change(runs: Sequence[LoadedRun]) -> None:
        print(f"{path}: {describe_progress(runs)}", flush=True)

    ended = watch_runs(folders, path, heading, on_change=on_change)
    print(f"written: {path} ({'all runs have ended' if ended else 'no longer watching'})")


def describe_progress(runs: Sequence[LoadedRun]) -> str:
    """How many runs are in each state, and the last round."""
    states = [run.state for run in runs]
    counted = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return f"{', '.join(counted)}; round {max((run.done for run in runs), default=0):,}"
