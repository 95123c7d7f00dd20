"""A fleet's folder that somebody sent runs no code and writes nowhere else without consent."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fedpbc.deployment.ops.consent import check_device_code, check_server_code
from fedpbc.deployment.settings import read_fleet
from fedpbc.errors import InputError
from fedpbc.experiments import trust as trust_module
from tests.commandline import content, fedpbc, ran, refused

APP = """
from pathlib import Path
Path({mark!r}).touch()
from torch import nn
def model():
    return nn.Linear(3, 2)
def data(client):
    raise ValueError
"""
NEW = "has a plugin that you have not run on this machine"


@pytest.fixture
def stranger(monkeypatch, tmp_path):
    """From now on, another user on another machine."""

    def become():
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state of a stranger"))
        monkeypatch.setattr(trust_module, "_remembered", set())

    return become


@pytest.fixture
def sent(tmp_path, stranger):
    """A fleet that somebody sent, whose app leaves a mark when it runs."""
    mark = tmp_path / "it ran"
    (tmp_path / "mine.py").write_text(APP.format(mark=str(mark)))
    fleet = tmp_path / "fleet"
    options = ("--clients", 1, "--host", "127.0.0.1", "--insecure", "--app", tmp_path / "mine.py")
    ran("fleet", "init", fleet, *options)
    assert mark.exists()
    mark.unlink()
    stranger()
    return fleet, mark


@pytest.mark.parametrize(
    ("command", "folder"), [("server", "server"), ("check", "server"), ("device", "device-0")]
)
def test_an_app_that_is_new_here_needs_consent(sent, command, folder):
    fleet, mark = sent
    before = content(fleet)
    options = () if command == "check" else ("--insecure",)
    assert NEW in refused(fedpbc("fleet", command, fleet / folder, *options))
    assert not mark.exists()
    assert content(fleet) == before


def test_commands_that_need_no_code_run_none(sent):
    fleet, mark = sent
    ran("fleet", "status", fleet / "server")
    ran("fleet", "add", fleet)
    assert not mark.exists()


def test_a_plugin_of_a_fleet_needs_consent_too(sent, tmp_path):
    fleet, mark = sent
    (fleet / "server" / "more.py").write_text(f"open({str(mark)!r}, 'w')")
    path = fleet / "server" / "fleet.toml"
    path.write_text('plugins = ["more.py"]\n' + path.read_text())
    for command in (("add", fleet), ("check", fleet / "server")):
        assert NEW in refused(fedpbc("fleet", *command))
    assert not mark.exists()


def test_a_plugin_of_a_device_needs_consent_too(tmp_path, stranger):
    ran("fleet", "init", tmp_path / "f", "--clients", 1, "--host", "a", "--insecure")
    device, mark = tmp_path / "f" / "device-0", tmp_path / "it ran"
    check_device_code(device)
    (device / "rule.py").write_text(f"open({str(mark)!r}, 'w')")
    path = device / "device.toml"
    path.write_text('plugins = ["rule.py"]\n' + path.read_text())
    assert NEW in refused(fedpbc("fleet", "device", device, "--insecure"))
    assert not mark.exists()
    check_device_code(device, trust=True)
    check_device_code(device)


def test_consent_is_remembered(sent, stranger):
    fleet, _ = sent
    with pytest.raises(InputError, match=NEW):
        check_device_code(fleet / "device-0")
    check_server_code(fleet / "server", trust=True)
    check_server_code(fleet / "server")
    # The same app.
    check_device_code(fleet / "device-0")
    shutil.rmtree(Path(os.environ["XDG_STATE_HOME"]))
    stranger()
    with pytest.raises(InputError, match=NEW):
        check_server_code(fleet / "server")


def test_what_flower_left_in_a_folder_does_not_run(tmp_path, stranger):
    """Former versions kept Flower's database and commands there."""
    ran("fleet", "init", tmp_path / "f", "--clients", 1, "--host", "a", "--insecure")
    server = tmp_path / "f" / "server"
    (server / "flower").mkdir()
    (server / "flower" / "superlink.db").write_bytes(b"apps")
    check_server_code(server)


