"""Whatever is killed, stopped or cut: the result equals the simulator's on the logged rounds."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time

import pytest

from fedpbc.deployment.ops.process_sessions import processes_in
from fedpbc.deployment.ops.server_processes import ServerProcesses

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from tests.deployment.real_fleet import (
    APP,
    after_round,
    log_of,
    logged_answers,
    make_fleet,
    to_the_end,
    until,
)

pytestmark = pytest.mark.fleet

ROUNDS, SECONDS = 7, 20.0

MIFA = {"name": "mifa", "memory": "client"}
"""Its clients keep their last update, and upload only the change of it."""
with_state = pytest.mark.parametrize("algorithm", ["scaffold", MIFA], ids=["scaffold", "mifa"])
everywhere = pytest.mark.parametrize(
    "algorithm", ["fedpbc", "scaffold", MIFA], ids=["fedpbc", "scaffold", "mifa"]
)

DEADLY = (
    APP
    + """
# A trainer that is killed around saving, and a server around its checkpoint, once for each mark.
# With the mark "hold", a trainer waits when it has saved, until "held" is removed.
import os, signal, time
from pathlib import Path
from fedpbc.deployment.device.trainer import Trainer
from fedpbc.deployment.server.server_directory import ServerDirectory

def deadly(keep, round_of):
    def wrapped(self, state, *rest):
        for when in ("before", "after", "hold"):
            mark = Path(__file__).with_name(when)
            if mark.exists() and round_of(state) >= 2:
                if when != "before":
                    keep(self, state, *rest)
                if when == "hold":
                    held = mark.rename(mark.with_name("held"))
                    while held.exists():
                        time.sleep(0.05)
                    return
                mark.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        keep(self, state, *rest)
    return wrapped

Trainer._save = deadly(Trainer._save, lambda state: state.round)
ServerDirectory.save = deadly(ServerDirectory.save, lambda state: state.round)
"""
)


def two_clients(tmp_path, seconds: float = SECONDS, **options):
    return make_fleet(tmp_path, clients=2, rounds=ROUNDS, seconds=seconds, **options)


def pid(fleet, name: str) -> int:
    until(fleet, lambda: fleet.supervisor.service(name).pid, 60)
    process = fleet.supervisor.service(name).pid
    assert process is not None
    return process


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("algorithm", "catch_up"),
    [("fedpbc", "clock"), ("fedpbc", "lazy"), ("scaffold", "clock"), (MIFA, "clock")],
    ids=["fedpbc-clock", "fedpbc-lazy", "scaffold", "mifa"],
)
def test_a_trainer_killed_around_persisting(tmp_path, when, algorithm, catch_up):
    """Between computing and replying: before and after the result is on disk."""
    options = {"app": DEADLY, "device_options": {"catch_up": catch_up}, "algorithm": algorithm}
    with two_clients(tmp_path, 60.0, **options) as fleet:
        mark = fleet.device_folder(1) / when
        mark.touch()
        fleet.start()
        table = to_the_end(fleet)
        assert not mark.exists()
        assert fleet.supervisor.service("trainer-1").exits == 1
    # The node retries while the round lasts, so not even that round is lost.
    assert table.all()


@everywhere
def test_a_reply_lost_after_it_was_computed(tmp_path, algorithm):
    """The result is on the device's disk, and the link is cut before the reply is sent."""
    with two_clients(tmp_path, app=DEADLY, algorithm=algorithm) as fleet:
        device = fleet.device_folder(1)
        (device / "hold").touch()
        fleet.start()
        until(fleet, (device / "held").exists, 120)
        lost = len(fleet.lines())
        fleet.proxies[1].cut()
        (device / "held").unlink()
        after_round(fleet, lost + 1)
        fleet.proxies[1].restore()
        table = to_the_end(fleet, 300)
        # It was computed, but not counted.
        assert lost in {answer["round"] for answer in logged_answers(fleet, 1)}
    assert table[:lost].all()
    assert not table[lost, 1]
    assert table[-1].all()


