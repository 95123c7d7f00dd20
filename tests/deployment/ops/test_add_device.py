"""``fedpbc fleet add`` and ``fedpbc fleet renew``: a fleet some time after it was set up."""

from __future__ import annotations

import re
import shutil
import stat
from datetime import UTC, datetime, timedelta

import pytest

from fedpbc.deployment.device.settings import read_device
from fedpbc.deployment.security.certificate_authority import Authority, end_of
from fedpbc.deployment.settings import read_fleet
from tests.commandline import content, fedpbc, ran, refused
from tests.deployment.handshakes import trusts

pytest.importorskip("cryptography", reason="needs the extra: pip install 'fedpbc[flower]'")

LEAST = ("--clients", 2, "--host", "fleet.example.org")


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    """As the page has it: commands are typed in the fleet's folder."""
    ran("fleet", "init", tmp_path / "fleet", *LEAST, "--days", 100)
    monkeypatch.chdir(tmp_path / "fleet")
    return tmp_path / "fleet"


def changed(fleet, before):
    after = content(fleet)
    assert before.keys() <= after.keys()
    return {name for name in after if name not in before or after[name] != before[name]}


def test_one_more_device(fleet):
    # The authority may be in its drawer.
    shutil.rmtree(fleet / "authority")
    (fleet / "server/app.py").write_text("# changed since\n")
    before = content(fleet)
    said = ran("fleet", "add", ".").out
    assert "from the next job on" in said
    assert said.endswith("next: ./server as the server's folder of the next job, a new one\n")
    # A server with a job under way has no use for it.
    assert "client-2.pub" not in said
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
    # Nothing but the number has changed, comments included.
    old, new = before["server/fleet.toml"].decode(), (fleet / "server/fleet.toml").read_text()
    assert new == old.replace("clients = 2 ", "clients = 3 ")
    assert (fleet / "README.md").read_text().startswith("# A fleet of 3 devices")


def test_a_lost_key_is_replaced_and_the_rest_of_the_folder_stays(fleet):
    (fleet / "device-1/device.toml").write_text('client = 1\nserver = "fleet.example.org:1"\n')
    before = content(fleet)
    said = ran("fleet", "add", ".", "--replace", 1).out
    assert "next: server/keys/client-1.pub to the server's folder 'keys'" in said
    assert changed(fleet, before) == {"device-1/node.key", "server/keys/client-1.pub"}
    assert stat.S_IMODE((fleet / "device-1/node.key").stat().st_mode) == 0o600
    assert (fleet / "server/keys/client-1.pub").read_text().endswith(" client-1\n")


def test_a_lost_device_gets_its_folder_again(fleet):
    before = content(fleet)
    shutil.rmtree(fleet / "device-0")
    ran("fleet", "add", ".", "--replace", 0)
    assert changed(fleet, before) == {"device-0/node.key", "server/keys/client-0.pub"}


def test_an_insecure_fleet_grows_as_well(tmp_path):
    ran("fleet", "init", tmp_path / "fleet", *LEAST, "--insecure", "--data", "digits")
    ran("fleet", "add", tmp_path / "fleet")
    assert read_device(tmp_path / "fleet/device-2/device.toml").client == 2
    assert not list((tmp_path / "fleet").rglob("*.key"))
    line = refused(fedpbc("fleet", "add", tmp_path / "fleet", "--replace", 2))
    assert line.startswith("replace is 2, but should be left out: the fleet has no keys")
    assert "was made with --insecure" in refused(fedpbc("fleet", "renew", tmp_path / "fleet"))


def test_a_wrong_addition_changes_nothing(fleet, tmp_path):
    line = refused(fedpbc("fleet", "add", ".", "--replace", 2))
    assert line == "replace is 2, but should be from 0 to 1"
    assert "what 'fedpbc fleet init' made" in refused(fedpbc("fleet", "add", tmp_path))
    (fleet / "device-2").mkdir()
    before = content(fleet)
    assert refused(fedpbc("fleet", "add", ".")).startswith("device is 'device-2', but should be")
    assert content(fleet) == before
    (fleet / "device-2").rmdir()
    (fleet / "server/app.py").unlink()
    before = content(fleet)
    assert refused(fedpbc("fleet", "add", ".")) == "server/app.py is missing"
    assert content(fleet) == before


