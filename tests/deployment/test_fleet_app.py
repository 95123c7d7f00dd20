from __future__ import annotations

import json
from functools import partial

import pytest
import torch

from fedpbc import Supervised
from fedpbc.algorithms import ALGORITHMS
from fedpbc.data import SOURCES
from fedpbc.deployment.settings import FleetSettings, read_fleet, rule_of_client, task_of_client
from fedpbc.engines.segment import Segment
from fedpbc.engines.serial import train
from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.plugins import load_plugin
from fedpbc.experiments.user_app import load_user_app
from fedpbc.tasks.networks import MODELS
from tests.data.test_registration import PLUGIN as DATA_PLUGIN

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


def test_options_of_data_and_model_reach_the_devices():
    section = {"data": {"name": "shakespeare", "length": 12}, "clients": 3, "seed": 2}
    section |= {"train": {"local_steps": 1, "batch_size": 2}}
    settings = FleetSettings.from_dict({**section, "model": {"name": "lstm", "hidden": 8}})
    sent = json.loads(settings.client_settings())
    assert sent["data"] == {"name": "shakespeare", "alpha": 0.1, "length": 12}
    assert sent["model"] == {"name": "lstm", "embedding": 8, "hidden": 8, "layers": 2}
    whole = settings.whole_task()
    assert isinstance(whole, Supervised)
    task = task_of_client(settings.client_settings(), 2, device="cpu")
    segment = Segment(2, whole.init(), first_round=0, rounds=1, first_batch=0)
    assert torch.equal(train(task, segment).end, train(whole, segment).end)
    assert whole.data.inputs.shape[1] == 12
    plain = FleetSettings.from_dict({"data": "digits", "clients": 5})
    assert json.loads(plain.client_settings())["data"] == {"name": "digits", "alpha": 0.1}
    assert json.loads(plain.client_settings())["model"] == {"name": "mlp"}


@pytest.mark.parametrize(
    ("algorithm", "optimizer"),
    [("focus", "momentum"), ("scaffold", "adam"), ("amplified_scaffold", "RMSprop")],
)
def test_local_steps_that_an_algorithm_cannot_use_are_refused(algorithm, optimizer):
    section = {"data": "digits", "clients": 5, "algorithm": algorithm}
    with pytest.raises(InputError, match=rf"^train\.optimizer is '{optimizer}', but should be"):
        FleetSettings.from_dict({**section, "train": {"optimizer": optimizer}})


def test_a_server_cannot_name_a_folder_of_the_device():
    settings = json.loads(
        FleetSettings.from_dict({"data": "digits", "clients": 5}).client_settings()
    )
    settings["data"]["dir"] = "/etc"
    task_of_client(json.dumps(settings), 0, device="cpu")
    settings["data"]["window"] = 3
    with pytest.raises(InputError, match=r"data\.window is unknown"):
        task_of_client(json.dumps(settings), 0, device="cpu")


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
        ("return torch.nn.Linear(4, 2)", "return 5", "a pair, inputs and labels"),
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


PLUGIN = """
from fedpbc import Algorithm, ClientResult, ClientRule, mean, register_algorithm


class Rule(ClientRule):
    keeps = ("drift",)

    def __init__(self, pull):
        self.pull = pull

    def correction(self, work):
        return self.pull * work.state["drift"]

    def finish(self, work, end):
        return ClientResult(state={"drift": end - work.start})


@register_algorithm
class Mine(Algorithm):
    name = "mine_in_a_fleet"

    def __init__(self, init, *, pull: float = 0.1):
        super().__init__(init)
        self.pull = pull

    def aggregate(self, round, updates):
        self.x = mean(update.model for update in updates) if updates else self.x

    def client_rule(self):
        return Rule(self.pull * self.global_lr)
"""


def test_the_settings_name_an_algorithm_only_where_devices_need_it():
    """Jobs of plain algorithms go on with the settings that they started with."""
    plain = FleetSettings.from_dict({"clients": 3, "data": "digits"}).client_settings()
    assert json.loads(plain).keys() == {"clients", "data", "model", "seed", "train"}
    options = {"clients": 3, "train": {"global_learning_rate": 0.5}}
    for memory, expected in (
        ("server", None),
        (
            "client",
            {
                "name": "mifa",
                "options": {"memory": "client", "over": "all", "rescale": False},
                "global_learning_rate": 0.5,
            },
        ),
    ):
        algorithm = {"name": "mifa", "memory": memory}
        settings = FleetSettings.from_dict({**options, "algorithm": algorithm}).client_settings()
        assert json.loads(settings).get("algorithm") == expected


