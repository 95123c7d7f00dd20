"""fedpbc fleet server and fedpbc fleet device: the processes on a machine of a fleet."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpbc.cli.options import Insecure, Trust
from fedpbc.cli.terminal import command, say
from fedpbc.cli.workspace import remember_work
from fedpbc.errors import may_work_later
from fedpbc.interrupts import deferred
from fedpbc.text import format_duration, shell_quoted

if TYPE_CHECKING:
    from fedpbc.deployment.ops.status import StatusSettings

__all__ = ["device", "server"]


def server(
    folder: Annotated[Path, typer.Argument(help="The server's folder, with fleet.toml.")],
    insecure: Insecure = False,
    trust: Trust = False,
) -> None:
    """Run a fleet's server until its job is done; run the same command again to resume."""
    from fedpbc.deployment.ops.consent import check_complete, check_server_code
    from fedpbc.deployment.ops.launcher_lock import only_launcher
    from fedpbc.deployment.ops.metrics_endpoint import metrics_served
    from fedpbc.deployment.ops.server_processes import ServerProcesses
    from fedpbc.deployment.ops.status import read_job_settings
    from fedpbc.deployment.ops.supervisor import Supervisor, log_to_stdout
    from fedpbc.deployment.server.server_directory import check_leftovers

    check_folder(folder)
    check_complete(folder.parent)
    check_leftovers(folder)
    check_server_code(folder, trust=trust)
    began = time.monotonic()
    with may_work_later(), ExitStack() as stack:
        stopped = stack.enter_context(deferred())
        stack.enter_context(only_launcher("server", folder))
        set_up("server", folder)
        supervisor = stack.enter_context(Supervisor(log_to_stdout, stopped))
        processes = ServerProcesses(folder, supervisor, insecure=insecure)
        say(expected_duration(read_job_settings(folder)), flush=True)
        with metrics_served(folder, processes.settings.fleet.metrics_port):
            processes.start()
            while not processes.step():
                if stopped.wait(1.0):
                    return
    say(f"the job is done; this server ran for {format_duration(time.monotonic() - began)}")
    models = shell_quoted(folder / "models")
    say(f"written: {models} (views), links.csv, timetable.csv, rounds.jsonl")
    say(f"next: fedpbc fleet check {shell_quoted(folder)}")


def device(
    folder: Annotated[Path, typer.Argument(help="The device's folder, with device.toml.")],
    insecure: Insecure = False,
    trust: Trust = False,
    user: Annotated[
        str | None,
        typer.Option(
            help="As root: run the app as this user, and the rest as the owner of node.key."
        ),
    ] = None,
) -> None:
    """Run a device of a fleet until it is stopped."""
    from fedpbc.deployment.ops.consent import check_complete, check_device_code
    from fedpbc.deployment.ops.device_processes import DeviceProcesses
    from fedpbc.deployment.ops.launcher_lock import only_launcher
    from fedpbc.deployment.ops.supervisor import Supervisor, log_to_stdout

    check_folder(folder)
    check_complete(folder.parent)
    check_device_code(folder, trust=trust)
    with may_work_later(), ExitStack() as stack:
        stopped = stack.enter_context(deferred())
        stack.enter_context(only_launcher("device", folder))
        set_up("device", folder)
        supervisor = stack.enter_context(Supervisor(log_to_stdout, stopped))
        processes = DeviceProcesses(folder, supervisor, insecure=insecure, user=user)
        processes.start()
        while not stopped.wait(1.0):
            processes.step()


def expected_duration(job: StatusSettings) -> str:
    """How long a job takes at most.

    Example:
        >>> from fedpbc.deployment.ops.status import StatusSettings
        >>> expected_duration(StatusSettings(20, 2, "fedpbc", 60.0, 2))
        '20 rounds of at most 60 s each: at most 20 min, once 2 of 2 clients are connected'
    """
    total = format_duration(job.rounds * job.round_seconds)
    each = format_duration(job.round_seconds)
    return (
        f"{job.rounds} rounds of at most {each} each: at most {total}, once {job.wait_for} of "
        f"{job.clients} clients are connected"
    )


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
