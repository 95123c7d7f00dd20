"""What a server checks before it starts, and how it supervises its processes."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from fedpbc.deployment.ops.server_processes import ServerProcesses
from fedpbc.deployment.ops.supervisor import Service
from fedpbc.deployment.security.key_directory import parse_public_key
from fedpbc.deployment.security.keys import make_certificates, make_node_key
from fedpbc.deployment.security.node_identity import node_number
from fedpbc.deployment.server.finished_job import rounds_finished
from fedpbc.errors import FedpbcError, InputError

FLEET = 'rounds = 3\nclients = 2\n[fleet]\nlisten = "127.0.0.1:18443"\nwait_for = 2\n'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "fleet.toml").write_text(FLEET)
    make_certificates(tmp_path / "certificates", ["127.0.0.1"])
    for client in (0, 1):
        make_node_key(tmp_path / "keys", f"client-{client}")
    return tmp_path


class UnusedSupervisor:
    """A supervisor that must not be used."""


def test_a_valid_folder_is_accepted(folder):
    processes = ServerProcesses(folder, UnusedSupervisor())
    assert str(processes.listen) == "127.0.0.1:18443"
    # Only the gateway has a port.
    assert processes.socket == folder / ".server"
    assert not (folder / "nodes.json").exists()


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
def test_it_refuses_to_start_without_tls(folder, name):
    (folder / "certificates" / name).unlink()
    with pytest.raises(
        InputError, match=r"ca\.crt, server\.crt and server\.key; or use --insecure"
    ):
        ServerProcesses(folder, UnusedSupervisor())
    ServerProcesses(folder, UnusedSupervisor(), insecure=True)


def test_it_refuses_to_start_without_keys(folder):
    for path in (folder / "keys").iterdir():
        path.unlink()
    message = r"no key: it should contain client-0\.pub to client-1\.pub; or use --insecure"
    with pytest.raises(InputError, match=message):
        ServerProcesses(folder, UnusedSupervisor())


def test_it_refuses_an_expired_certificate(folder, long_ago, monkeypatch):
    make_certificates(folder / "certificates", ["127.0.0.1"], days=3)
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"certificate expired on .*fedpbc fleet renew"):
        ServerProcesses(folder, UnusedSupervisor())


def test_a_certificate_that_expires_soon_is_a_warning(folder, caplog):
    make_certificates(folder / "certificates", ["127.0.0.1"], days=10)
    ServerProcesses(folder, UnusedSupervisor())
    assert "expires in 9 days" in caplog.text


def test_it_warns_daily_while_it_runs(folder, caplog, monkeypatch):
    make_certificates(folder / "certificates", ["127.0.0.1"], days=40)
    processes = ServerProcesses(folder, FailingGateway(0))
    processes._pin_keys()
    day = 0.0

    class Later(datetime):
        @classmethod
        def now(cls, tz=UTC):
            return datetime.now(tz) + timedelta(days=day)

    monkeypatch.setattr("fedpbc.deployment.ops.server_processes.datetime", Later)
    warnings = {}
    for half in range(84):
        day = half / 2
        caplog.clear()
        assert not processes.step()
        if caplog.messages:
            [warnings[day]] = caplog.messages
    text = "the server's certificate {}: run 'fedpbc fleet renew', "
    # The 40 days began a moment ago.
    assert list(warnings) == [10.0 + k for k in range(32)]
    assert warnings[10.0].startswith(text.format("expires in 29 days"))
    assert warnings[39.0].startswith(text.format("expires in 0 days"))
    assert warnings[41.0].startswith(text.format("has expired"))


def test_the_key_must_be_that_of_the_certificate(folder, tmp_path):
    path = folder / "certificates/server.key"
    make_certificates(tmp_path / "other", ["127.0.0.1"])
    shutil.copy(tmp_path / "other/server.key", path)
    message = r"server\.key should be the key of server\.crt, .*KEY_VALUES_MISMATCH"
    with pytest.raises(InputError, match=message):
        ServerProcesses(folder, UnusedSupervisor())
    path.write_text("nonsense")
    with pytest.raises(InputError, match=r"should be the key of server\.crt"):
        ServerProcesses(folder, UnusedSupervisor())


def test_a_key_with_a_password_is_refused_without_a_prompt(folder):
    path = folder / "certificates/server.key"
    key = load_pem_private_key(path.read_bytes(), None)
    locked = BestAvailableEncryption(b"secret")
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
    with pytest.raises(InputError, match=r"the key of server\.crt, without a password"):
        ServerProcesses(folder, UnusedSupervisor())


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
def test_an_unreadable_file_is_one_line(folder, monkeypatch, name):
    def read(folder, file, limit):
        if file == name:
            raise PermissionError(13, "Permission denied", str(folder / file))
        return (folder / file).read_bytes()

    monkeypatch.setattr("fedpbc.deployment.security.certificates.read_inside", read)
    with pytest.raises(
        InputError, match=rf"cannot read the certificates .*PermissionError: .*{name}"
    ):
        ServerProcesses(folder, UnusedSupervisor())


@pytest.fixture
def nodes(folder):
    """The numbers of both clients' nodes."""
    keys = [parse_public_key((folder / f"keys/client-{k}.pub").read_bytes()) for k in (0, 1)]
    return [str(node_number(b64decode(key))) for key in keys]


@pytest.fixture
def running(folder, nodes):
    processes = ServerProcesses(folder, UnusedSupervisor())
    processes._pin_keys()
    assert pinned(folder) == {nodes[0]: 0, nodes[1]: 1}
    return processes


def pinned(folder):
    return json.loads((folder / "nodes.json").read_text())["pinned"]


