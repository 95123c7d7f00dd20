"""fedpbc fleet demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedpbc.cli.fleet_status import compare_hint
from fedpbc.cli.options import Insecure, Overwrite, Set, config_options, default
from fedpbc.cli.terminal import command, say
from fedpbc.cli.workspace import begin_work
from fedpbc.errors import InputError
from fedpbc.experiments.overrides import configuration_values
from fedpbc.text import shell_quoted

__all__ = ["demo"]

CLIENTS = 3


@config_options("links", "algorithm", "seed")
def demo(
    options: dict[str, Any],
    clients: Annotated[
        int | None, default("Number of devices, each with its processes", str(CLIENTS))
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", hidden=True)] = None,
    rounds: Annotated[int, typer.Option(help="Number of rounds T.")] = 10,
    round_seconds: Annotated[
        float | None,
        default("When a round ends if not all have answered", "10, or what this machine needs"),
    ] = None,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("fleet-demo"),
    overwrite: Overwrite = False,
    insecure: Insecure = False,
) -> None:
    """Train a real fleet on this machine with failing links, and check it with the simulator."""
    overrides = configuration_values(None, {"rounds": rounds, **options}, set_)
    if clients is not None and nodes is not None:
        raise InputError("--nodes", nodes, "left out: --clients is its new name")
    count = nodes if clients is None else clients
    count = CLIENTS if count is None else count
    if count < 1:
        raise InputError("--clients", count, "at least 1")
    from fedpbc.cli.fleet_check import print_checks, run_check
    from fedpbc.cli.fleet_display import watch
    from fedpbc.deployment.ops.demo import (
        Demo,
        check_folder,
        describe_cuts,
        describe_links,
        plan_demo,
    )

    plan = plan_demo(overrides, count, round_seconds)
    check_folder(out, overwrite=overwrite)
    again = command("fedpbc", "fleet", "status", out / "server")
    begin_work(out, f"{again} shows its progress", "stopping… the fleet's processes")
    security = "without encryption and keys" if insecure else "with TLS and node keys"
    quoted_folder = shell_quoted(out)
    say(f"starting a server and {count} devices in {quoted_folder}, {security}", flush=True)
    say(f"links are cut by the scheme {describe_links(plan.links)}", flush=True)
    with Demo(out, plan, insecure=insecure) as running:
        try:
            running.start()
            watch(
                running.server,
                is_over=lambda _: running.is_done,
                links=running.links,
                sleep=running.run_for,
            )
        finally:
            say("stopping all processes", flush=True)
    # All processes have ended, so the simulator has the machine to itself.
    say(describe_cuts(running.server, plan.up))
    say("the same rounds in the simulator:")
    checks = run_check(running.server)
    print_checks(checks)
    server = shell_quoted(running.server)
    say(f"written: {server}/ (models/, rounds.jsonl, links.csv, timetable.csv)")
    logs = f"{quoted_folder}/logs/ (one file per process)"
    say(f"         {quoted_folder}/device-K/ (one per device), {logs}")
    say(f"next: {again} shows the clients again")
    say(compare_hint(running.server))
    say("next: 'fedpbc fleet init FOLDER --clients 10 --host NAME' sets up a real fleet")
    if not all(check.is_equal for check in checks):
        raise typer.Exit(1)
