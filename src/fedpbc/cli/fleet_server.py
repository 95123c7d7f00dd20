"""fedpbc fleet server and fedpbc fleet device: the processes on a machine of a fleet."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedpbc.cli.options import Insecure, Trust
from fedpbc.cli.terminal import command, say
from fedpbc.cli.workspace import remember_work
from fedpbc.interrupts import deferred
from fedpbc.text import shell_quoted

__all__ = ["device", "server"]


def server(
    folder: Annotated[Path, typer.Argument(help="The server's folder, with fleet.toml.")],
    insecure: Insecure = False,
    trust: Trust = False,
) -> None:
    """Run a fleet's server until its job is done; run the same command again to resume."""
    from fedpbc.deployment.ops.consent import check_complete, check_server_code
    from fedpbc.deployment.ops.server_processes import ServerProcesses
    from fedpbc.deployment.ops.supervisor import Supervisor, log_to_stdout
    from fedpbc.deployment.server.server_directory import check_leftovers

    check_folder(folder)
    check_complete(folder.parent)
    check_leftovers(folder)
    check_server_code(folder, trust=trust)
    set_up("server", folder)
    with deferred() as stopped, Supervisor(log_to_stdout, stopped) as supervisor:
        processes = ServerProcesses(folder, supervisor, insecure=insecure)
        processes.start()
        while not processes.step():
            if stopped.wait(1.0):
                return
    models = shell_quoted(folder / "models")
    say(f"written: {models} (views), links.csv, timetable.csv, rounds.jsonl")
    say(f"next: fedpbc fleet check {shell_quoted(folder)}")


def device(
    folder: Annotated[Path, typer.Argument(help="The device's folder, with device.toml.")],
    insecure: Insecure = False,
    trust: Trust = False,
) -> None:
    """Run a device of a fleet until it is stopped."""
    from fedpbc.deployment.ops.consent import check_complete, check_device_code
    from fedpbc.deployment.ops.device_processes import DeviceProcesses
    from fedpbc.deployment.ops.supervisor import Supervisor, log_to_stdout

    check_folder(folder)
    check_complete(folder.parent)
    check_device_code(folder, trust=trust)
    set_up("device", folder)
    with deferred() as stopped, Supervisor(log_to_stdout, stopped) as supervisor:
        DeviceProcesses(folder, supervisor, insecure=insecure).start()
        stopped.wait()


def check_folder(folder: Path) -> None:
    """Raise an InputError unless the folder exists."""
    from fedpbc.errors import InputError

    if not folder.is_dir():
        expected = "an existing folder; 'fedpbc fleet init' creates it"
        raise InputError("folder", str(folder), expected)


def set_up(role: str, folder: Path) -> None:
    """Set up logging, and what an interrupt says."""
    from fedpbc.deployment.log_lines import LineFormatter

    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(handlers=[handler])
    # A log that cannot be written, on a full disk, must not print a traceback for every line.
    logging.raiseExceptions = False
    logging.getLogger("fedpbc.deployment").setLevel(logging.INFO)
    remember_work(folder, f"{command('fedpbc', 'fleet', role, folder)} resumes")
