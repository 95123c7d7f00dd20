"""fedpbc fleet init, add and renew: the files of a fleet, on the machine of its operator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpbc.cli.options import Insecure

__all__ = ["add", "init", "renew"]

FleetFolder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The folder that 'fedpbc fleet init' created.")
]


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
    print(f"written: {folder}/server, {devices}; devices will connect to {plan.server}")
    if insecure:
        print("this fleet has no encryption and no keys: use it only on a private network")
    else:
        print(f"keep {folder}/authority offline: its key can create servers that devices trust")
    print(f"next: read {folder}/README.md")


def add(
    folder: FleetFolder,
    replace: Annotated[
        int | None,
        typer.Option(metavar="CLIENT", help="Make a new key for this client instead."),
    ] = None,
) -> None:
    """Add a device to a fleet, or replace the key of a lost one."""
    from fedpbc.deployment.ops.add_device import add_device, public_key_path, replace_device

    if replace is None:
        client = add_device(folder)
        print(f"written: {folder}/device-{client}; clients = {client + 1} in server/fleet.toml")
        print("the device takes part from the next job on: the clients of a running job are fixed")
        print(f"next: use {folder}/server as the server's folder for the next job")
    else:
        replace_device(folder, replace)
        print(f"written: {folder}/device-{replace}")
        key = public_key_path(folder, replace)
        if key.exists():
            print(f"next: copy {key} to the folder 'keys' on the server")


def renew(
    folder: FleetFolder,
    host: Annotated[
        list[str] | None,
        typer.Option(help="The server's new names and addresses; repeatable."),
    ] = None,
    days: Annotated[
        int | None,
        typer.Option(min=1, max=36500, help="Validity (default: that of the first certificate)."),
    ] = None,
) -> None:
    """Issue a new certificate for the server, before the old one expires."""
    from fedpbc.deployment.ops.renew_certificate import renew_certificate

    end = renew_certificate(folder, host or (), days)
    print(f"written: {folder}/server/certificates/server.crt; it expires on {end:%Y-%m-%d}")
    print("next: copy it to the folder 'certificates' on the server, and restart the server")
