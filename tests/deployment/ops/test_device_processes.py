"""A device's launcher: what it does about a trainer that ends."""

from __future__ import annotations

import errno
import sys

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from fedpbc.deployment.ops.device_processes import DeviceProcesses
from fedpbc.deployment.ops.server_processes import ServerProcesses
from fedpbc.deployment.ops.supervisor import Service
from fedpbc.errors import FedpbcError
from tests.commandline import fedpbc, ran
from tests.processes import PATIENCE, child

APP = """
from torch import nn

def model():
    return nn.Linear(3, 2)

def data(client):
    raise ValueError
"""


@pytest.fixture
def fleet(tmp_path):
    (tmp_path / "app.py").write_text(APP)
    options = ("--clients", 1, "--host", "127.0.0.1", "--port", 18999, "--app", tmp_path / "app.py")
    ran("fleet", "init", tmp_path / "fleet", *options, "--insecure")
    return tmp_path / "fleet"


class EndedTrainer:
    """A supervisor whose trainer has ended with this code and output."""

    def __init__(self, exit_code: int | None, *output: str) -> None:
        self._service = Service([], exit_code=exit_code, last_output=list(output))

    def service(self, name: str) -> Service:
        assert name == "trainer"
        return self._service


@pytest.mark.parametrize(
    ("code", "output"),
    [
        (None, ()),
        (-9, ("fedpbc: a line",)),
        (75, ("fedpbc: the disk is full",)),
        # Its last line has not arrived yet.
        (2, ()),
        (2, ("INFO client 0 is ready",)),
    ],
)
def test_a_trainer_that_may_work_later_is_left_to_the_supervisor(fleet, code, output):
    DeviceProcesses(fleet / "device-0", EndedTrainer(code, *output), insecure=True).step()


def test_a_trainer_that_would_fail_again_ends_the_device(fleet):
    ended = EndedTrainer(2, "INFO something", "fedpbc: app is 'app.py', but should be valid")
    with pytest.raises(FedpbcError) as caught:
        DeviceProcesses(fleet / "device-0", ended, insecure=True).step()
    expected = "the trainer cannot go on: app is 'app.py', but should be valid"
    assert (str(caught.value), caught.value.exit_code) == (expected, 2)


@pytest.mark.slow
def test_a_broken_app_ends_the_device_at_once(fleet):
    device = fleet / "device-0"
    (device / "app.py").write_text("def model(:\n")
    command = [sys.executable, "-m", "fedpbc.cli.app", "fleet", "device", device]
    with child([*command, "--insecure", "--trust"]) as process:
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    [line] = err.splitlines()
    assert line.startswith("fedpbc: the trainer cannot go on: ")
    assert "app.py" in line


@pytest.mark.parametrize("role", ["server", "device"])
def test_a_full_disk_is_no_wrong_input(fleet, monkeypatch, role):
    """A unit starts it again after code 75, not after 2."""
    folder = fleet / ("server" if role == "server" else "device-0")

    def fail(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "nodes.json")

    for processes in (ServerProcesses, DeviceProcesses):
        monkeypatch.setattr(processes, "start", fail)
    result = fedpbc("fleet", role, folder, "--insecure")
    assert (result.code, result.err) == (75, "fedpbc: nodes.json: No space left on device\n")