@everywhere
def test_a_node_killed(tmp_path, algorithm):
    with two_clients(tmp_path, algorithm=algorithm) as fleet:
        fleet.start()
        after_round(fleet, 2)
        os.kill(pid(fleet, "node-1"), signal.SIGKILL)
        table = to_the_end(fleet, 300)
        assert fleet.supervisor.service("node-1").exits >= 1
    assert table[:, 0].all()
    assert table[:2, 1].all()
    assert table[-1, 1]


def test_a_node_stopped_and_continued(tmp_path):
    with two_clients(tmp_path) as fleet:
        fleet.start()
        after_round(fleet, 2)
        session = processes_in([pid(fleet, "node-1")])
        for process in session:
            os.kill(process, signal.SIGSTOP)
        after_round(fleet, 4)
        for process in session:
            os.kill(process, signal.SIGCONT)
        table = to_the_end(fleet)
    assert table[:, 0].all()
    assert not table[3, 1]
    assert table[-1, 1]


def test_the_server_killed(tmp_path):
    with make_fleet(tmp_path, clients=2, rounds=ROUNDS + 4, seconds=SECONDS) as fleet:
        fleet.start()
        for killed in range(1, 4):
            after_round(fleet, 2 * killed)
            os.kill(pid(fleet, "server"), signal.SIGKILL)
            until(fleet, lambda k=killed: log_of(fleet, "server").count("resumes with") == k, 90)
        table = to_the_end(fleet, 300)
    assert table[6:].any(axis=0).all()


@pytest.mark.parametrize("when", ["before", "after"])
@with_state
def test_the_server_killed_around_its_checkpoint(tmp_path, when, algorithm):
    """The round is aggregated and logged, and devices have its replies on their disks."""
    with two_clients(tmp_path, app=DEADLY, algorithm=algorithm) as fleet:
        mark = fleet.server / when
        mark.touch()
        fleet.start()
        table = to_the_end(fleet, 300)
        assert not mark.exists()
        assert log_of(fleet, "server").count("resumes with") == 1
        # Before its checkpoint the round is repeated, after it the next one comes.
        round = 1 if when == "before" else 2
        assert f"resumes with round {round}" in log_of(fleet, "server")
    assert table[-2:].any(axis=0).all()


def test_the_gateway_killed(tmp_path):
    with two_clients(tmp_path) as fleet:
        fleet.start()
        after_round(fleet, 2)
        os.kill(pid(fleet, "gateway"), signal.SIGKILL)
        table = to_the_end(fleet, 300)
        assert fleet.supervisor.service("gateway").exits == 1
    assert table[-1].all()


def test_the_whole_server_down_and_up_again(tmp_path):
    with two_clients(tmp_path) as fleet:
        fleet.start()
        after_round(fleet, 2)
        for name in ("gateway", "server"):
            process = pid(fleet, name)
            os.killpg(process, signal.SIGKILL)
            fleet.supervisor.stop(name)
        time.sleep(5)
        fleet.server_processes = ServerProcesses(fleet.server, fleet.supervisor)
        fleet.server_processes.start()
        table = to_the_end(fleet, 300)
    assert table[-1].all()


def test_a_device_that_lost_its_disk(tmp_path):
    """It only loses time: the next message contains all that it needs."""
    with two_clients(tmp_path) as fleet:
        fleet.start()
        after_round(fleet, 2)
        fleet.supervisor.stop("trainer-1")
        state = fleet.device_folder(1) / "state"
        (state / "trainer.safetensors").unlink()
        shutil.copy(state / "answers.jsonl", tmp_path)
        fleet.device_processes[1].start()
        table = to_the_end(fleet)
    assert table[-1].all()


@with_state
def test_a_device_that_lost_what_it_keeps(tmp_path, algorithm):
    """It says so in every round, and the job goes on without it."""
    with two_clients(tmp_path, algorithm=algorithm) as fleet:
        fleet.start()
        after_round(fleet, 2)
        fleet.supervisor.stop("trainer-1")
        (fleet.device_folder(1) / "state" / "trainer.safetensors").unlink()
        fleet.device_processes[1].start()
        table = to_the_end(fleet)
        assert "this device has lost what client 1 keeps" in log_of(fleet, "server")
        assert 1 in fleet.lines()[-1]["refused"]
    assert table[:, 0].all()
    assert table[:2, 1].all()
    assert not table[-3:, 1].any()


