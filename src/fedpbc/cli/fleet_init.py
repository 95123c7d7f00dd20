"""fedpbc fleet init."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpbc.cli.options import Insecure

__all__ = ["init"]


def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for everything.")],
    clients: Annotated[int, typer.Option(min=1, help="How many devices there are.")],
    host: Annotated[
        list[str],
        typer.Option(help="The server's name or address; repeatable, devices use the first."),
    ],
    port: Annotated[int, typer.Option(min=1, max=65535, help="The server's port.")] = 8443,
    rounds: Annotated[int, typer.Option(help="T, how many rounds.")] = 200,
    algorithm: Annotated[str, typer.Option(help="Algorithm; see 'fedpbc list'.")] = "fedpbc",
    round_seconds: Annotated[
        float, typer.Option(help="When a round ends, if not all have answered before.")
    ] = 60.0,
    app: Annotated[
        Path | None,
        typer.Option(help="Python file with your model() and data(client); else an example."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A data set instead, shared out; see 'fedpbc list'.")
    ] = None,
    insecure: Insecure = False,
    days: Annotated[
        int, typer.Option(min=1, max=36500, help="How long the server's certificate lasts.")
    ] = 825,
) -> None:
    """Write what a real fleet needs: keys, certificates, configuration, services, a README."""
    from fedpbc.deployment.ops.init import Plan, write_fleet

    plan = write_fleet(
        folder,
        Plan(
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
        ),
    )
    devices = f"device-0 to device-{clients - 1}" if clients > 1 else "device-0"
    print(f"written: {folder}/server, {devices}; the server is {plan.server}")
    if insecure:
        print("no encryption and no keys: only for a network of your own")
    else:
        print(f"keep {folder}/authority offline: its key can make servers that devices trust")
    print(f"next: {folder}/README.md")
