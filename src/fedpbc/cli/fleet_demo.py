"""fedpbc fleet demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedpbc.cli.fleet_status import which_algorithm
from fedpbc.cli.options import Insecure, Overwrite, Set, config_options, default
from fedpbc.cli.workspace import working_in
from fedpbc.errors import InputError
from fedpbc.experiments.overrides import configuration_values

__all__ = ["demo"]


@config_options("links", "algorithm", "seed")
def demo(
    options: dict[str, Any],
    nodes: Annotated[int, typer.Option(help="Devices, each with processes of its own.")] = 3,
    rounds: Annotated[int, typer.Option(help="T, how many rounds.")] = 10,
    round_seconds: Annotated[
        float | None,
        default("When a round ends, if not all have answered", "10, or what the nodes need here"),
    ] = None,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="Folder for everything.")] = Path("fleet-demo"),
    overwrite: Overwrite = False,
    insecure: Insecure = False,
) -> None:
    """Train a real fleet on this machine while its links fail, and check it with the simulator."""
    given = configuration_values(None, {"rounds": rounds, **options}, set_)
    if nodes < 1:
        raise InputError("--nodes", nodes, "at least 1")
    from fedpbc.cli.fleet_check import run_check, show_checks
    from fedpbc.deployment.ops.demo import (
        Demo,
        kept_to_plan,
        named_links,
        plan_demo,
        prepare_folder,
        seconds_for,
    )
    from fedpbc.deployment.ops.display import watch

    seconds = seconds_for(nodes) if round_seconds is None else round_seconds
    planned = plan_demo(given, nodes, seconds)
    prepare_folder(out, overwrite=overwrite)
    working_in(out, f"'fedpbc fleet status {out / 'server'}' shows how far it came")
    secured = "without encryption and keys" if insecure else "with TLS and node keys"
    print(f"starting a server and {nodes} devices in {out}, {secured}", flush=True)
    print(f"links are cut as {named_links(planned.links)} says", flush=True)
    with Demo(out, planned, insecure=insecure) as running:
        try:
            running.start()
            watch(
                running.server,
                is_over=lambda _: running.done,
                links=running.links,
                sleep=running.pass_time,
            )
        finally:
            print("ending all processes", flush=True)
    # The processes have ended: the simulator has the machine to itself.
    print(kept_to_plan(running.server, planned.up))
    print("the same rounds, simulated:")
    checks = run_check(running.server)
    show_checks(checks)
    print(f"written: {running.server}/ (models/, rounds.jsonl, links.csv, timetable.csv)")
    print(f"         {out}/device-K/ (a device each), {out}/logs/ (what every process said)")
    print(f"next: 'fedpbc fleet status {running.server}' shows the clients once more")
    print(which_algorithm(running.server))
    print(
        "next: 'fedpbc fleet init FOLDER --clients 10 --host NAME' writes what a real fleet needs"
    )
    if not all(one.is_same for one in checks):
        raise typer.Exit(1)
