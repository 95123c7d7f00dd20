"""The server as a process: the round loop, and the Fleet API beside it."""

from __future__ import annotations

import argparse
import logging
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from fedpbc.deployment.log_lines import LineFormatter
from fedpbc.deployment.security.key_directory import KeyDirectory
from fedpbc.deployment.security.pinned_nodes import clients_before
from fedpbc.deployment.server.fleet_api import FleetApi
from fedpbc.deployment.server.fleet_endpoint import FleetEndpoint
from fedpbc.deployment.server.mailbox import Mailbox
from fedpbc.deployment.server.server_directory import ServerDirectory
from fedpbc.deployment.server.server_loop import NotServedError, Server
from fedpbc.deployment.server.upload_check import REPLY_OVERHEAD, UploadCheck
from fedpbc.deployment.settings import read_fleet
from fedpbc.errors import InputError, explained
from fedpbc.simulation.model_parts import ModelParts

__all__ = ["main", "run_job"]

LOG = logging.getLogger("fedpbc.deployment")
LARGEST_LOG = 2**23
FAILED, WRONG_INPUT = 1, 2


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Log to a file in the server's folder, and to standard output for the launcher."""
    handlers: list[logging.Handler] = [
        RotatingFileHandler(
            path, maxBytes=LARGEST_LOG, backupCount=1, encoding="utf-8", delay=True
        ),
        logging.StreamHandler(sys.stdout),
    ]
    for handler in handlers:
        handler.setFormatter(LineFormatter())
        LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        for handler in handlers:
            LOG.removeHandler(handler)
            handler.close()


def run_job(path: Path, socket: Path, *, has_keys: bool) -> None:
    """Run the job that the folder's ``fleet.toml`` describes; devices reach it at the socket."""
    settings = read_fleet(path / "fleet.toml")
    x0, layout = settings.first_model()
    parts = ModelParts.of(x0, layout)
    mailbox, algorithm = Mailbox(), settings.algorithm(parts.x0)
    keys = KeyDirectory(path / "keys", clients_before(path)) if has_keys else None
    api = FleetApi(mailbox, keys, UploadCheck(algorithm, parts).largest + REPLY_OVERHEAD)
    with ServerDirectory(path) as folder:
        server = Server(
            algorithm,
            settings.training,
            folder,
            mailbox,
            rounds=settings.config.general.rounds,
            layout=layout,
            parts=parts,
            client_settings=settings.client_settings(),
            fleet=settings.fleet,
        )
        with FleetEndpoint(socket, api, mailbox):
            server.run()


def allow_many_files() -> None:
    """Every connected device takes a file."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


def main() -> int:
    """Run as a process, which the server's launcher starts; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fedpbc.deployment.server.server_process")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--insecure", action="store_true")
    options = parser.parse_args()
    allow_many_files()
    # On a full disk, what was to be logged is said once, and not why it could not be.
    logging.raiseExceptions = False
    with logging_to(options.folder / "server.log"):
        try:
            run_job(options.folder, options.socket, has_keys=not options.insecure)
        except Exception as error:
            if (line := explained(error)) is None:
                LOG.exception("the server failed")
            else:
                LOG.error("fedpbc: %s", line)
            return WRONG_INPUT if isinstance(error, InputError | NotServedError) else FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
