from __future__ import annotations

import json
from functools import partial

import pytest
import torch

from fedpbc.deployment.settings import FleetSettings, read_fleet, task_of_client
from fedpbc.deployment.user_app import load_user_app
from fedpbc.engines.segment import Segment
from fedpbc.engines.serial import train
from fedpbc.errors import FedpbcError, InputError

APP = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))

def data(client):
    random = torch.Generator().manual_seed(client)
    return torch.randn(20 + client, 4, generator=random), torch.arange(20 + client) % 3
"""
FLEET = """
rounds = 4
seed = 7
clients = 3
[train]
batch_size = 8
[fleet]
app = "mine.py"
round_seconds = 2.5
"""


@pytest.fixture
def fleet(tmp_path):
    (tmp_path / "mine.py").write_text(APP)
    (tmp_path / "fleet.toml").write_text(FLEET)
    return read_fleet(tmp_path / "fleet.toml")


def test_one_clients_task_has_the_bits_of_the_whole_fleets(fleet):
    whole = fleet.whole_task()
    x0, layout = fleet.first_model()
    assert torch.equal(x0, whole.init())
    assert layout == whole.layout
    app = load_user_app(fleet.fleet.app)
    for client in range(3):
        task = task_of_client(fleet.client_settings(), client, app=app, device="cpu")
        segment = Segment(client, x0, first_round=1, rounds=3, first_batch=5)
        assert torch.equal(train(task, segment).end, train(whole, segment).end)


def test_a_devices_data_stays_on_it(fleet, tmp_path):
    (tmp_path / "one.py").write_text(APP.replace("random =", "assert client == 1\n    random ="))
    app = load_user_app(tmp_path / "one.py")
    task_of_client(fleet.client_settings(), 1, app=app, device="cpu")
    with pytest.raises(InputError, match=r"data\(0\) fails"):
        task_of_client(fleet.client_settings(), 0, app=app, device="cpu")


def test_the_default_task_is_the_simulators():
    settings = FleetSettings.from_dict({"data": "digits", "clients": 5, "seed": 2})
    whole = settings.whole_task()
    task = task_of_client(settings.client_settings(), 3, device="cpu")
    segment = Segment(3, whole.init(), first_round=0, rounds=2, first_batch=0)
    assert torch.equal(train(task, segment).end, train(whole, segment).end)


def test_the_servers_settings_are_checked(fleet):
    app = load_user_app(fleet.fleet.app)
    make = partial(task_of_client, client=0, device="cpu")
    with pytest.raises(FedpbcError, match="--app"):
        make(fleet.client_settings())
    settings = json.loads(fleet.client_settings())
    for wrong in (
        {"train": {"learning_rate": -1.0}},
        {"train": {"plugins": ["/etc/passwd"]}},
        {"clients": 0},
        {"seed": "x"},
        {"clients": None},
    ):
        with pytest.raises(FedpbcError):
            make(json.dumps({**settings, **wrong}), app=app)
    with pytest.raises(FedpbcError):
        make("{", app=app)
    other_data = {**settings, "data": {"name": ["x"], "alpha": 0.1}, "model": {"name": "mlp"}}
    with pytest.raises(FedpbcError):
        make(json.dumps(other_data))
    with pytest.raises(InputError, match="from 0 to 2"):
        task_of_client(fleet.client_settings(), 3, app=app, device="cpu")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1", r"a function model\(\)"),
        ("def model(): ...", r"a function data\(client\)"),
        ("def model(: ...", "importable"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, content, message):
    (tmp_path / "mine.py").write_text(content)
    with pytest.raises(InputError, match=message):
        load_user_app(tmp_path / "mine.py")


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ("return 3", "return [1.0], [0]", "model\\(\\) returns a int"),
        ("raise OSError('gone')", "return [1.0], [0]", "model\\(\\) fails: OSError: gone"),
        ("return torch.nn.Linear(4, 2)", "return 5", "a pair: inputs and labels"),
        ("return torch.nn.Linear(4, 2)", "return torch.ones(3, 4), torch.ones(2)", "3 inputs"),
    ],
)
def test_a_wrong_model_or_data_is_one_line(tmp_path, model, data, message):
    text = f"import torch\ndef model():\n    {model}\ndef data(client):\n    {data}\n"
    (tmp_path / "mine.py").write_text(text)
    app = load_user_app(tmp_path / "mine.py")
    settings = FleetSettings.from_dict({"clients": 2, "fleet": {"app": "mine.py"}})
    with pytest.raises(InputError, match=message):
        task_of_client(settings.client_settings(), 0, app=app, device="cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "clients is missing"),
        ({"clients": 3, "algorithm": "fedavg_known"}, "no server knows them"),
        ({"clients": 3, "fleet": {"round_seconds": 0.0}}, "fleet.round_seconds is 0.0"),
        ({"clients": 3, "fleet": {"wait_for": 4}}, "at most the 3 clients"),
        ({"clients": 3, "fleet": 7}, "a table"),
        ({"clients": 3, "fleet": {"rond_seconds": 1.0}}, "did you mean 'round_seconds'"),
    ],
)
def test_a_wrong_fleet_is_one_line(options, message):
    with pytest.raises(InputError, match=message):
        FleetSettings.from_dict(options)
