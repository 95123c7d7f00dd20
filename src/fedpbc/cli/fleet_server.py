"""fedpbc fleet server and fedpbc fleet device: the processes on a machine of a fleet."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from fedpbc.cli.options import Insecure
from fedpbc.cli.terminal import command, say
from fedpbc.text import shell_quoted

__all__ = ["device", "server"]


def server(
    folder: Annotated[Path, typer.Argument(help="The server's folder, with fleet.toml.")],
    insecure: Insecure = False,
) -> None:
    """Run a fleet's server until its job is done; run the same command again to resume."""
    from fedpbc.deployment.ops.server_processes import ServerProcesses
    from fedpbc.deployment.ops.supervisor import Supervisor, log_to_stdout
    from fedpbc.deployment.server.server_directory import check_leftovers

    check_leftovers(folder)
    stopped = set_up(folder)
    with Supervisor(log_to_stdout) as supervisor:
        processes = ServerProcesses(folder, supervisor, insecure=insecure)
        processes.start()
        while not (is_done := processes.step()) and not stopped.wait(1.0):
            pass
    if is_done:
        models = shell_quoted(folder / "models")
        say(f"written: {models} (views), links.csv, timetable.csv, rounds.jsonl")
        say(f"next: fedpbc fleet check {shell_quoted(folder)}")
    else:
        say(f"stopped; {command('fedpbc', 'fleet', 'server', folder)} resumes")


def device(
    folder: Annotated[Path, typer.Argument(help="The device's folder, with device.toml.")],
    insecure: Insecure = False,
) -> None:
    """Run a device of a fleet until it is stopped."""
    from fedpbc.deployment.ops.device_processes import DeviceProcesses
    from fedpbc.deployment.ops.supervisor import Supervisor, log_to_stdout

    stopped = set_up(folder)
    with Supervisor(log_to_stdout) as supervisor:
        DeviceProcesses(folder, supervisor, insecure=insecure).start()
        stopped.wait()
    say(f"stopped; {command('fedpbc', 'fleet', 'device', folder)} resumes")


def set_up(folder: Path) -> threading.Event:
    """Set up logging, and return an event that SIGTERM and Ctrl-C set, to stop in order."""
    from fedpbc.errors import InputError

    if not folder.is_dir():
        expected = "an existing folder; 'fedpbc fleet init' creates it"
        raise InputError("folder", str(folder), expected)
    logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s")
    logging.getLogger("fedpbc.deployment").setLevel(logging.INFO)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    return stopped
