"""fedpbc fleet add."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpbc.cli.terminal import say
from fedpbc.text import shell_quoted

__all__ = ["add"]


def add(
    folder: Annotated[Path, typer.Argument(help="The folder that 'fedpbc fleet init' created.")],
    replace: Annotated[
        int | None,
        typer.Option(metavar="CLIENT", help="Make a new key for this client instead."),
    ] = None,
) -> None:
    """Add a device to a fleet, or replace the key of a lost one."""
    from fedpbc.deployment.ops.add_device import (
        add_device,
        job_has_begun,
        public_key_path,
        replace_device,
    )

    if replace is None and job_has_begun(folder / "server"):
        client = add_device(folder)
        key = public_key_path(folder, client)
        say(f"written: {shell_quoted(folder / f'device-{client}')} and {shell_quoted(key)}")
        say(f"client {client} joins with the next round of a server that has this key")
        say("next: start 'fedpbc fleet device' with that folder on its machine")
    elif replace is None:
        client = add_device(folder)
        added = shell_quoted(folder / f"device-{client}")
        say(f"written: {added}; clients = {client + 1} in server/fleet.toml")
        key = public_key_path(folder, client)
        if key.exists():
            say(f"a running job takes it when {shell_quoted(key)} is copied to its server's keys")
        say(f"next: use {shell_quoted(folder / 'server')} as the server's folder for the next job")
    else:
        replace_device(folder, replace)
        say(f"written: {shell_quoted(folder / f'device-{replace}')}")
        key = public_key_path(folder, replace)
        if key.exists():
            say(f"next: copy {shell_quoted(key)} to the folder 'keys' on the server")
