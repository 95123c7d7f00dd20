"""The trainer as a process: its socket, its clock, and how it ends."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from functools import partial
from pathlib import Path

from fedpbc.deployment.device.trainer import Trainer
from fedpbc.deployment.device.trainer_socket import TrainerSocket, check_socket
from fedpbc.deployment.settings import task_of_client
from fedpbc.deployment.user_app import load_user_app
from fedpbc.errors import FedpbcError, one_line
from fedpbc.storage.directories import locked_directory
from fedpbc.tasks.device import find_device

__all__ = ["run_trainer"]

LOG = logging.getLogger("fedpbc.deployment")
TICK_SECONDS = 0.5


def run_trainer(
    client: int,
    state: Path,
    socket: Path,
    *,
    app: Path | None = None,
    data_dir: Path | None = None,
    lazy: bool = False,
    device: str = "cpu",
) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    check_socket(socket)
    find_device(device)
    own = None if app is None else load_user_app(app)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
    LOG.setLevel(logging.INFO)
    make_task = partial(
        task_of_client,
        client=client,
        own=own,
        data_dir=None if data_dir is None else str(data_dir),
        device=device,
    )
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    state.mkdir(parents=True, exist_ok=True)
    with locked_directory(state):
        trainer = Trainer(client, state, make_task, lazy=lazy)
        with TrainerSocket(socket, trainer.handle):
            LOG.info("client %d is ready at %s", client, socket)
            while not ended.wait(TICK_SECONDS):
                keep_up(trainer, ended)


def keep_up(trainer: Trainer, ended: threading.Event) -> None:
    """Train all rounds that were missed; what goes wrong waits for the server to ask."""
    try:
        while not ended.is_set() and trainer.tick():
            pass
    except FedpbcError as error:
        LOG.error("cannot train on: %s", one_line(error))
        ended.wait(10)
