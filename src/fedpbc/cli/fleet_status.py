"""fedpbc fleet status."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedpbc.deployment.ops.status import FleetStatus

__all__ = ["ServersFolder", "status", "which_algorithm"]

ServersFolder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The server's folder, with fleet.toml.")
]


def status(
    folder: ServersFolder,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep it current until the job ends or Ctrl-C.")
    ] = False,
) -> None:
    """Show how a fleet does: who answers, who is silent since when, who was refused."""
    from rich.console import Console

    from fedpbc.deployment.ops.display import fleet_table
    from fedpbc.deployment.ops.display import watch as keep_current
    from fedpbc.deployment.ops.status import FleetLog

    log = FleetLog(folder)
    if watch:
        with suppress(KeyboardInterrupt):
            keep_current(folder)
        found = log.status()
    else:
        found = log.status()
        console = Console()
        console.print(fleet_table(found, width=console.width))
    for line in next_steps(found, folder, watch=watch):
        print(line)


def which_algorithm(folder: Path) -> str:
    """What the link log is for."""
    replay = f"fedpbc compare --trace {folder / 'links.csv'}"
    return f"next: '{replay}' tells which algorithm would have served this fleet best"


def next_steps(status: FleetStatus, folder: Path, *, watch: bool) -> list[str]:
    """What to run next."""
    if status.is_over:
        return [
            f"next: 'fedpbc fleet check {folder}' compares its models with the simulator's",
            which_algorithm(folder),
        ]
    if watch:
        return [f"next: 'fedpbc fleet status {folder}' shows it again; the fleet goes on"]
    return [f"next: 'fedpbc fleet status {folder} --watch' keeps this current"]