@pytest.mark.parametrize("written", ["rounds.jsonl", "checkpoint-1.safetensors"])
def test_a_job_that_has_begun_keeps_its_clients(fleet, written):
    (fleet / "server" / written).touch()
    before = content(fleet)
    line = refused(fedpbc("fleet", "add", "."))
    assert line.startswith("a job has begun in ./server, and keeps its 2 clients: when it is done,")
    assert content(fleet) == before
    # A new key is another matter.
    ran("fleet", "add", ".", "--replace", 1)


def test_a_number_of_clients_that_cannot_be_changed_is_said_before_anything_is(fleet):
    place = fleet / "server/fleet.toml"
    place.write_text(place.read_text().replace("clients = 2 ", '"clients" = 2 '))
    before = content(fleet)
    assert "has no line 'clients = 2'" in refused(fedpbc("fleet", "add", "."))
    assert content(fleet) == before


def test_a_new_certificate_is_taken_by_devices_as_they_are(fleet):
    # The key is on the server, and need not be here as well.
    key = fleet / "server/certificates/server.key"
    kept = key.read_bytes()
    key.unlink()
    before = content(fleet)
    said = ran("fleet", "renew", ".", "--days", 1000).out
    assert changed(fleet, before) == {"README.md", "server/certificates/server.crt"}
    ends = end_of(fleet / "server/certificates/server.crt")
    assert timedelta(days=999) < ends - datetime.now(UTC) < timedelta(days=1000)
    assert f"it ends on {ends:%Y-%m-%d}" in said
    assert f"{ends:%Y-%m-%d}" in (fleet / "README.md").read_text()
    key.write_bytes(kept)
    for host in ("fleet.example.org", "localhost"):
        assert trusts(fleet / "device-0/ca.crt", fleet / "server/certificates", host)


def test_it_lasts_as_long_as_the_first_one_and_not_longer_than_the_authority(fleet):
    place = fleet / "server/certificates/server.crt"
    ran("fleet", "renew", ".")
    assert timedelta(days=99) < end_of(place) - datetime.now(UTC) < timedelta(days=100)
    ran("fleet", "renew", ".", "--days", 36500)
    assert end_of(place) == end_of(fleet / "authority/ca.crt")


def test_a_server_that_moves(fleet):
    ran("fleet", "renew", ".", "--host", "new.example.org", "--host", "10.0.0.7")
    certificates, ca = fleet / "server/certificates", fleet / "device-0/ca.crt"
    assert trusts(ca, certificates, "new.example.org")
    assert trusts(ca, certificates, "10.0.0.7")
    assert not trusts(ca, certificates, "fleet.example.org")
    # Those that come later look for it there.
    ran("fleet", "add", ".")
    assert read_device(fleet / "device-2/device.toml").server == "new.example.org:8443"


def test_an_authority_that_is_not_there_or_another_is_said(fleet, tmp_path):
    ran("fleet", "init", tmp_path / "other", *LEAST)
    (fleet / "authority/ca.key").rename(tmp_path / "drawer")
    before = content(fleet)
    line = refused(fedpbc("fleet", "renew", "."))
    assert line == "authority/ca.key is missing: bring the authority's folder back"
    shutil.copy(tmp_path / "other/authority/ca.key", fleet / "authority/ca.key")
    assert "ca.key is not the key of ca.crt" in refused(fedpbc("fleet", "renew", "."))
    (fleet / "authority/ca.key").write_text("nonsense")
    assert "authority/ca.key is no key" in refused(fedpbc("fleet", "renew", "."))
    Authority.new(days=0).write(fleet / "authority")
    line = refused(fedpbc("fleet", "renew", "."))
    assert re.fullmatch(r"authority ended on \d{4}-\d\d-\d\d: the fleet must be made anew", line)
    shutil.copy(fleet / "device-0/ca.crt", fleet / "authority/ca.crt")
    (fleet / "authority/ca.key").unlink()
    assert content(fleet) == before
    host = refused(fedpbc("fleet", "renew", ".", "--host", "a b"))
    assert host.startswith("host is 'a b', but should be a host name")
