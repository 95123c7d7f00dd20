"""The folder of a fleet's server as ``--trace``."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpbc.errors import InputError
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.overrides import configuration_values
from fedpbc.experiments.trust import remember_plugins
from fedpbc.links.link_log import link_log
from tests.commandline import fedpbc, refused

APP = """
import torch
from torch import nn

def model():
    return nn.Linear(3, 2)

def data(client):
    return torch.ones(20, 3), torch.arange(20) % 2
"""
FLEET = """
rounds = 500
seed = 7
clients = 3
algorithm = "mifa"
{data}
[train]
learning_rate = 0.3
[fleet]
round_seconds = 10.0
{app}
"""


def write_fleet(folder: Path, *, app: str = "", data: str = "") -> Path:
    folder.mkdir()
    (folder / "fleet.toml").write_text(FLEET.format(app=app, data=data))
    (folder / "links.csv").write_text(link_log([[0], [0, 2], [], [1]], 3, 10.0))
    return folder


def test_the_fleets_data_settings_and_rounds(tmp_path):
    fleet = write_fleet(tmp_path / "server", data='[data]\nname = "digits"\nalpha = 0.7\n')
    for given in (fleet, tmp_path):
        values = configuration_values(None, {}, trace=given)
        assert values == {
            "clients": 3,
            "rounds": 4,
            "data": {"name": "digits", "alpha": 0.7},
            "train": {"learning_rate": 0.3},
            "links": {"name": "trace", "file": str(fleet / "links.csv"), "round_seconds": 10.0},
        }
        Config.from_dict(values)


def test_the_fleets_app_needs_trust_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    fleet = write_fleet(tmp_path / "server", app='app = "app.py"')
    (fleet / "app.py").write_text(APP + f"# {tmp_path}\n")
    with pytest.raises(InputError, match="has an app that you have not run on this machine"):
        configuration_values(None, {}, trace=fleet)
    remember_plugins([str(fleet / "app.py")])
    values = configuration_values(None, {}, trace=fleet)
    assert values["task"] == {"app": str(fleet / "app.py")}
    assert (values["clients"], values["rounds"]) == (3, 4)
    Config.from_dict(values)


def test_clients_that_joined_are_among_them(tmp_path):
    fleet = write_fleet(tmp_path / "server")
    (fleet / "links.csv").write_text(link_log([[0], [4]], 5, 10.0))
    assert configuration_values(None, {}, trace=fleet)["clients"] == 5
    assert configuration_values(None, {"clients": 2}, trace=fleet)["clients"] == 2


def test_options_outrank_the_fleet(tmp_path):
    fleet = write_fleet(tmp_path / "server", app='app = "gone.py"')
    options = {"data.name": "digits", "rounds": 9, "train.learning_rate": 0.1}
    values = configuration_values(None, options, trace=fleet)
    assert "task" not in values
    assert (values["rounds"], values["train"]["learning_rate"]) == (9, 0.1)
    assert values["data"] == {"name": "digits"}


def test_folders_without_links_are_named(tmp_path):
    with pytest.raises(InputError, match=r"--trace is .*, but should be a CSV file, or the folder"):
        configuration_values(None, {}, trace=tmp_path)
    fleet = write_fleet(tmp_path / "server")
    (fleet / "links.csv").unlink()
    with pytest.raises(InputError, match=r"one with links.csv: a server writes it every 100"):
        configuration_values(None, {}, trace=fleet)


@pytest.mark.parametrize("name", ["fleet.toml", "links.csv", "server"])
@pytest.mark.parametrize("command", ["links", "run"])
def test_a_link_out_of_the_folder_is_not_followed(tmp_path, name, command):
    data = '[data]\nname = "digits"\n'
    write_fleet(tmp_path / "outside", data=data)
    sent = tmp_path / "sent"
    if name == "server":
        sent.mkdir()
        (sent / name).symlink_to(tmp_path / "outside")
    else:
        write_fleet(sent, data=data)
        (sent / name).unlink()
        (sent / name).symlink_to(tmp_path / "outside" / name)
    options = ("--out", tmp_path / "new") if command == "run" else ()
    line = refused(fedpbc(command, "--trace", sent, *options))
    assert "is a link out of its folder, not followed" in line
    assert str(sent / name) in line


def test_a_link_inside_the_folder_is(tmp_path):
    # Systems that mount configurations make such links.
    fleet = write_fleet(tmp_path / "server", data='[data]\nname = "digits"\n')
    (fleet / "versions").mkdir()
    (fleet / "fleet.toml").rename(fleet / "versions" / "fleet.toml")
    (fleet / "fleet.toml").symlink_to("versions/fleet.toml")
    assert configuration_values(None, {}, trace=fleet)["clients"] == 3
