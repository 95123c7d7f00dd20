"""What a server's launcher checks before it starts anything."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from fedpbc.deployment.ops.server_processes import ServerProcesses, is_finished, is_held
from fedpbc.deployment.security.keys import make_certificates, make_node_key
from fedpbc.deployment.settings import read_fleet
from fedpbc.errors import FedpbcError, InputError

FLEET = 'rounds = 3\nclients = 2\n[fleet]\nlisten = "127.0.0.1:18443"\nwait_for = 2\n'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "fleet.toml").write_text(FLEET)
    make_certificates(tmp_path / "certificates", ["127.0.0.1"])
    for client in (0, 1):
        make_node_key(tmp_path / "keys", f"client-{client}")
    return tmp_path


class Never:
    """A supervisor that must not be asked for anything."""


def test_what_is_right_is_taken(folder):
    side = ServerProcesses(folder, Never())
    assert str(side.listen) == "127.0.0.1:18443"
    # The SuperLink itself is on loopback, whatever the door listens at.
    assert side.launch.host == "127.0.0.1"
    assert not (folder / "nodes.json").exists()


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
def test_it_refuses_to_start_without_tls(folder, name):
    (folder / "certificates" / name).unlink()
    with pytest.raises(
        InputError, match=r"ca\.crt, server\.crt and server\.key, or say --insecure"
    ):
        ServerProcesses(folder, Never())
    ServerProcesses(folder, Never(), insecure=True)


def test_it_refuses_to_start_without_keys(folder):
    for path in (folder / "keys").iterdir():
        path.unlink()
    right = r"without a key, but should be client-0\.pub to client-1\.pub, or say --insecure"
    with pytest.raises(InputError, match=right):
        ServerProcesses(folder, Never())


def test_it_refuses_an_expired_certificate(folder, long_ago):
    make_certificates(folder / "certificates", ["127.0.0.1"], days=3)
    with pytest.raises(InputError, match=r"certificates is expired on .*renewed"):
        ServerProcesses(folder, Never())


def test_a_certificate_that_ends_soon_is_a_line(folder, caplog):
    make_certificates(folder / "certificates", ["127.0.0.1"], days=10)
    ServerProcesses(folder, Never())
    assert "expires in 9 days" in caplog.text


def test_it_warns_daily_while_it_runs(folder, caplog, monkeypatch):
    make_certificates(folder / "certificates", ["127.0.0.1"], days=40)
    side = ServerProcesses(folder, Dying(0))
    side._keys, side._submitted = side._keys_now(), time.monotonic()
    day = 0.0

    class Later(datetime):
        @classmethod
        def now(cls, tz=UTC):
            return datetime.now(tz) + timedelta(days=day)

    monkeypatch.setattr("fedpbc.deployment.ops.server_processes.datetime", Later)
    found = {}
    for half in range(84):
        day = half / 2
        caplog.clear()
        assert not side.tend()
        if caplog.messages:
            [found[day]] = caplog.messages
    what = "the server's certificate {}: 'fedpbc fleet renew' makes a new one; "
    # The 40 days began a moment ago.
    assert list(found) == [10.0 + k for k in range(32)]
    assert found[10.0].startswith(what.format("expires in 29 days"))
    assert found[39.0].startswith(what.format("expires in 0 days"))
    assert found[41.0].startswith(what.format("has expired"))


def test_the_key_must_be_that_of_the_certificate(folder, tmp_path):
    place = folder / "certificates/server.key"
    make_certificates(tmp_path / "other", ["127.0.0.1"])
    shutil.copy(tmp_path / "other/server.key", place)
    right = r"server\.key, but should be the key of server\.crt, .*KEY_VALUES_MISMATCH"
    with pytest.raises(InputError, match=right):
        ServerProcesses(folder, Never())
    place.write_text("nonsense")
    with pytest.raises(InputError, match=r"should be the key of server\.crt"):
        ServerProcesses(folder, Never())


def test_a_key_with_a_password_asks_nobody(folder):
    place = folder / "certificates/server.key"
    key = load_pem_private_key(place.read_bytes(), None)
    locked = BestAvailableEncryption(b"secret")
    place.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
    with pytest.raises(InputError, match=r"the key of server\.crt, without a password"):
        ServerProcesses(folder, Never())


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
def test_a_secret_that_this_user_may_not_read_is_said(folder, monkeypatch, name):
    whole = Path.read_bytes

    def read(path):
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return whole(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    with pytest.raises(InputError, match=rf"should be readable \(PermissionError: .*{name}"):
        ServerProcesses(folder, Never())


class Taking:
    """A SuperLink that takes every key."""

    def register(self, keys, patience):
        return {100 + client: client for client in keys.values()}


@pytest.fixture
def running(folder):
    side = ServerProcesses(folder, Never())
    side._control = Taking()
    side._register(patience=1.0)
    assert pinned(folder) == {"100": 0, "101": 1}
    return side


def pinned(folder):
    return json.loads((folder / "nodes.json").read_text())["pinned"]


@pytest.mark.parametrize("name", ["client-2", "mine", "client-", "client--1", "client-01"])
def test_a_key_too_many_does_not_keep_the_rest_from_being_taken_up(folder, running, caplog, name):
    make_node_key(folder / "keys", name)
    (folder / "keys/client-0.pub").unlink()
    for _ in range(3):
        running._register_again()
    assert pinned(folder) == {"101": 1}
    right = "the keys of this job are client-0.pub to client-1.pub"
    assert caplog.messages == [f"{name}.pub is left out: {right}"]
    # Nor does it keep a server from starting.
    ServerProcesses(folder, Never())


def test_whose_key_is_deleted_is_shut_out_the_last_one_too(folder, running, caplog):
    kept = (folder / "keys/client-1.pub").read_bytes()
    for client, left in ((0, {"101": 1}), (1, {})):
        (folder / f"keys/client-{client}.pub").unlink()
        running._register_again()
        # Not None: that would be a fleet without keys, which anybody may join.
        assert pinned(folder) == left
    assert not caplog.messages
    (folder / "keys/client-1.pub").write_bytes(kept)
    running._register_again()
    assert pinned(folder) == {"101": 1}


def test_a_file_that_is_no_key_is_left_out(folder, caplog):
    (folder / "keys/client-0.pub").write_text("nonsense")
    ServerProcesses(folder, Never())
    assert "client-0.pub: it is left out" in caplog.text


class Dying:
    """A supervisor whose door has died so often, and said this."""

    def __init__(self, quick: int, said: str = "") -> None:
        self._quick, self._said = quick, said

    def quick_deaths(self, name):
        assert name == "door"
        return self._quick

    def deaths(self, name):
        return 99

    def last_words(self, name):
        return ["Traceback", "in this line", self._said]

    def say(self, name, line):
        raise AssertionError(line)

    def run(self, command, environment, patience):
        assert patience == 120.0
        return False, "it was ended after 120 s"


BIND = "OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 18443): "


@pytest.mark.parametrize(
    "said",
    [
        BIND + "address already in use",
        BIND.replace("98", "13") + "permission denied",
        "socket.gaierror: [Errno -2] Name or service not known",
    ],
)
def test_a_door_that_cannot_listen_is_a_wrong_address(folder, said):
    side = ServerProcesses(folder, Dying(5, said), insecure=True)
    with pytest.raises(
        InputError, match=r"listen is '127\.0\.0\.1:18443', but should be .*free"
    ) as is_:
        side.tend()
    assert said in str(is_.value)


@pytest.mark.parametrize(
    "said",
    ["PermissionError: [Errno 13] Permission denied: 'server.key'", "MemoryError"],
)
def test_a_door_that_dies_of_something_else_is_quoted(folder, said):
    side = ServerProcesses(folder, Dying(5, said), insecure=True)
    with pytest.raises(FedpbcError, match="the door ends again and again: ") as is_:
        side.tend()
    assert said in str(is_.value)
    assert "listen" not in str(is_.value)


def test_a_door_that_died_now_and_then_is_no_matter(folder):
    side = ServerProcesses(folder, Dying(4), insecure=True)
    side._keys, side._submitted = {}, time.monotonic()
    assert not side.tend()


def test_a_job_that_is_not_handed_in_is_a_line(folder, caplog):
    side = ServerProcesses(folder, Dying(0), insecure=True)
    (folder / "flower").mkdir()
    side._submit()
    assert caplog.messages == ["the job cannot be submitted: it was ended after 120 s"]


def test_a_job_is_finished_when_it_has_all_its_rounds(folder):
    settings = read_fleet(folder / "fleet.toml")
    assert not is_finished(folder, settings)
    (folder / "finished.json").write_text('{"rounds": 2}')
    assert not is_finished(folder, settings)
    (folder / "finished.json").write_text('{"rounds": 3}')
    assert is_finished(folder, settings)


def test_whether_a_server_is_at_work_in_a_folder(folder):
    assert not is_held(folder)
    with (folder / ".lock").open("w") as file:
        assert not is_held(folder)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_held(folder)
    assert not is_held(folder)
