"""What another local user of a server or a device can do: nothing.

The attacker is a process of another user; so is the app, which must not read the node's key. These
tests need root, to become others.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

from fedpbc.deployment.ops.process_sessions import processes_in
from fedpbc.errors import InputError

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from fedpbc.deployment.ops.device_processes import DeviceProcesses
from tests.deployment.real_fleet import after_round, make_fleet, to_the_end

NODE, APP, ATTACKER = "daemon", "nobody", "games"


def uid(name: str) -> int:
    return pwd.getpwnam(name).pw_uid


def runs(python: str, name: str) -> bool:
    """Whether a user can run this Python, with this package and others."""
    try:
        command = [python, "-c", "import fedpbc.text, numpy"]
        subprocess.run(command, user=uid(name), check=True, capture_output=True, timeout=240)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def python_for_all(folder: Path) -> str:
    """A Python that all three users can run; skips the test if there is none."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    try:
        for name in (NODE, APP, ATTACKER):
            pwd.getpwnam(name)
    except KeyError as error:
        pytest.skip(f"needs the users {NODE}, {APP} and {ATTACKER}: {error}")
    # This one may be below root's home: then the system's, with the same packages.
    system = folder / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = [each for each in sys.path if each and not each.startswith(sys.base_prefix)]
    path = shlex.quote(os.pathsep.join(packages))
    system.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec /usr/bin/{version} "$@"\n')
    system.chmod(0o755)
    for python in (sys.executable, str(system)):
        if runs(python, APP) and runs(python, NODE):
            return python
    pytest.skip(f"needs a Python that {NODE} and {APP} can run")


def as_user(name: str, attempt) -> str:
    """Run a function as a user, in a process of its own; returns what it returns, as text."""
    user = pwd.getpwnam(name)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
            os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
            try:
                result = str(attempt())
            except OSError as error:
                result = type(error).__name__
            os.write(writing, result.encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        output = stream.read()
    os.waitpid(child, 0)
    return output.decode()


def connect(path: Path) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(path))
    return "connected"


def listening(processes: list[int]) -> set[int]:
    """The TCP ports at which these processes listen."""
    inodes = set()
    for process in processes:
        for entry in Path(f"/proc/{process}/fd").iterdir():
            try:
                target = str(entry.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


@pytest.fixture
def shared(monkeypatch):
    """A folder that every user can enter, unlike those of pytest, and a Python for all."""
    path = Path(tempfile.mkdtemp(prefix="fedpbc-users-"))
    path.chmod(0o755)
    try:
        monkeypatch.setattr(sys, "executable", python_for_all(path))
        yield path
    finally:
        shutil.rmtree(path)


def hand_to(folder: Path, name: str) -> None:
    user = pwd.getpwnam(name)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user.pw_uid, user.pw_gid)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_another_user_gets_no_key_no_run_and_no_task(shared):
    with make_fleet(shared, clients=2, rounds=30, seconds=90.0) as fleet:
        device = fleet.device_folder(0)
        # As in the units: the node is one user, the app another; here root is the server.
        hand_to(device, NODE)
        (fleet.folder / "logs").chmod(0o755)
        fleet.device_processes[0] = DeviceProcesses(
            device, fleet.supervisor, user=APP, name_suffix="-0"
        )
        fleet.start()
        after_round(fleet, 1, 240)
        # The round lasts until it is restored.
        fleet.proxies[1].cut()
        trained = device / "state" / "trainer.safetensors"
        names = ("server", "gateway", "trainer-0", "node-0")
        pids = {name: fleet.supervisor.service(name).pid for name in names}
        owner = {name: Path(f"/proc/{pid}").stat().st_uid for name, pid in pids.items()}
        assert owner["trainer-0"] == uid(APP)
        assert owner["node-0"] == uid(NODE)

        secrets = [fleet.server / "certificates" / "server.key", device / "node.key"]
        private = [
            trained,
            fleet.server / "checkpoint-0.safetensors",
            *(Path(f"/proc/{pid}/environ") for pid in pids.values()),
            *(Path(f"/proc/{pid}/mem") for pid in pids.values()),
        ]
        for path in (*secrets, *private):
            assert path.exists(), path
            assert as_user(ATTACKER, path.read_bytes) == "PermissionError", path
        # Nor the app: neither the key, nor the process that has it.
        for path in (*secrets, *(Path(f"/proc/{pids['node-0']}/{n}") for n in ("environ", "mem"))):
            assert as_user(APP, path.read_bytes) == "PermissionError", path

        sockets = [fleet.server_processes.socket, fleet.device_processes[0].socket]
        for path in sockets:
            assert stat.S_ISSOCK(path.stat().st_mode)
            assert as_user(ATTACKER, lambda path=path: connect(path)) == "PermissionError", path
        assert as_user(APP, lambda: connect(sockets[0])) == "PermissionError"
        # The node reaches its trainer, and nothing else of it.
        assert as_user(NODE, lambda: connect(sockets[1])) == "connected"
        assert as_user(NODE, trained.read_bytes) == "PermissionError"

        # No port that gives out tasks, and none that starts runs: only the gateway listens.
        gateway = fleet.server_processes.listen
        everything = {name: listening(processes_in([pid])) for name, pid in pids.items()}
        assert everything == {
            "server": set(),
            "gateway": {gateway.port},
            "trainer-0": set(),
            "node-0": set(),
        }
        for path in ("/v1/control/start-run", "/v1/runtime/acquire-task"):
            status = as_user(ATTACKER, lambda path=path: post(gateway, fleet.server, path))
            assert status in ("401", "404")

        # Everyone reads the arguments of every process.
        for pid in pids.values():
            for process in processes_in([pid]):
                arguments = as_user(ATTACKER, Path(f"/proc/{process}/cmdline").read_text)
                assert "--key" in arguments or "fedpbc" in arguments or "python" in arguments
                assert "token" not in arguments
                assert "secret" not in arguments
        fleet.proxies[1].restore()
        to_the_end(fleet)