def test_a_device_builds_the_rule_that_the_settings_name(fleet):
    task = fleet.whole_task()
    settings = json.loads(fleet.client_settings())

    def rule(name, rate=1.0, **options):
        section = {"name": name, "options": options, "global_learning_rate": rate}
        return rule_of_client(json.dumps({**settings, "algorithm": section}), task)

    assert rule_of_client(fleet.client_settings(), task) is None
    assert rule("fedpbc") is None
    assert rule("mifa", memory="server") is None
    assert rule("mifa", memory="client", rescale=True).rescale is True
    assert rule("focus").has_own_steps
    assert rule("amplified_scaffold", window=7).window == 7


def test_an_algorithm_of_a_plugin_is_built_where_the_plugin_is(fleet, tmp_path):
    task = fleet.whole_task()
    section = {"name": "mine_in_a_fleet", "options": {"pull": 2}, "global_learning_rate": 0.5}
    settings = json.dumps({**json.loads(fleet.client_settings()), "algorithm": section})
    with pytest.raises(FedpbcError) as unknown:
        rule_of_client(settings, task)
    assert str(unknown.value) == (
        "the server's algorithm 'mine_in_a_fleet' is unknown on this device: install the server's "
        "version of fedpbc, or name the plugin in device.toml"
    )
    (tmp_path / "plugin.py").write_text(PLUGIN)
    load_plugin(str(tmp_path / "plugin.py"))
    try:
        assert rule_of_client(settings, task).pull == 1.0
    finally:
        del ALGORITHMS["mine_in_a_fleet"]


def test_data_and_model_of_a_plugin_are_built_where_the_plugin_is(tmp_path):
    plugin = tmp_path / "own.py"
    plugin.write_text(DATA_PLUGIN)
    data = {"name": "own_rows", "scale": 2.0}
    options = {"rounds": 3, "clients": 3, "data": data, "plugins": [str(plugin)]}
    settings = FleetSettings.from_dict({**options, "model": {"name": "own_net", "width": 5}})
    sent, whole = settings.client_settings(), settings.whole_task()
    assert "own.py" not in sent
    task = task_of_client(sent, 1, device="cpu")
    assert torch.equal(task.init(), whole.init())
    assert task.layout == whole.layout
    assert task.class_shares[1].tolist() == whole.class_shares[1].tolist()
    for registry, kind, name in ((MODELS, "model", "own_net"), (SOURCES, "data set", "own_rows")):
        del registry[name]
        with pytest.raises(FedpbcError) as unknown:
            task_of_client(sent, 1, device="cpu")
        assert str(unknown.value) == (
            f"the server's {kind} '{name}' is unknown on this device: install the server's version "
            "of fedpbc, or name the plugin in device.toml"
        )


@pytest.mark.parametrize(
    "section",
    [
        3,
        [],
        "scaffold",
        {},
        {"name": "scaffold"},
        {"name": ["scaffold"], "options": {}, "global_learning_rate": 1.0},
        {"name": "/etc/passwd", "options": {}, "global_learning_rate": 1.0},
        {"name": "scaffold", "options": {"plugins": ["/x.py"]}, "global_learning_rate": 1.0},
        {"name": "mifa", "options": {"memory": "/etc/passwd"}, "global_learning_rate": 1.0},
        {"name": "mifa", "options": 7, "global_learning_rate": 1.0},
        {"name": "scaffold", "options": {}, "global_learning_rate": "x"},
        {"name": "scaffold", "options": {}, "global_learning_rate": -1},
    ],
    ids=str,
)
def test_a_wrong_algorithm_in_the_settings_is_one_line(fleet, section):
    settings = json.dumps({**json.loads(fleet.client_settings()), "algorithm": section})
    with pytest.raises(FedpbcError) as wrong:
        rule_of_client(settings, fleet.whole_task())
    assert "\n" not in str(wrong.value)
