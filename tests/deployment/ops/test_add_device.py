"""``fedpbc fleet add`` and ``fedpbc fleet renew``: changes to an existing fleet."""

from __future__ import annotations

import re
import shutil
import stat
from datetime import UTC, datetime, timedelta

import pytest

from fedpbc.deployment.device.settings import read_device
from fedpbc.deployment.security.certificates import (
    CertificateAuthority,
    read_certificate,
)
from fedpbc.deployment.settings import read_fleet
from tests.commandline import content, fedpbc, ran, refused
from tests.deployment.handshakes import trusts

pytest.importorskip("cryptography", reason="needs the extra: pip install 'fedpbc[flower]'")

LEAST = ("--clients", 2, "--host", "fleet.example.org")


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    """As in the README: commands are run in the fleet's folder."""
    ran("fleet", "init", tmp_path / "fleet", *LEAST, "--days", 100)
    monkeypatch.chdir(tmp_path / "fleet")
    return tmp_path / "fleet"


def end_of(path):
    return read_certificate(path).not_valid_after_utc


def changed(fleet, before):
    after = content(fleet)
    assert before.keys() <= after.keys()
    return {name for name in after if name not in before or after[name] != before[name]}


def test_add_a_device(fleet):
    # The authority may be offline.
    shutil.rmtree(fleet / "authority")
    (fleet / "server/app.py").write_text("# changed since\n")
    before = content(fleet)
    output = ran("fleet", "add", ".").out
    assert output.endswith("next: use server as the server's folder for the next job\n")
    # Elsewhere a server may run a job with a copy of this folder.
    assert "a running job takes it when server/keys/client-2.pub is copied to its" in output
    device = {name.removeprefix("device-1/") for name in before if name.startswith("device-1/")}
    assert changed(fleet, before) == {
        "README.md",
        "server/fleet.toml",
        "server/keys/client-2.pub",
        "device-2",
        *(f"device-2/{name}" for name in device),
    }
    assert read_device(fleet / "device-2/device.toml").client == 2
    assert (fleet / "device-2/app.py").read_text() == "# changed since\n"
    assert (fleet / "device-2/ca.crt").read_bytes() == before["device-1/ca.crt"]
    assert stat.S_IMODE((fleet / "device-2/node.key").stat().st_mode) == 0o600
    assert read_fleet(fleet / "server/fleet.toml").clients == 3
    # Only the number has changed; the comments stay.
    old, new = before["server/fleet.toml"].decode(), (fleet / "server/fleet.toml").read_text()
    assert new == old.replace("clients = 2 ", "clients = 3 ")
    assert (fleet / "README.md").read_text().startswith("# A fleet of 3 devices")


def test_replacing_a_key_keeps_the_rest_of_the_folder(fleet):
    (fleet / "device-1/device.toml").write_text('client = 1\nserver = "fleet.example.org:1"\n')
    before = content(fleet)
    output = ran("fleet", "add", ".", "--replace", 1).out
    assert "next: copy server/keys/client-1.pub to the folder 'keys' on the server" in output
    assert changed(fleet, before) == {"device-1/node.key", "server/keys/client-1.pub"}
    assert stat.S_IMODE((fleet / "device-1/node.key").stat().st_mode) == 0o600
    assert (fleet / "server/keys/client-1.pub").read_text().endswith(" client-1\n")


def test_replacing_a_device_creates_its_folder(fleet):
    before = content(fleet)
    shutil.rmtree(fleet / "device-0")
    ran("fleet", "add", ".", "--replace", 0)
    assert changed(fleet, before) == {"device-0/node.key", "server/keys/client-0.pub"}


def test_add_a_device_to_an_insecure_fleet(tmp_path):
    ran("fleet", "init", tmp_path / "fleet", *LEAST, "--insecure", "--data", "digits")
    ran("fleet", "add", tmp_path / "fleet")
    assert read_device(tmp_path / "fleet/device-2/device.toml").client == 2
    assert not list((tmp_path / "fleet").rglob("*.key"))
    line = refused(fedpbc("fleet", "add", tmp_path / "fleet", "--replace", 2))
    assert line.startswith("there is nothing to replace: the fleet has no keys, and ")
    assert "was created with --insecure" in refused(fedpbc("fleet", "renew", tmp_path / "fleet"))


def test_a_failed_addition_changes_nothing(fleet, tmp_path):
    line = refused(fedpbc("fleet", "add", ".", "--replace", 2))
    assert line == "replace is 2, but should be from 0 to 1"
    assert "a folder that 'fedpbc fleet init' created" in refused(fedpbc("fleet", "add", tmp_path))
    (fleet / "device-2").mkdir()
    before = content(fleet)
    assert refused(fedpbc("fleet", "add", ".")).startswith("device-2 exists already")
    assert content(fleet) == before
    (fleet / "device-2").rmdir()
    (fleet / "server/app.py").unlink()
    before = content(fleet)
    assert refused(fedpbc("fleet", "add", ".")) == "server/app.py is missing"
    assert content(fleet) == before


def test_without_the_servers_certificate_nothing_is_added(fleet):
    (fleet / "server/certificates/server.crt").unlink()
    before = content(fleet)
    line = refused(fedpbc("fleet", "add", "."))
    assert line == "server/certificates/server.crt is missing"
    assert content(fleet) == before


@pytest.mark.parametrize("command", [["add", "."], ["add", ".", "--replace", "0"]])
def test_without_the_folder_of_keys_nothing_is_added(fleet, command):
    shutil.rmtree(fleet / "server/keys")
    before = content(fleet)
    line = refused(fedpbc("fleet", *command))
    assert line.startswith("server/keys is missing: restore it")
    assert content(fleet) == before


