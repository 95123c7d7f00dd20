"""fedpbc fleet renew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["renew"]


def renew(
    folder: Annotated[Path, typer.Argument(help="What 'fedpbc fleet init' made.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="The server's new names and addresses; repeatable."),
    ] = None,
    days: Annotated[
        int | None,
        typer.Option(min=1, max=36500, help="How long it lasts (default: as the first did)."),
    ] = None,
) -> None:
    """Make the server a new certificate, before the old one expires."""
    from fedpbc.deployment.ops.renew_certificate import renew_certificate

    ends = renew_certificate(folder, host or (), days)
    print(f"written: {folder}/server/certificates/server.crt; it ends on {ends:%Y-%m-%d}")
    print("next: copy it to the server's folder 'certificates', and start the server again")
