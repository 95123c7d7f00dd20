"""What must not pass without a word, with the commands that a person runs."""

from __future__ import annotations

import signal
from contextlib import ExitStack

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from fedpbc.deployment.address import free_port
from fedpbc.deployment.server.round_log import read_rounds
from tests.commandline import COMMAND, fedpbc, ran
from tests.processes import child, wait_until

pytestmark = pytest.mark.slow

APP = """
import torch
from torch import nn
from pathlib import Path

def model():
    return nn.Linear(6, 4)

def data(client):
    return torch.randn(20, 6, generator=torch.Generator().manual_seed(client)), torch.arange(20) % 4

def loss(outputs, labels):
    if Path(__file__).with_name("broken").exists():
        raise ValueError("the camera is broken")
    return nn.functional.cross_entropy(outputs, labels)
"""


@pytest.fixture
def fleet(tmp_path):
    """A function that starts a fleet of one device; returns its folder and its server."""
    with ExitStack() as stack:

        def start(rounds, seconds, *, is_broken=False):
            app, folder = tmp_path / "mine.py", tmp_path / "f"
            app.write_text(APP)
            options = ("--clients", 1, "--rounds", rounds, "--round-seconds", seconds)
            place = ("--host", "localhost", "--port", free_port())
            ran("fleet", "init", folder, *place, *options, "--app", app)
            if is_broken:
                (folder / "device-0" / "broken").touch()
            started = []
            for role, name in (("server", "server"), ("device", "device-0")):
                log = stack.enter_context((tmp_path / f"{name}.log").open("w"))
                command = [COMMAND, "fleet", role, folder / name, "--trust"]
                started.append(stack.enter_context(child(command, stdout=log, stderr=log)))
            return folder / "server", started[0]

        yield start


def test_a_job_that_every_device_refused_ends_with_an_error(fleet, tmp_path):
    server, process = fleet(3, 1.0, is_broken=True)
    assert process.wait(120) == 2
    lines = [line for _, line in read_rounds(server)]
    assert [(line["active"], line["refused"]) for line in lines] == [([], [0])] * 3
    assert all(line["ended_s"] - line["began_s"] >= 1.0 for line in lines)
    last = (tmp_path / "server.log").read_text().splitlines()[-1]
    assert last.startswith("fedpbc: the server cannot go on: ")
    assert "no answer counted in any of the 3 rounds (client 0: " in last
    assert "the camera is broken" in last
    assert not (server / "models").exists()


def test_the_status_of_a_server_that_was_killed(fleet):
    server, process = fleet(10_000, 5.0)
    wait_until(lambda: len(list(read_rounds(server))) > 1)
    assert "the server" not in ran("fleet", "status", server).out
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert fedpbc("fleet", "status", server).out.startswith("the server is not running since 2")