@pytest.mark.parametrize("name", ["rounds.jsonl", "checkpoint-1.safetensors"])
def test_a_device_joins_a_job_that_has_begun(fleet, name):
    (fleet / "server" / name).touch()
    before = content(fleet)
    for client in (2, 3):
        output = ran("fleet", "add", ".").out
        assert f"client {client} joins with the next round" in output
        assert read_device(fleet / f"device-{client}/device.toml").client == client
        assert (fleet / f"server/keys/client-{client}.pub").exists()
    # The job began with two, and is resumed with two.
    assert not changed(fleet, before) & before.keys()
    ran("fleet", "add", ".", "--replace", 3)
    line = refused(fedpbc("fleet", "add", ".", "--replace", 4))
    assert line == "replace is 4, but should be from 0 to 1"


@pytest.mark.parametrize("options", [("--data", "digits"), ("--algorithm", "scaffold")])
def test_where_nobody_can_join_the_clients_of_a_job_are_fixed(tmp_path, options):
    fleet = tmp_path / "fleet"
    ran("fleet", "init", fleet, *LEAST, *options)
    (fleet / "server/rounds.jsonl").touch()
    before = content(fleet)
    line = refused(fedpbc("fleet", "add", fleet))
    assert line.startswith(f"a job has begun in {fleet}/server, and its 2 clients are fixed: a")
    assert content(fleet) == before
    # A new key is allowed.
    ran("fleet", "add", fleet, "--replace", 1)


def test_an_unexpected_line_of_clients_is_an_error_before_anything_changes(fleet):
    path = fleet / "server/fleet.toml"
    path.write_text(path.read_text().replace("clients = 2 ", '"clients" = 2 '))
    before = content(fleet)
    assert "has no line 'clients = 2'" in refused(fedpbc("fleet", "add", "."))
    assert content(fleet) == before


def test_devices_trust_a_renewed_certificate(fleet):
    # Only the server needs its key.
    key = fleet / "server/certificates/server.key"
    secret = key.read_bytes()
    key.unlink()
    before = content(fleet)
    output = ran("fleet", "renew", ".", "--days", 1000).out
    assert changed(fleet, before) == {"README.md", "server/certificates/server.crt"}
    end = end_of(fleet / "server/certificates/server.crt")
    assert timedelta(days=999) < end - datetime.now(UTC) < timedelta(days=1000)
    assert f"it expires on {end:%Y-%m-%d}" in output
    assert f"{end:%Y-%m-%d}" in (fleet / "README.md").read_text()
    key.write_bytes(secret)
    for host in ("fleet.example.org", "localhost"):
        assert trusts(fleet / "device-0/ca.crt", fleet / "server/certificates", host)


def test_a_renewed_certificate_is_valid_as_long_as_the_first_and_no_longer_than_the_authority(
    fleet,
):
    path = fleet / "server/certificates/server.crt"
    ran("fleet", "renew", ".")
    assert timedelta(days=99) < end_of(path) - datetime.now(UTC) < timedelta(days=100)
    ran("fleet", "renew", ".", "--days", 36500)
    assert end_of(path) == end_of(fleet / "authority/ca.crt")


def test_renew_for_another_host(fleet):
    ran("fleet", "renew", ".", "--host", "new.example.org", "--host", "10.0.0.7")
    certificates, ca = fleet / "server/certificates", fleet / "device-0/ca.crt"
    assert trusts(ca, certificates, "new.example.org")
    assert trusts(ca, certificates, "10.0.0.7")
    assert not trusts(ca, certificates, "fleet.example.org")
    # Devices that are added later use the new name.
    ran("fleet", "add", ".")
    assert read_device(fleet / "device-2/device.toml").server == "new.example.org:8443"


@pytest.mark.parametrize("damaged", [None, "nonsense"])
def test_a_damaged_copy_of_the_authority_is_found_before_anything_changes(fleet, damaged):
    path = fleet / "server/certificates/ca.crt"
    path.unlink()
    if damaged is not None:
        path.write_text(damaged)
    before = content(fleet)
    said = "is missing" if damaged is None else "is not a certificate"
    line = refused(fedpbc("fleet", "renew", ".", "--host", "new.example.org"))
    assert line.startswith(f"server/certificates/ca.crt {said}")
    assert content(fleet) == before


def test_a_missing_or_wrong_authority_is_one_line(fleet, tmp_path):
    ran("fleet", "init", tmp_path / "other", *LEAST)
    (fleet / "authority/ca.key").rename(tmp_path / "offline")
    before = content(fleet)
    line = refused(fedpbc("fleet", "renew", "."))
    assert line == "authority/ca.key is missing: restore the authority's folder"
    shutil.copy(tmp_path / "other/authority/ca.key", fleet / "authority/ca.key")
    assert "ca.key is not the key of ca.crt" in refused(fedpbc("fleet", "renew", "."))
    (fleet / "authority/ca.key").write_text("nonsense")
    assert "authority/ca.key is not a private key" in refused(fedpbc("fleet", "renew", "."))
    CertificateAuthority.generate(days=0).write(fleet / "authority")
    line = refused(fedpbc("fleet", "renew", "."))
    assert re.fullmatch(r"authority expired on \d{4}-\d\d-\d\d: create a new fleet", line)
    shutil.copy(fleet / "device-0/ca.crt", fleet / "authority/ca.crt")
    (fleet / "authority/ca.key").unlink()
    assert content(fleet) == before
    host = refused(fedpbc("fleet", "renew", ".", "--host", "a b"))
    assert host.startswith("host is 'a b', but should be a host name")
