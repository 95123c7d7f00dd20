"""fedpbc fleet accept."""

from __future__ import annotations

from typing import Annotated

import typer

from fedpbc.cli.fleet_status import ServerFolder, server_folder
from fedpbc.cli.terminal import command, say

__all__ = ["accept"]


def accept(
    folder: ServerFolder = None,
    client: Annotated[
        list[int] | None,
        typer.Option(min=0, metavar="CLIENT", help="Whose change to accept; repeatable."),
    ] = None,
) -> None:
    """Accept that a client has another app or other data than before; else list who has."""
    from fedpbc.deployment.ops.status import read_job_settings
    from fedpbc.deployment.server.identities import accept_identities, refused_identities

    folder = server_folder(folder)
    read_job_settings(folder)
    if client:
        accept_identities(folder, client)
        for number in sorted(set(client)):
            say(f"accepted: client {number}; its next answer counts")
        return
    refused = refused_identities(folder)
    for number, change in sorted(refused.items()):
        say(f"refused: client {number} has {change}")
    if not refused:
        say("no client is refused for a change")
    else:
        chosen = ("fedpbc", "fleet", "accept", folder, "--client", min(refused))
        say(f"next: {command(*chosen)} accepts the change of that client")
