"""Fleets whose devices change during a job, with the commands that a person runs.

Who joins, leaves, is replaced, has a twin or other data: what counts is exact, which `fleet check`
confirms. `server/test_membership.py` and `server/test_identities.py` have the same without
processes, for every algorithm.
"""

from __future__ import annotations

import shutil
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from fedpbc.deployment.address import free_port
from fedpbc.deployment.ops.status import FleetLog
from fedpbc.deployment.server.round_log import read_rounds
from tests.commandline import COMMAND, fedpbc, ran
from tests.deployment.real_fleet import APP
from tests.processes import child, wait_until

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(1800)]

ROUNDS, SECONDS, LONG = 60, 10.0, 300.0
SHIFTED = (
    APP.replace("def data(", "def samples(")
    + """
import time
from pathlib import Path

def data(client):
    inputs, labels = samples(client)
    # Where there is such a file, this device's data has changed.
    return inputs + Path(__file__).with_name("shift").exists(), labels

def loss(outputs, labels):
    # Where there is such a file, a round takes seconds: whatever is to happen must come before
    # the last.
    if Path(__file__).with_name("slow").exists():
        time.sleep(0.6)
    return nn.functional.cross_entropy(outputs, labels)
"""
)


class Fleet:
    """The folder of `fleet init` and the commands that run in it."""

    def __init__(self, folder: Path, stack: ExitStack, clients: int) -> None:
        app = folder / "mine.py"
        app.write_text(SHIFTED)
        self.folder, self.server, self.stack = folder / "f", folder / "f" / "server", stack
        options = ("--clients", clients, "--rounds", ROUNDS, "--round-seconds", SECONDS)
        place = ("--host", "localhost", "--port", free_port())
        ran("fleet", "init", self.folder, *place, *options, "--app", app)
        self.logs = folder
        (self.device(0) / "slow").touch()
        self.started = {"server": self.start("server", self.server)}
        for client in range(clients):
            self.start_device(client)

    def start(self, role, folder):
        log = self.stack.enter_context((self.logs / f"{folder.name}.log").open("a"))
        command = [COMMAND, "fleet", role, folder, "--trust"]
        return self.stack.enter_context(child(command, stdout=log, stderr=log))

    def device(self, client) -> Path:
        return self.folder / f"device-{client}"

    def start_device(self, client) -> None:
        self.started[client] = self.start("device", self.device(client))

    def stop(self, name) -> None:
        self.started[name].send_signal(signal.SIGTERM)
        self.started[name].wait(60)

    def log(self, name) -> str:
        return (self.logs / f"{name}.log").read_text(errors="replace")

    @property
    def lines(self):
        return [line for _, line in read_rounds(self.server)]

    def until(self, condition) -> None:
        def holds():
            assert self.started["server"].poll() in (None, 0), self.log("server")[-3000:]
            return condition(self.lines)

        wait_until(holds, LONG)

    def after(self, rounds) -> None:
        self.until(lambda lines: len(lines) >= rounds)

    def finish(self) -> None:
        """The job ends, with every round logged once."""
        (self.device(0) / "slow").unlink()
        assert self.started["server"].wait(LONG) == 0, self.log("server")[-3000:]
        assert [line["round"] for line in self.lines] == list(range(ROUNDS))

    def check(self) -> str:
        """The simulator reproduces m and all views on the logged rounds, to 1e-6."""
        ended = fedpbc("fleet", "check", self.server)
        assert ended.code == 0, ended
        assert "no difference above 1e-06" in ended.out
        for view in ("server", "averaged", "reported", "corrected"):
            assert view in ended.out
        return ended.out


@pytest.fixture
def fleet(tmp_path):
    with ExitStack() as stack:
        yield lambda clients: Fleet(tmp_path, stack, clients)


