"""fedpbc fleet init."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpbc.cli.options import Insecure
from fedpbc.cli.terminal import say
from fedpbc.text import shell_quoted

__all__ = ["init"]


def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    clients: Annotated[int, typer.Option(min=1, help="Number of devices.")],
    host: Annotated[
        list[str],
        typer.Option(help="The server's name or address; repeatable, devices use the first."),
    ],
    port: Annotated[int, typer.Option(min=1, max=65535, help="The server's port.")] = 8443,
    rounds: Annotated[int, typer.Option(help="T, how many rounds.")] = 200,
    algorithm: Annotated[str, typer.Option(help="Algorithm; see 'fedpbc list'.")] = "fedpbc",
    round_seconds: Annotated[
        float, typer.Option(help="When a round ends if not all have answered.")
    ] = 60.0,
    app: Annotated[
        Path | None,
        typer.Option(help="Python file with your model() and data(client); else an example."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="A data set instead, split among the devices; see 'fedpbc list'."),
    ] = None,
    insecure: Insecure = False,
    days: Annotated[
        int, typer.Option(min=1, max=36500, help="Validity of the server's certificate.")
    ] = 825,
) -> None:
    """Create a real fleet's files: keys, certificates, configuration, services, a README."""
    from fedpbc.deployment.ops.init import FleetPlan, write_fleet

    plan = FleetPlan(
        clients=clients,
        hosts=tuple(host),
        port=port,
        rounds=rounds,
        algorithm=algorithm,
        round_seconds=round_seconds,
        app=app,
        data=data,
        insecure=insecure,
        days=days,
    )
    plan = write_fleet(folder, plan)
    devices = f"device-0 to device-{clients - 1}" if clients > 1 else "device-0"
    written = shell_quoted(folder / "server")
    say(f"written: {written}, {devices}; devices will connect to {plan.server}")
    if insecure:
        say("this fleet has no encryption and no keys: use it only on a private network")
    else:
        authority = shell_quoted(folder / "authority")
        say(f"keep {authority} offline: its key can create servers that devices trust")
    say(f"next: read {shell_quoted(folder / 'README.md')}")