def post(address, server: Path, path: str) -> int:
    import http.client
    import ssl

    trust = ssl.create_default_context(cafile=server / "certificates" / "ca.crt")
    connection = http.client.HTTPSConnection(address.host, address.port, context=trust, timeout=30)
    connection.request("POST", path, b"")
    return connection.getresponse().status


def test_the_folder_is_handed_over_once(shared):
    """What the app's user puts there later is not touched as root."""
    with make_fleet(shared, clients=1, rounds=1, seconds=60.0) as fleet:
        device = fleet.device_folder(0)
        hand_to(device, NODE)
        state = device / "state"
        state.mkdir()
        (state / "answers.jsonl").touch()
        processes = DeviceProcesses(device, fleet.supervisor, user=APP)
        processes._users.hand_over(state)
        assert {path.stat().st_uid for path in (state, *state.iterdir())} == {uid(APP)}
        assert stat.S_IMODE(state.stat().st_mode) == 0o710
        assert state.stat().st_gid == pwd.getpwnam(NODE).pw_gid
        (state / "link").symlink_to(shared / "mine.py")
        os.link(shared / "mine.py", state / "hard")
        processes._users.hand_over(state)
        assert (shared / "mine.py").stat().st_uid == 0


@pytest.mark.parametrize(
    ("user", "owner", "mode", "reason"),
    [
        ("no-such-user", NODE, 0o600, "a user of this machine"),
        (NODE, NODE, 0o600, "another user than the owner of"),
        ("root", NODE, 0o600, "another user than root"),
        (APP, NODE, 0o644, "should be closed to other users: chmod 600"),
    ],
)
def test_a_user_that_would_not_help_is_refused(shared, user, owner, mode, reason):
    with make_fleet(shared, clients=1, rounds=1, seconds=60.0) as fleet:
        device = fleet.device_folder(0)
        hand_to(device, owner)
        (device / "node.key").chmod(mode)
        with pytest.raises(InputError, match=reason):
            DeviceProcesses(device, fleet.supervisor, user=user)


def test_only_root_can_choose_a_user(tmp_path, monkeypatch):
    with make_fleet(tmp_path, clients=1, rounds=1, seconds=60.0) as fleet:
        monkeypatch.setattr("os.getuid", lambda: 4711)
        with pytest.raises(InputError, match="left out, unless the command is started as root"):
            DeviceProcesses(fleet.device_folder(0), fleet.supervisor, user=APP)
