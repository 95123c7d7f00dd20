"""fedpbc report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpbc.cli.options import Baseline, default
from fedpbc.cli.terminal import say, say_written
from fedpbc.cli.workspace import remember_work
from fedpbc.errors import InputError
from fedpbc.text import printable, shell_quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedpbc.report.load import LoadedRun

__all__ = ["report"]


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER…",
            help="Folders with runs, or one fleet folder.",
        ),
    ],
    out: Annotated[Path | None, default("The page", "FOLDER/report.html")] = None,
    title: Annotated[str | None, default("Title of the page", "the folder's name")] = None,
    baseline: Baseline = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep it current until all runs have ended.")
    ] = False,
) -> None:
    """Write one self-contained HTML page about runs or a fleet, finished or not."""
    server = fleet_server(folders)
    if server is not None:
        if baseline is not None:
            raise InputError("--baseline", baseline, "left out: a fleet's page compares nothing")
        report_fleet(server, out or folders[0] / "report.html", title, watch=watch)
        return
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


def fleet_server(folders: Sequence[Path]) -> Path | None:
    """The server's folder of the fleet that was given; None for folders of runs."""
    from fedpbc.report.load import has_runs

    for folder in folders:
        server = next((f for f in (folder, folder / "server") if is_server(folder, f)), None)
        # Beside a fleet there may be runs, and then they are meant.
        if server is None or (server != folder and has_runs(folder)):
            continue
        if len(folders) > 1:
            expected = "alone: a fleet has a page of its own"
            raise InputError("folder", str(folder), expected)
        return server
    return None


def is_server(folder: Path, server: Path) -> bool:
    """Whether a folder is that of a fleet's server, not behind a link out of the given one."""
    from fedpbc.storage.files import is_inside_behind_links

    name = "fleet.toml" if server == folder else f"{server.name}/fleet.toml"
    return (server / "fleet.toml").is_file() and is_inside_behind_links(folder, name)


def report_fleet(server: Path, path: Path, title: str | None, *, watch: bool) -> None:
    """Write the page about a fleet, once or until its job is over."""
    from fedpbc.deployment.ops.status_page import StatusPage
    from fedpbc.deployment.ops.status_text import summary

    real = Path(os.path.realpath(server))
    name = real.parent.name if real.name == "server" else real.name
    page = StatusPage(server, path, printable(title or f"Fleet {name}"))
    if not watch:
        say_written([path], f" ({summary(page.write())})")
        return
    if not page.watch(lambda status: say(f"{shell_quoted(path)}: {summary(status)}", flush=True)):
        remember_work(path, f"{shell_quoted(path)} shows the fleet as it is now")
        raise KeyboardInterrupt
    say_written([path], " (the job is over)")


def describe_progress(runs: Sequence[LoadedRun]) -> str:
    """How many runs are in each state, and the last round."""
    states = [run.state for run in runs]
    counted = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return f"{', '.join(counted)}; round {max((run.done for run in runs), default=0):,}"
