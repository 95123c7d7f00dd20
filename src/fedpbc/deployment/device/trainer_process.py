"""The trainer as a process: its socket, its clock, and how it stops."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path

from fedpbc.deployment.device.trainer import Trainer
from fedpbc.deployment.device.trainer_socket import TrainerSocket
from fedpbc.deployment.log_lines import LineFormatter
from fedpbc.deployment.settings import rule_of_client, task_of_client
from fedpbc.deployment.sockets import check_socket
from fedpbc.errors import (
    FedpbcError,
    InputError,
    TryAgainError,
    explained,
    may_work_later,
    one_line,
)
from fedpbc.experiments.plugins import load_plugin
from fedpbc.experiments.user_app import load_user_app
from fedpbc.interrupts import deferred
from fedpbc.storage.directories import locked_directory
from fedpbc.storage.files import read_regular_file
from fedpbc.tasks.torch_device import find_device

__all__ = ["run_trainer"]

LOG = logging.getLogger("fedpbc.deployment")
TICK_SECONDS = 0.5
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0
"""Seconds between two attempts to train what cannot be trained."""


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
    with may_work_later(), deferred() as stop, ExitStack() as stack:
        state.mkdir(parents=True, exist_ok=True)
        stack.enter_context(locked(state))
        trainer = Trainer(client, state, make_task, rule_of_client, app=code, lazy=lazy)
        stack.enter_context(TrainerSocket(socket, trainer.handle, for_group=for_group))
        LOG.info("client %d is ready at %s", client, socket)
        missed = MissedRounds(trainer.tick)
        while not stop.wait(TICK_SECONDS):
            missed.train(stop)


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Hold the lock of the trainer's folder; one that is being ended may still have it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked_directory(state))
        except InputError:
            raise
        except FedpbcError as error:
            raise TryAgainError(str(error)) from None
        yield


class MissedRounds:
    """Trains the rounds that passed without a request.

    What fails, such as an app whose loss raises an error, would fail again: the next attempt is
    after a pause, which grows, and the reason is logged once. A request is still replied to.
    """

    def __init__(self, tick: Callable[[], bool], now: Callable[[], float] = time.monotonic) -> None:
        """Set up; ``tick`` trains one round, and returns whether there was one."""
        self._tick, self._now = tick, now
        self._pause, self._due, self._problem = 0.0, -math.inf, ""

    def train(self, stop: threading.Event) -> None:
        """Train all rounds that were missed, unless it is too early after a failure."""
        if self._now() < self._due:
            return
        try:
            while not stop.is_set() and self._tick():
                if self._problem:
                    LOG.info("missed rounds can be trained again")
                self._pause, self._problem = 0.0, ""
        except Exception as error:
            # Whatever the app raises: the node still needs a process that replies.
            self._pause = min(max(2 * self._pause, FIRST_PAUSE), LONGEST_PAUSE)
            self._due = self._now() + self._pause
            if (problem := explained(error) or one_line(error)) != self._problem:
                LOG.error("cannot train missed rounds: %s; trying again later", problem)
                self._problem = problem
