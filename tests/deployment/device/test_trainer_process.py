"""The trainer as a process: killed, started again, ended."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from fedpbc.deployment.device.trainer_process import MissedRounds
from fedpbc.deployment.device.trainer_socket import request
from fedpbc.deployment.protocol.messages import Payload, TrainReply, TrainRequest
from fedpbc.deployment.protocol.tensors import to_vector
from fedpbc.deployment.settings import FleetSettings
from fedpbc.engines.engine import one_thread
from fedpbc.engines.segment import Segment
from fedpbc.engines.serial import train
from fedpbc.errors import FedpbcError
from fedpbc.storage.directories import locked_directory
from tests.commandline import fedpbc
from tests.processes import PATIENCE, child

pytestmark = pytest.mark.slow

SETTINGS = FleetSettings.from_dict({"data": "digits", "clients": 5, "seed": 2})


def trainer(state):
    return child(
        [sys.executable, "-m", "fedpbc.cli.app", "trainer", "--client", 3, "--state", state]
    )


def train_request(round, task):
    return TrainRequest(
        job="j",
        round=round,
        client=3,
        first_round=0,
        rounds=round + 1,
        first_batch=0,
        scale=1.0,
        everyone=True,
        settings=SETTINGS.client_settings(),
        round_seconds=1000.0,
        age=0.0,
        job_rounds=10_000,
        counted=-1,
        start_over=-1,
        initial="",
        start=to_vector(task.init()),
    )


def test_sigkill_while_training_changes_nothing(tmp_path):
    task, socket = SETTINGS.whole_task(), tmp_path / "trainer"
    # Many times as long as the pause before the kill, however quick the processor.
    rounds = 2500

    def ask(payload):
        return request(socket, payload, timeout=PATIENCE)

    with trainer(tmp_path) as first:
        assert ask(Payload({"kind": "hello", "job": "j"})).integer("client") == 3
        ask(train_request(0, task).pack())
        with ThreadPoolExecutor(1) as client_app:
            asked = client_app.submit(ask, train_request(rounds - 1, task).pack())
            time.sleep(0.1)
            first.kill()
            first.wait(PATIENCE)
            assert not asked.done()
            # The socket still exists, but no process listens.
            with trainer(tmp_path) as second:
                replies = [asked.result(), ask(train_request(rounds - 1, task).pack())]
                second.send_signal(signal.SIGTERM)
                assert second.wait(PATIENCE) == 128 + signal.SIGTERM
    assert not socket.exists()
    with one_thread():
        expected = train(task, Segment(3, task.init(), 0, rounds, 0)).end
    for payload in replies:
        end = torch.from_numpy(TrainReply.unpack(payload).upload["model"].array())
        assert torch.equal(end, expected)
    log = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    # The killed process had replied to the first request only, and the last needed no training.
    assert [line["trained_now"] for line in log] == [1, rounds - 1, 0]
    assert np.unique([line["checksum"] for line in log[1:]]).size == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--client", "-1"], "client"),
        (["--client", "1", "--app", "missing.py"], "app is 'missing.py', but should be"),
        (["--client", "1", "--plugin", "gone.py"], "plugins is 'gone.py', but should be a Python"),
        (["--client", "1", "--device", "abacus"], "device is 'abacus'"),
        (["--client", "1", "--socket", "s" * 200], "bytes long"),
        (["--client", "1", "--catch-up", "never"], "catch-up"),
    ],
)
def test_wrong_options_are_one_line(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    result = fedpbc("trainer", "--state", "here", *options)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_folder_that_another_trainer_still_has_may_be_free_later(tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    with locked_directory(state):
        result = fedpbc("trainer", "--state", state, "--client", 1)
    # Not 2, which ends the device: a trainer that is being ended still has its lock.
    assert result.code == 75
    assert result.err.endswith("state is in use by another process\n")


class App:
    """Missed rounds of an app that fails until it is mended; and a clock."""

    def __init__(self) -> None:
        self.time = 0.0
        self.error: Exception | None = ValueError("the loss is broken")
        self.attempts: list[float] = []
        self.rounds = 1

    def tick(self) -> bool:
        self.attempts.append(self.time)
        if self.error is not None:
            raise self.error
        self.rounds -= 1
        return self.rounds >= 0


def test_an_app_that_fails_is_tried_less_and_less_often(caplog):
    caplog.set_level("INFO", "fedpbc.deployment")
    app, stop = App(), threading.Event()
    missed = MissedRounds(app.tick, now=lambda: app.time)
    for second in range(4000):
        app.time = float(second)
        missed.train(stop)
    # Pauses of 10, 20, 40, … seconds, up to ten minutes.
    assert app.attempts == [0, 10, 30, 70, 150, 310, 630, *range(1230, 4000, 600)]
    line = "cannot train missed rounds: ValueError: the loss is broken; trying again later"
    assert caplog.messages == [line]
    app.error = FedpbcError("the data is gone")
    app.time = app.attempts[-1] + 600
    missed.train(stop)
    assert caplog.messages[1:] == [
        "cannot train missed rounds: the data is gone; trying again later"
    ]
    app.error = None
    app.time += 600
    missed.train(stop)
    app.time += 0.5
    missed.train(stop)
    assert (app.rounds, caplog.messages[2:]) == (-2, ["missed rounds can be trained again"])
