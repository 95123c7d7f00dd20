"""The trainer as a process: killed, started again, ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from fedpbc.deployment.device.trainer_socket import ask
from fedpbc.deployment.protocol.messages import Payload, TrainReply, TrainRequest
from fedpbc.deployment.server.server_loop import to_vector
from fedpbc.deployment.settings import FleetSettings
from fedpbc.engines.engine import one_thread
from fedpbc.engines.segment import Segment
from fedpbc.engines.serial import train
from tests.commandline import fedpbc
from tests.processes import PATIENCE

pytestmark = pytest.mark.slow

SETTINGS = FleetSettings.from_dict({"data": "digits", "clients": 5, "seed": 2})


def started(state):
    command = [sys.executable, "-m", "fedpbc.cli.app", "trainer", "--client", "3", "--state", state]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def work(round, task):
    return TrainRequest(
        job="j",
        round=round,
        client=3,
        first_round=0,
        rounds=round + 1,
        first_batch=0,
        scale=1.0,
        everyone=True,
        settings=SETTINGS.sent(),
        round_seconds=1000.0,
        age=0.0,
        job_rounds=1000,
        start=to_vector(task.init()),
    )


def test_sigkill_while_it_works_changes_nothing(tmp_path):
    task, socket = SETTINGS.whole_task(), tmp_path / "trainer"
    rounds = 400
    answers: list[Payload] = []

    def client_app():
        answers.append(ask(socket, work(rounds - 1, task).pack(), patience=PATIENCE))

    first = started(tmp_path)
    assert (
        ask(socket, Payload({"kind": "hello", "job": "j"}), patience=PATIENCE).whole("client") == 3
    )
    ask(socket, work(0, task).pack())
    asking = threading.Thread(target=client_app)
    asking.start()
    time.sleep(0.2)
    first.kill()
    first.communicate()
    # The socket is still there, and nobody behind it.
    second = started(tmp_path)
    asking.join(PATIENCE)
    answers.append(ask(socket, work(rounds - 1, task).pack()))
    second.send_signal(signal.SIGTERM)
    assert second.wait(PATIENCE) == 0
    second.communicate()
    assert not socket.exists()
    with one_thread():
        expected = train(task, Segment(3, task.init(), 0, rounds, 0)).end
    for parcel in answers:
        end = torch.from_numpy(TrainReply.unpack(parcel).end.array())
        assert torch.equal(end, expected)
    log = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    # Asked again, it had it.
    assert log[-1]["trained_now"] == 0
    assert np.unique([line["checksum"] for line in log[1:]]).size == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--client", "-1"], "client"),
        (["--client", "1", "--app", "missing.py"], "app is 'missing.py', but should be"),
        (["--client", "1", "--device", "abacus"], "device is 'abacus'"),
        (["--client", "1", "--socket", "s" * 200], "bytes long"),
        (["--client", "1", "--catch-up", "never"], "catch-up"),
    ],
)
def test_wrong_options_are_one_line(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    ended = fedpbc("trainer", "--state", "here", *options)
    assert ended.code == 2
    assert message in ended.err
    assert ended.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