@pytest.mark.parametrize("name", ["client-2", "mine", "client-", "client--1", "client-01"])
def test_a_surplus_key_does_not_block_the_rest(folder, nodes, running, caplog, name):
    make_node_key(folder / "keys", name)
    (folder / "keys/client-0.pub").unlink()
    for _ in range(3):
        running._pin_keys()
    assert pinned(folder) == {nodes[1]: 1}
    expected = "the keys of this job are client-0.pub to client-1.pub"
    assert caplog.messages == [f"{name}.pub is ignored: {expected}"]
    # Nor does it prevent a server from starting.
    ServerProcesses(folder, UnusedSupervisor())


def test_deleting_a_key_revokes_access_even_the_last_one(folder, nodes, running, caplog):
    content = (folder / "keys/client-1.pub").read_bytes()
    for client, left in ((0, {nodes[1]: 1}), (1, {})):
        (folder / f"keys/client-{client}.pub").unlink()
        running._pin_keys()
        # Not None: that would be a fleet without keys, which anyone may join.
        assert pinned(folder) == left
    assert not caplog.messages
    (folder / "keys/client-1.pub").write_bytes(content)
    running._pin_keys()
    assert pinned(folder) == {nodes[1]: 1}


def test_one_key_under_two_names_stays_the_same_client_after_a_restart(folder, nodes, running):
    (folder / "keys/client-0.pub").write_bytes((folder / "keys/client-1.pub").read_bytes())
    running._pin_keys()
    assert pinned(folder) == {nodes[1]: 1}
    ServerProcesses(folder, UnusedSupervisor())._pin_keys()
    assert pinned(folder) == {nodes[1]: 1}


def test_a_file_that_is_not_a_key_is_ignored(folder, caplog):
    (folder / "keys/client-0.pub").write_text("nonsense")
    ServerProcesses(folder, UnusedSupervisor())
    assert "client-0.pub: ignored" in caplog.text


class FailingGateway:
    """A supervisor whose gateway has exited so often, with this output."""

    def __init__(self, quick_exits: int, output: str = "") -> None:
        self._quick_exits, self._output = quick_exits, output

    def service(self, name):
        if name == "server":
            return Service([])
        output = ["Traceback", "in this line", self._output]
        return SimpleNamespace(quick_exits=self._quick_exits, exits=99, last_output=output)


class FailingServer:
    """A supervisor whose server exits with this code between any two looks."""

    def __init__(self, code: int) -> None:
        self.state = Service([], exit_code=code, last_output=["first", "fedpbc: it is broken"])

    def service(self, name):
        if name == "gateway":
            return Service([])
        self.state.exits += 1
        return self.state


def test_a_server_that_fails_five_times_in_a_round_ends_the_job(folder):
    processes = ServerProcesses(folder, FailingServer(1), insecure=True)
    for _ in range(4):
        assert not processes.step()
    (folder / "rounds.jsonl").write_text("{}\n")
    for _ in range(4):
        assert not processes.step()
    with pytest.raises(
        FedpbcError, match="the server keeps failing in round 1: fedpbc: it is broken; fix this"
    ) as caught:
        processes.step()
    # A service manager tries again.
    assert caught.value.exit_code == 75


def test_a_server_that_would_fail_again_ends_the_job_at_once(folder):
    processes = ServerProcesses(folder, FailingServer(2), insecure=True)
    with pytest.raises(
        FedpbcError, match="the server cannot go on: fedpbc: it is broken"
    ) as caught:
        processes.step()
    assert caught.value.exit_code == 2


def test_no_secret_is_in_a_command_line(folder):
    """Every local user can read the arguments of a process."""
    processes = ServerProcesses(folder, UnusedSupervisor())
    secret = (folder / "certificates/server.key").read_text().splitlines()[1]
    for command in (processes._server_command(), processes._gateway_command()):
        assert "token" not in " ".join(command)
        assert secret not in " ".join(command)


BIND = "OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 18443): "


@pytest.mark.parametrize(
    "output",
    [
        BIND + "address already in use",
        BIND.replace("98", "13") + "permission denied",
        "socket.gaierror: [Errno -2] Name or service not known",
    ],
)
def test_a_gateway_that_cannot_listen_is_a_wrong_address(folder, output):
    processes = ServerProcesses(folder, FailingGateway(5, output), insecure=True)
    with pytest.raises(
        InputError, match=r"listen is '127\.0\.0\.1:18443', but should be .*not in use"
    ) as caught:
        processes.step()
    assert output in str(caught.value)


@pytest.mark.parametrize(
    "output",
    ["PermissionError: [Errno 13] Permission denied: 'server.key'", "MemoryError"],
)
def test_another_failure_of_the_gateway_is_quoted(folder, output):
    processes = ServerProcesses(folder, FailingGateway(5, output), insecure=True)
    with pytest.raises(FedpbcError, match="the gateway keeps failing: ") as caught:
        processes.step()
    assert output in str(caught.value)
    assert "listen" not in str(caught.value)


def test_occasional_failures_of_the_gateway_are_tolerated(folder):
    processes = ServerProcesses(folder, FailingGateway(4), insecure=True)
    assert not processes.step()


@pytest.mark.parametrize(
    ("content", "rounds"),
    [
        ('{"rounds": 3}', 3),
        ('{"rounds": "3"}', 0),
        ("{}", 0),
        ("[]", 0),
        ("", 0),
        ("\xff", 0),
        ("[" * 5000, 0),
        (None, 0),
    ],
)
def test_a_job_is_finished_when_its_last_round_is_recorded(folder, content, rounds):
    if content is not None:
        (folder / "finished.json").write_bytes(content.encode("latin-1"))
    assert rounds_finished(folder) == rounds
