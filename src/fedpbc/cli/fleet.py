"""fedpbc fleet: train a real fleet of devices."""

from __future__ import annotations

import typer

from fedpbc.cli.fleet_accept import accept
from fedpbc.cli.fleet_add import add
from fedpbc.cli.fleet_check import check
from fedpbc.cli.fleet_demo import demo
from fedpbc.cli.fleet_init import init
from fedpbc.cli.fleet_leave import leave
from fedpbc.cli.fleet_renew import renew
from fedpbc.cli.fleet_server import device, server
from fedpbc.cli.fleet_status import status

__all__ = ["fleet"]

fleet = typer.Typer(
    name="fleet",
    no_args_is_help=True,
    help="Train a real fleet of devices, over Flower.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
fleet.command()(demo)
fleet.command(no_args_is_help=True)(init)
for command in (server, device, status, check, accept, add, leave, renew):
    fleet.command()(command)
