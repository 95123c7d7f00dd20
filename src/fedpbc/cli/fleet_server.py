"""fedpbc fleet server, and fedpbc fleet device: what runs on a machine of a fleet."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from fedpbc.cli.options import Insecure

__all__ = ["device", "server"]


def server(
    folder: Annotated[Path, typer.Argument(help="The server's folder, with fleet.toml.")],
    insecure: Insecure = False,
) -> None:
    """Run a fleet's server until its job is done; the same command goes on where it was."""
    from fedpbc.deployment.ops.server_processes import ServerProcesses
    from fedpbc.deployment.ops.supervisor import Supervisor, to_output
    from fedpbc.deployment.server.directory import check_leftovers

    check_leftovers(folder)
    ended = begin(folder)
    with Supervisor(to_output) as supervisor:
        side = ServerProcesses(folder, supervisor, insecure=insecure)
        side.start()
        while not (done := side.tend()) and not ended.wait(1.0):
            pass
    if done:
        print(f"written: {folder}/models (views), links.csv, timetable.csv, rounds.jsonl")
        print(f"next: fedpbc fleet check {folder}")
    else:
        print(f"stopped; 'fedpbc fleet server {folder}' goes on")


def device(
    folder: Annotated[Path, typer.Argument(help="The device's folder, with device.toml.")],
    insecure: Insecure = False,
) -> None:
    """Run a device's part of a fleet, until it is stopped."""
    from fedpbc.deployment.ops.device_processes import DeviceProcesses
    from fedpbc.deployment.ops.supervisor import Supervisor, to_output

    ended = begin(folder)
    with Supervisor(to_output) as supervisor:
        DeviceProcesses(folder, supervisor, insecure=insecure).start()
        ended.wait()
    print(f"stopped; 'fedpbc fleet device {folder}' goes on")


def begin(folder: Path) -> threading.Event:
    """Set up logging, and what SIGTERM and Ctrl-C do: end in order."""
    from fedpbc.errors import InputError

    if not folder.is_dir():
        right = "a folder that exists; 'fedpbc fleet init' makes it"
        raise InputError("folder", str(folder), right)
    logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s")
    logging.getLogger("fedpbc.deployment").setLevel(logging.INFO)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    return ended