def test_a_device_is_added_and_another_leaves_for_good(fleet):
    fleet = fleet(2)
    fleet.after(3)
    added = ran("fleet", "add", fleet.folder)
    assert "client 2 joins with the next round" in added.out
    fleet.start_device(2)
    fleet.until(lambda lines: lines and 2 in lines[-1]["active"])
    left = ran("fleet", "leave", fleet.server, "--client", 0)
    assert "client 0 leaves before the next round" in left.out
    fleet.until(lambda lines: any(line["left"] for line in lines))
    fleet.stop(0)
    (fleet.server / "keys" / "client-0.pub").unlink()
    fleet.finish()
    lines = fleet.lines
    joined = next(t for t, line in enumerate(lines) if line["joined"])
    gone = next(t for t, line in enumerate(lines) if line["left"])
    assert (lines[joined]["joined"], lines[gone]["left"]) == ([2], [0])
    assert 3 <= joined < gone
    assert all(2 not in line["active"] for line in lines[:joined])
    assert all(0 not in line["active"] for line in lines[gone:])
    assert lines[-1]["active"] == [1, 2]
    status = FleetLog(fleet.server).status()
    assert (status.job.clients, status.clients[0].link) == (2, "left")
    fleet.check()
    # The recorded links have all three.
    assert len((fleet.server / "timetable.csv").read_text().splitlines()[0].split(",")) == 3


def test_a_device_is_replaced(fleet):
    fleet = fleet(2)
    fleet.after(3)
    fleet.stop(1)
    stolen = fleet.folder / "stolen"
    shutil.copytree(fleet.device(1), stolen)
    shutil.rmtree(fleet.device(1) / "state")
    ran("fleet", "add", fleet.folder, "--replace", 1)
    fleet.start_device(1)
    replaced = len(fleet.lines)
    fleet.until(lambda lines: 1 in lines[-1]["active"] and len(lines) > replaced)
    # Whoever has the old key is locked out.
    fleet.started["stolen"] = fleet.start("device", stolen)
    wait_until(lambda: "reject" in fleet.log("server") or "unknown key" in fleet.log("server"), 60)
    fleet.finish()
    assert fleet.lines[-1]["active"] == [0, 1]
    assert not any(line["refused"] or line["joined"] or line["left"] for line in fleet.lines)
    assert len((stolen / "state" / "answers.jsonl").read_text().splitlines()) <= replaced + 1
    fleet.check()


@pytest.mark.parametrize("data", ["the same data", "other data"])
def test_a_twin_with_the_same_key(fleet, data):
    fleet = fleet(2)
    fleet.after(3)
    twin = fleet.folder / "twin"
    shutil.copytree(fleet.device(1), twin, ignore=shutil.ignore_patterns("state", ".*"))
    if data == "other data":
        (twin / "shift").touch()
    fleet.started["twin"] = fleet.start("device", twin)
    answers = twin / "state" / "answers.jsonl"
    wait_until(lambda: answers.exists() and answers.stat().st_size, LONG)
    fleet.finish()
    refused = [line["round"] for line in fleet.lines if 1 in line["refused"]]
    assert any(1 in line["active"] for line in fleet.lines[3:])
    if data == "other data":
        assert refused
        assert "(client 1): it has other data than before" in fleet.log("server")
    else:
        assert not refused
    # Not one answer of the twin changed anything.
    fleet.check()


def test_changed_data_is_refused_and_counts_again_when_it_is_back(fleet):
    fleet = fleet(2)
    fleet.after(3)
    fleet.stop(1)
    (fleet.device(1) / "shift").touch()
    fleet.start_device(1)
    fleet.until(lambda lines: 1 in lines[-1]["refused"])
    assert "client 1 has other data" in ran("fleet", "status", fleet.server).out
    fleet.stop(1)
    (fleet.device(1) / "shift").unlink()
    fleet.start_device(1)
    fleet.until(lambda lines: 1 in lines[-1]["active"])
    fleet.finish()
    fleet.check()


def test_changed_data_counts_when_it_was_accepted(fleet):
    fleet = fleet(2)
    fleet.after(3)
    fleet.stop(1)
    (fleet.device(1) / "shift").touch()
    fleet.start_device(1)
    fleet.until(lambda lines: 1 in lines[-1]["refused"])
    assert "refused: client 1 has other data" in ran("fleet", "accept", fleet.server).out
    accepted = len(fleet.lines)
    assert not any(1 in line["active"] for line in fleet.lines[accepted - 1 :])
    ran("fleet", "accept", fleet.server, "--client", 1)
    fleet.until(lambda lines: 1 in lines[-1]["active"])
    fleet.finish()
    (changed,) = [line["round"] for line in fleet.lines if line["changed"]]
    assert changed >= accepted
    assert fleet.lines[changed]["changed"] == [1]
    # The simulator has only the present data: that of the server's folder.
    ended = fedpbc("fleet", "check", fleet.server)
    assert ended.code == 1
    assert f"client 1 has another app or other data since round {changed}" in ended.out
    # With it, and with the old one until then, it comes to the same bits: see test_identities.py.
