"""fedpbc fleet add."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["add"]


def add(
    folder: Annotated[Path, typer.Argument(help="The folder that 'fedpbc fleet init' created.")],
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
