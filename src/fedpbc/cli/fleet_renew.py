"""fedpbc fleet renew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpbc.cli.terminal import say
from fedpbc.text import shell_quoted

__all__ = ["renew"]


def renew(
    folder: Annotated[Path, typer.Argument(help="The folder that 'fedpbc fleet init' created.")],
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
    file = shell_quoted(folder / "server" / "certificates" / "server.crt")
    say(f"written: {file}; it expires on {end:%Y-%m-%d}")
    say("next: copy it to the folder 'certificates' on the server, and restart the server")
