"""fedpbc fleet leave."""

from __future__ import annotations

from typing import Annotated

import typer

from fedpbc.cli.fleet_status import ServerFolder, server_folder
from fedpbc.cli.terminal import say
from fedpbc.errors import InputError
from fedpbc.text import shell_quoted

__all__ = ["leave"]


def leave(
    client: Annotated[
        list[int], typer.Option(min=0, metavar="CLIENT", help="Who leaves; repeatable.")
    ],
    folder: ServerFolder = None,
) -> None:
    """Let clients leave a job for good: from the next round on they are not among the m."""
    from fedpbc.deployment.ops.status import FleetLog
    from fedpbc.deployment.server.departures import let_leave

    folder = server_folder(folder)
    status = FleetLog(folder).status()
    remaining = {each.client for each in status.clients if not each.has_left}
    for number in client:
        if number not in remaining:
            raise InputError("client", number, "one that takes part")
    if remaining <= set(client):
        raise InputError("client", sorted(set(client)), "not all that are left")
    let_leave(folder, client)
    for number in sorted(set(client)):
        say(f"client {number} leaves before the next round")
        key = folder / "keys" / f"client-{number}.pub"
        if key.exists():
            say(f"next: delete {shell_quoted(key)}, so that its device is locked out")
