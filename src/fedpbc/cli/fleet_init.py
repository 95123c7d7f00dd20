"""fedpbc fleet init."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpbc.cli.options import Insecure, Trust, default
from fedpbc.cli.terminal import say
from fedpbc.errors import InputError
from fedpbc.text import shell_quoted

__all__ = ["init"]


def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    host: Annotated[
        list[str],
        typer.Option(help="The server's name or address; repeatable, devices use the first."),
    ],
    clients: Annotated[
        int | None, typer.Option(min=1, help="Number of devices; needed without --config.")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The server's port.")] = 8443,
    config: Annotated[
        Path | None,
        typer.Option(
            help="What 'fedpbc advise' or 'fedpbc tune' wrote for one algorithm: its settings, "
            "rounds, data or app. Other options take precedence."
        ),
    ] = None,
    rounds: Annotated[int | None, default("Number of rounds T", "200")] = None,
    algorithm: Annotated[str | None, default("Algorithm; see 'fedpbc list'", "fedpbc")] = None,
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
    trust: Trust = False,
    days: Annotated[
        int | None,
        typer.Option(min=1, max=36500, help="Validity of the server's certificate (default: 825)."),
    ] = None,
) -> None:
    """Create a real fleet's files: keys, certificates, configuration, services, a README."""
    from fedpbc.deployment.ops.fleet_config import fleet_options
    from fedpbc.deployment.ops.fleet_plan import FleetPlan
    from fedpbc.deployment.ops.init import write_fleet

    if insecure and days is not None:
        raise InputError("--days", days, "left out: without encryption there is no certificate")
    options = {} if config is None else fleet_options(config, trust=trust)
    given = {"clients": clients, "rounds": rounds, "algorithm": algorithm, "app": app, "data": data}
    if algorithm not in (None, options.get("algorithm")):
        options.pop("options", None)
    if app is not None or data is not None:
        for name in ("app", "data", "alpha", "model", "data_options", "model_options"):
            options.pop(name, None)
    options |= {name: value for name, value in given.items() if value is not None}
    options |= {} if days is None else {"days": days}
    clients = options.get("clients")
    if clients is None:
        raise InputError("clients is missing: how many devices does the fleet have?")
    plan = FleetPlan(
        hosts=tuple(host),
        port=port,
        round_seconds=round_seconds,
        insecure=insecure,
        **options,
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
