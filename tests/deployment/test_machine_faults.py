"""Faults of whole machines: power, disks, clocks. The result stays exact on the logged rounds."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from fedpbc.deployment.ops.server_processes import ServerProcesses
from fedpbc.errors import FedpbcError
from tests.deployment.real_fleet import after_round, log_of, make_fleet, to_the_end, until

pytestmark = pytest.mark.fleet

ROUNDS, SECONDS = 7, 10.0


def two_clients(folder: Path, **options):
    options = {"clients": 2, "rounds": ROUNDS, "seconds": SECONDS, **options}
    return make_fleet(folder, **options)


def names(fleet) -> list[str]:
    return ["server", "gateway", *(f"{p}-{i}" for p in ("trainer", "node") for i in range(2))]


def processes(fleet) -> list[int]:
    services = [fleet.supervisor.service(name) for name in names(fleet)]
    return [service.pid for service in services if service.pid is not None]


def test_everything_is_killed_at_once(tmp_path):
    """As by a power cut, twice."""
    with two_clients(tmp_path) as fleet:
        fleet.start()
        for round in (2, 4):
            after_round(fleet, round)
            for process in processes(fleet):
                os.kill(process, signal.SIGKILL)
        table = to_the_end(fleet, 400)
        exits = [fleet.supervisor.service(name).exits for name in names(fleet)]
    assert min(exits) >= 2
    assert table[-1].any()


def test_the_server_is_stopped_for_a_minute(tmp_path):
    """Its clock of rounds goes on; the rounds' deadlines have passed when it is back."""
    with two_clients(tmp_path) as fleet:
        fleet.start()
        after_round(fleet, 2)
        stopped = [fleet.supervisor.service(name).pid for name in ("server", "gateway")]
        for process in stopped:
            os.kill(process, signal.SIGSTOP)
        time.sleep(60.0)
        for process in stopped:
            os.kill(process, signal.SIGCONT)
        table = to_the_end(fleet, 400)
    assert table[-1].all()


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of its own, with little space."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(folder)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk(small_disk):
    """Nothing is lost that was counted, and the job goes on when there is space again."""
    with two_clients(small_disk) as fleet:
        fleet.start()
        after_round(fleet, 2)
        filler = small_disk / "filler"
        with filler.open("wb", 0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        until(fleet, lambda: fleet.supervisor.service("server").exits, 60)
        last = fleet.supervisor.service("server").last_output
        filler.unlink()
        table = to_the_end(fleet, 400)
        assert "Traceback" not in log_of(fleet, "server")
    assert any("No space left" in line or "cannot be written" in line for line in last), last
    assert table[-1].any()


def test_an_immutable_folder(tmp_path):
    with two_clients(tmp_path) as fleet:
        command = ["chattr", "+i", str(fleet.server)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("this file system has no immutable folders, or this is not root")
        subprocess.run(["chattr", "-i", str(fleet.server)], check=True)
        fleet.start()
        after_round(fleet, 2)
        subprocess.run(command, check=True)
        try:
            until(fleet, lambda: fleet.supervisor.service("server").exits, 60)
        finally:
            subprocess.run(["chattr", "-i", str(fleet.server)], check=True)
        table = to_the_end(fleet, 400)
    assert table[-1].any()


@pytest.fixture(scope="module")
def clock_shift(tmp_path_factory) -> Path:
    """The library that shifts a process's clock."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("the clock is shifted by a small C library, and there is no compiler")
    library = tmp_path_factory.mktemp("clock") / "clock_shift.so"
    source = Path(__file__).with_name("clock_shift.c")
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return library


@pytest.mark.parametrize("shift", [3600, -3600], ids=["ahead", "behind"])
@pytest.mark.parametrize("side", ["server", "device"])
def test_a_clock_that_jumps(tmp_path, clock_shift, monkeypatch, side, shift):
    """Devices are refused while the clocks differ by an hour, and then go on; nothing is lost."""
    file = tmp_path / "shift"
    file.write_text("0")
    shifted = {"LD_PRELOAD": str(clock_shift), "CLOCK_SHIFT": str(file)}
    prefix = ["env", *(f"{name}={value}" for name, value in shifted.items())]

    def command_prefix(client: int) -> list[str]:
        return prefix if side == "device" and client == 1 else []

    with two_clients(tmp_path, command_prefix=command_prefix) as fleet:
        if side == "server":
            with monkeypatch.context() as patch:
                for name, value in shifted.items():
                    patch.setenv(name, value)
                fleet.server_processes.start()
            for device in fleet.device_processes:
                device.start()
        else:
            fleet.start()
        after_round(fleet, 2)
        file.write_text(str(shift))
        until(fleet, lambda: "the server's clock" in log_of(fleet, "gateway"), 90)
        refused_in = len(fleet.lines())
        file.write_text("0")
        table = to_the_end(fleet, 400)
    assert table[:2].all()
    assert refused_in >= 2
    assert table[-1].any()


def restarted(fleet) -> None:
    """End the server's processes and start a launcher anew, as after a power cut."""
    for name in ("server", "gateway"):
        fleet.supervisor.stop(name)
    fleet.server_processes = ServerProcesses(fleet.server, fleet.supervisor)
    fleet.server_processes.start()


DAMAGED = ["checkpoint", "rounds.jsonl", "reports.bin", "identities.json", "heard.json"]
DAMAGED += ["nodes.json", "server.log"]


def test_each_file_of_state_is_damaged_in_turn(tmp_path):
    """By a power cut that left it with zeros; both ends of the fleet."""
    rounds = 3 + 2 * len(DAMAGED)
    with two_clients(tmp_path, rounds=rounds, fleet={"views_every": 1}) as fleet:
        fleet.start()
        for name in DAMAGED:
            after_round(fleet, len(fleet.lines()) + 2)
            for process in ("server", "gateway"):
                fleet.supervisor.stop(process)
            path = fleet.server / name
            if name == "checkpoint":
                checkpoints = fleet.server.glob("checkpoint-*.safetensors")
                path = max(checkpoints, key=lambda each: each.stat().st_mtime_ns)
            path.write_bytes(bytes(path.stat().st_size))
            restarted(fleet)
        state = fleet.device_folder(1) / "state" / "trainer.safetensors"
        state.write_bytes(bytes(state.stat().st_size))
        os.kill(fleet.supervisor.service("trainer-1").pid, signal.SIGKILL)
        until(fleet, fleet.step, 600)
        lines = fleet.lines()
        server_log = log_of(fleet, "server")
    assert [line["round"] for line in lines] == list(range(rounds))
    assert lines[-1]["active"] == [0, 1]
    assert (fleet.server / "rounds.jsonl.damaged").exists()
    assert (fleet.server / "reports.bin.damaged").exists()
    damaged = ("rounds.jsonl is damaged", "reports.bin is damaged")
    for text in ("ignored checkpoint-", "ignored identities.json", *damaged):
        assert text in server_log
    assert json.loads((fleet.server / "identities.json").read_text())["clients"].keys() == {
        "0",
        "1",
    }


@pytest.mark.parametrize("fault", ["learning rate", "checkpoints"])
def test_what_cannot_mend_itself_ends_at_once(tmp_path, fault):
    with two_clients(tmp_path) as fleet:
        fleet.start()
        after_round(fleet, 2)
        for name in ("server", "gateway"):
            fleet.supervisor.stop(name)
        if fault == "learning rate":
            settings = fleet.server / "fleet.toml"
            settings.write_text(f"{settings.read_text()}\n[train]\nlearning_rate = 0.5\n")
            expected = "settings is"
        else:
            for path in fleet.server.glob("checkpoint-*.safetensors"):
                path.write_bytes(b"")
            expected = "all checkpoints in"
        restarted(fleet)
        with pytest.raises(FedpbcError, match="the server cannot go on") as raised:
            until(fleet, fleet.step, 120)
        assert expected in str(raised.value)
        assert fleet.supervisor.service("server").exits == 1