# Links that drop all packets silently, as a phone's do: in network namespaces.


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def can_create_namespaces() -> bool:
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    result = subprocess.run(["ip", "netns", "add", "fedpbc-try"], capture_output=True, check=False)
    if result.returncode == 0:
        ip("netns", "delete", "fedpbc-try")
    return result.returncode == 0


@pytest.fixture
def namespaces():
    """Two network namespaces, each with a link to a bridge at 10.77.5.1."""
    if not can_create_namespaces():
        pytest.skip("needs root and ip(8), to create network namespaces")
    tag = f"fp{os.getpid() % 100000}"
    ip("link", "add", tag, "type", "bridge")
    try:
        ip("address", "add", "10.77.5.1/24", "dev", tag)
        ip("link", "set", tag, "up")
        for k in (0, 1):
            name, near, far = f"{tag}n{k}", f"{tag}h{k}", f"{tag}d{k}"
            ip("netns", "add", name)
            ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
            ip("link", "set", near, "master", tag)
            ip("link", "set", near, "up")
            ip("-n", name, "address", "add", f"10.77.5.{10 + k}/24", "dev", far)
            ip("-n", name, "link", "set", far, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield tag
    finally:
        for k in (0, 1):
            subprocess.run(["ip", "netns", "delete", f"{tag}n{k}"], check=False)
        ip("link", "delete", tag)


def cut_for(tag: str, client: int, seconds: float) -> None:
    ip("link", "set", f"{tag}h{client}", "down")
    time.sleep(seconds)
    ip("link", "set", f"{tag}h{client}", "up")


def in_namespaces(tmp_path, tag: str, **options):
    # Rounds without a cut take a second.
    return make_fleet(
        tmp_path,
        clients=2,
        rounds=30,
        seconds=SECONDS,
        **options,
        host="10.77.5.1",
        command_prefix=lambda client: ["ip", "netns", "exec", f"{tag}n{client}"],
    )


cuts = pytest.mark.parametrize(
    ("seconds", "algorithm"),
    [(5, "fedpbc"), (60, "fedpbc"), (60, "scaffold"), (60, MIFA)],
    ids=["5-fedpbc", "60-fedpbc", "60-scaffold", "60-mifa"],
)


@cuts
def test_a_network_cut_at_any_time(tmp_path, namespaces, seconds, algorithm):
    with in_namespaces(tmp_path, namespaces, algorithm=algorithm) as fleet:
        fleet.start()
        after_round(fleet, 2)
        # At an arbitrary point of the client's work.
        time.sleep(2.5)
        cut_for(namespaces, 1, seconds)
        table = to_the_end(fleet, 300)
    assert table[:, 0].all()
    assert table[:2, 1].all()
    assert table[-1, 1]
    if seconds > 2 * SECONDS:
        assert not table[:, 1].all()


@cuts
def test_a_network_cut_between_reply_and_next_message(tmp_path, namespaces, seconds, algorithm):
    """The client is in A^t, and receives x^{t+1} only with its next message."""
    with in_namespaces(tmp_path, namespaces, algorithm=algorithm, app=DEADLY) as fleet:
        (fleet.server / "hold").touch()
        fleet.start()
        # The round is counted and saved; the next has not begun.
        held = fleet.server / "held"
        until(fleet, held.exists, 120)
        counted = fleet.lines()[-1]
        assert 1 in counted["active"]
        ip("link", "set", f"{namespaces}h1", "down")
        held.unlink()
        time.sleep(seconds)
        assert max(answer["round"] for answer in logged_answers(fleet, 1)) == counted["round"]
        ip("link", "set", f"{namespaces}h1", "up")
        table = to_the_end(fleet, 300)
    assert table[:, 0].all()
    assert table[-1, 1]
