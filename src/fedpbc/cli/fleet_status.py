"""fedpbc fleet status."""

from __future__ import annotations

import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpbc.cli.options import Json
from fedpbc.cli.terminal import command, open_console, say, say_json, show
from fedpbc.errors import InputError

if TYPE_CHECKING:
    from fedpbc.deployment.ops.status import FleetStatus

__all__ = ["ServerFolder", "compare_hint", "server_folder", "status"]

ServerFolder = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FOLDER]",
        help="The server's folder, with fleet.toml (default: the current folder).",
        show_default=False,
    ),
]


def server_folder(folder: Path | None) -> Path:
    """The folder that was given, or the current one, if it is a server's or has one in it.

    Example:
        >>> server_folder(Path("plant/server"))
        PosixPath('plant/server')
    """
    if folder is not None:
        return folder
    for candidate in (Path(), Path("server")):
        if (candidate / "fleet.toml").is_file():
            return candidate
    raise InputError(
        "FOLDER is missing, and the current folder is not a server's: there is no fleet.toml in it"
    )


def status(
    folder: ServerFolder = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Update until the job ends or Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a fleet's status: which clients answer, are silent, or were refused."""
    from fedpbc.cli import fleet_display
    from fedpbc.deployment.ops.status import FleetLog

    folder = server_folder(folder)
    if watch and as_json:
        raise InputError("--watch", watch, "left out: --json shows the status once")
    log = FleetLog(folder)
    if as_json:
        say_json(asdict(log.status()))
        return
    if watch:
        try:
            fleet_display.watch(folder)
        except KeyboardInterrupt as stop:
            # Ctrl-C is how a person ends it; other signals end it as they end every command.
            if getattr(stop, "number", signal.SIGINT) != signal.SIGINT:
                raise
        current = log.status()
    else:
        current = log.status()
        show(fleet_display.fleet_table(current, width=open_console().width))
    for line in next_steps(current, folder, watch=watch):
        say(line)


def compare_hint(folder: Path) -> str:
    """Return the command that uses the recorded links."""
    line = command("fedpbc", "compare", "--trace", folder)
    return f"next: {line} shows which algorithm performs best on these links"


def next_steps(status: FleetStatus, folder: Path, *, watch: bool) -> list[str]:
    """Return the commands to run next."""
    if status.is_over:
        return [
            f"next: {command('fedpbc', 'fleet', 'check', folder)} compares the models with the "
            "simulator's",
            compare_hint(folder),
        ]
    again = ("fedpbc", "fleet", "status", folder)
    if watch:
        return [f"next: {command(*again)} shows this again; the fleet keeps running"]
    return [f"next: {command(*again, '--watch')} keeps this up to date"]
