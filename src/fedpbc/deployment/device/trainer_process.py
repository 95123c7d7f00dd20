"""The trainer as a process: its socket, its clock, and how it stops."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable
from functools import partial
from hashlib import sha256
from pathlib import Path

from fedpbc.deployment.device.trainer import Trainer
from fedpbc.deployment.device.trainer_socket import TrainerSocket
from fedpbc.deployment.log_lines import LineFormatter
from fedpbc.deployment.settings import rule_of_client, task_of_client
from fedpbc.deployment.sockets import check_socket
from fedpbc.errors import FedpbcError, one_line
from fedpbc.experiments.plugins import load_plugin
from fedpbc.experiments.user_app import load_user_app
from fedpbc.interrupts import deferred
from fedpbc.storage.directories import locked_directory
from fedpbc.storage.files import read_regular_file
from fedpbc.tasks.torch_device import find_device

__all__ = ["run_trainer"]

LOG = logging.getLogger("fedpbc.deployment")
TICK_SECONDS = 0.5


def run_trainer(
    client: int,
    state: Path,
    socket: Path,
    *,
    app: Path | None = None,
    plugins: Iterable[Path] = (),
    data_dir: Path | None = None,
    lazy: bool = False,
    device: str = "cpu",
    for_group: bool = False,
) -> None:
    """Serve until a signal ends it; ``for_group``: the node runs as another user."""
    check_socket(socket)
    find_device(device)
    plugins = list(plugins)
    for plugin in plugins:
        load_plugin(str(plugin))
    user_app = None if app is None else load_user_app(app)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(handlers=[handler])
    LOG.setLevel(logging.INFO)
    sources = [path for path in (app, *plugins) if path is not None]
    code = "".join(sha256(read_regular_file(path)).hexdigest() for path in sources)
    make_task = partial(
        task_of_client,
        client=client,
        app=user_app,
        data_dir=None if data_dir is None else str(data_dir),
        device=device,
    )
    state.mkdir(parents=True, exist_ok=True)
    with deferred() as stop, locked_directory(state):
        trainer = Trainer(client, state, make_task, rule_of_client, app=code, lazy=lazy)
        with TrainerSocket(socket, trainer.handle, for_group=for_group):
            LOG.info("client %d is ready at %s", client, socket)
            while not stop.wait(TICK_SECONDS):
                train_missed_rounds(trainer, stop)


def train_missed_rounds(trainer: Trainer, stop: threading.Event) -> None:
    """Train all rounds that were missed; after a failure, pause before the next attempt."""
    try:
        while not stop.is_set() and trainer.tick():
            pass
    except FedpbcError as error:
        LOG.error("cannot train missed rounds: %s", one_line(error))
        stop.wait(10)
