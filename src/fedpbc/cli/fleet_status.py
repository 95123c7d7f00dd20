"""fedpbc fleet status."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedpbc.deployment.ops.status import FleetStatus

__all__ = ["ServerFolder", "compare_hint", "status"]

ServerFolder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The server's folder, with fleet.toml.")
]


def status(
    folder: ServerFolder,
    watch: Annotated[
        bool, typer.Option("--watch", help="Update until the job ends or Ctrl-C.")
    ] = False,
) -> None:
    """Show a fleet's status: which clients answer, are silent, or were refused."""
    from rich.console import Console

    from fedpbc.cli import fleet_display
    from fedpbc.deployment.ops.status import FleetLog

    log = FleetLog(folder)
    if watch:
        with suppress(KeyboardInterrupt):
            fleet_display.watch(folder)
        current = log.status()
    else:
        current = log.status()
        console = Console()
        console.print(fleet_display.fleet_table(current, width=console.width))
    for line in next_steps(current, folder, watch=watch):
        print(line)


def compare_hint(folder: Path) -> str:
    """Return the command that uses the recorded links."""
    command = f"fedpbc compare --trace {folder / 'links.csv'}"
    return f"next: '{command}' shows which algorithm performs best on these links"


def next_steps(status: FleetStatus, folder: Path, *, watch: bool) -> list[str]:
    """Return the commands to run next."""
    if status.is_over:
        return [
            f"next: 'fedpbc fleet check {folder}' compares the models with the simulator's",
            compare_hint(folder),
        ]
    if watch:
        return [f"next: 'fedpbc fleet status {folder}' shows this again; the fleet keeps running"]
    return [f"next: 'fedpbc fleet status {folder} --watch' keeps this up to date"]
