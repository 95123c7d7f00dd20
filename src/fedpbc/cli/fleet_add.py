"""fedpbc fleet add."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["add"]


def add(
    folder: Annotated[Path, typer.Argument(help="What 'fedpbc fleet init' made.")],
    replace: Annotated[
        int | None,
        typer.Option(metavar="CLIENT", help="A new key for this client instead: its old is lost."),
    ] = None,
) -> None:
    """Add a device to a fleet, or give one that is lost a new key."""
    from fedpbc.deployment.ops.add_device import add_device, public_of, replace_device

    if replace is None:
        client = add_device(folder)
        print(f"written: {folder}/device-{client}; clients = {client + 1} in server/fleet.toml")
        print("it takes part from the next job on: a job that has begun keeps its clients")
        print(f"next: {folder}/server as the server's folder of the next job, a new one")
    else:
        client = replace
        replace_device(folder, client)
        print(f"written: {folder}/device-{client}")
        if public_of(folder, client).exists():
            print(f"next: {public_of(folder, client)} to the server's folder 'keys'")