@pytest.mark.parametrize("name", ["state", "state/flower", "state/answers.jsonl"])
def test_links_out_of_a_devices_folder(tmp_path, name):
    ran("fleet", "init", tmp_path / "f", "--clients", 1, "--host", "a", "--insecure")
    device, outside = tmp_path / "f" / "device-0", tmp_path / "outside"
    outside.mkdir()
    (device / name).parent.mkdir(exist_ok=True)
    (device / name).symlink_to(outside)
    line = refused(fedpbc("fleet", "device", device, "--insecure"))
    assert line == f"{device / name} is a link, which is not followed: remove it"
    assert not any(outside.iterdir())


def test_a_fleet_whose_creation_was_killed_is_not_taken_for_one(tmp_path):
    fleet, options = tmp_path / "f", ("--clients", 1, "--host", "a", "--insecure")
    ran("fleet", "init", fleet, *options)
    # As if killed while its parts were moved into an existing folder.
    (fleet / ".fleet-init").write_text("device-0\nserver\ninit.toml\n../mine\n")
    (fleet / "README.md").unlink()
    (tmp_path / "mine").mkdir()
    for command in (("server", fleet / "server"), ("device", fleet / "device-0")):
        line = refused(fedpbc("fleet", *command, "--insecure"))
        assert line == f"{fleet} is incomplete: 'fedpbc fleet init' was interrupted; run it again"
    for command in ("add", "renew"):
        assert "is incomplete" in refused(fedpbc("fleet", command, fleet))
    ran("fleet", "init", fleet, *options)
    assert (tmp_path / "mine").exists()
    assert sorted(path.name for path in fleet.iterdir()) == [
        "README.md",
        "device-0",
        "init.toml",
        "server",
    ]


def test_another_folder_is_not_emptied(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    (tmp_path / ".fleet-init").write_text("thesis.tex\n")
    line = refused(fedpbc("fleet", "init", tmp_path, "--clients", 1, "--host", "a", "--insecure"))
    assert "new or empty" in line
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_an_app_that_is_no_file(sent):
    fleet, _ = sent
    app = fleet / "server" / "mine.py"
    app.unlink()
    os.mkfifo(app)
    with pytest.raises(InputError, match="is not a regular file: remove it"):
        check_server_code(fleet / "server")
    with pytest.raises(InputError, match="a Python file that exists"):
        read_fleet(fleet / "server" / "fleet.toml").first_model()


@pytest.mark.parametrize(
    "name", ["device-0", "server", "server/keys", "server/app.py", "README.md"]
)
@pytest.mark.parametrize("command", [("add",), ("add", "--replace", 0), ("renew",)])
def test_links_out_of_a_fleets_folder(tmp_path, name, command):
    """What a link leads to must neither be written, nor be copied to a device."""
    fleet, outside = tmp_path / "f", tmp_path / "outside"
    ran("fleet", "init", fleet, "--clients", 1, "--host", "a")
    (fleet / name).rename(outside)
    (fleet / name).symlink_to(outside)
    before = content(tmp_path)
    line = refused(fedpbc("fleet", command[0], fleet, *command[1:]))
    assert line == f"{fleet / name} is a link, which is not followed: remove it"
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("role", "name"),
    [("server", "server.log"), ("server", "rounds.jsonl"), ("device", "state/answers.jsonl")],
)
def test_a_pipe_in_a_folder_is_found_before_anything_waits_for_it(tmp_path, role, name):
    ran("fleet", "init", tmp_path / "f", "--clients", 1, "--host", "a", "--insecure")
    folder = tmp_path / "f" / ("server" if role == "server" else "device-0")
    (folder / name).parent.mkdir(exist_ok=True)
    os.mkfifo(folder / name)
    (folder / "checkpoint-0.safetensors").touch()
    line = refused(fedpbc("fleet", role, folder, "--insecure"))
    assert line == f"{folder / name} is not a regular file: remove it"
