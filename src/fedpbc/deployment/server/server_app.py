"""The server as a Flower server app. The run's configuration names the server's folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpbc.deployment.log_lines import LineFormatter
from fedpbc.deployment.server.flower_transport import FlowerTransport
from fedpbc.deployment.server.server_directory import ServerDirectory
from fedpbc.deployment.server.server_loop import Server
from fedpbc.deployment.settings import read_fleet
from fedpbc.errors import FedpbcError, InputError, one_line

__all__ = ["app"]

LOG = logging.getLogger("fedpbc.deployment")
LARGEST_LOG = 2**23

app = ServerApp()


def main(grid: Grid, context: Context) -> None:
    """Run the job of the folder that the run's configuration names."""
    name = str(context.run_config.get("folder", ""))
    if not name or not Path(name).is_dir():
        raise InputError("folder", name, "the server's folder, as -c 'folder=\"/srv/fleet\"'")
    with logging_to(Path(name) / "server.log"):
        try:
            run_job(grid, Path(name))
        except FedpbcError as error:
            LOG.error("fedpbc: %s", one_line(error))
            raise
        except Exception:
            LOG.exception("the server app failed")
            raise


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Log to a file in the server's folder: Flower discards a server app's output."""
    handler = RotatingFileHandler(path, maxBytes=LARGEST_LOG, backupCount=1, encoding="utf-8")
    handler.setFormatter(LineFormatter())
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        handler.close()


def run_job(grid: Grid, path: Path) -> None:
    """Run the job that the folder's ``fleet.toml`` describes."""
    settings = read_fleet(path / "fleet.toml")
    x0, layout = settings.first_model()
    with ServerDirectory(path) as folder:
        server = Server(
            settings.algorithm(x0),
            settings.training,
            folder,
            FlowerTransport(grid),
            rounds=settings.config.general.rounds,
            layout=layout,
            client_settings=settings.client_settings(),
            fleet=settings.fleet,
        )
        server.run()


app.main()(main)
