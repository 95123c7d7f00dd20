"""An app file as a task: what is trained on, what identifies a run, and who may run it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from torch import nn

from fedpbc import Config, InputError, start_run
from fedpbc.experiments import trust
from fedpbc.experiments.build import build_experiment, build_task
from fedpbc.experiments.comparison_directory import plan_comparison
from fedpbc.experiments.resume import resume_run
from fedpbc.experiments.user_app import HELD_OUT, UserApp, load_user_app
from fedpbc.tasks import LocalTraining, Supervised
from fedpbc.tasks.losses import LOSSES
from tests.commandline import fedpbc, refused

APP = """
import torch
from torch import nn

def model():
    return nn.Linear(4, 3)

def data(client):
    random = torch.Generator().manual_seed(client)
    return torch.randn(20 + client, 4, generator=random), torch.arange(20 + client) % 3
"""
TEST = """
def test():
    return torch.zeros(6, 4), torch.arange(6) % 3
"""


def worked(*arguments: object) -> None:
    """Run a command; a note on the test data goes to standard error."""
    ended = fedpbc(*arguments)
    assert ended.code == 0, ended.err
    assert ended.err in ("", f"fedpbc: note: {HELD_OUT}\n")


@pytest.fixture
def app(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trust, "_remembered", set())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


def supervised(**more) -> Supervised:
    task = build_task(configured(**more))
    assert isinstance(task, Supervised)
    return task


def configured(**more):
    values = {"task": {"app": "app.py"}, "clients": 3, "rounds": 4, "links": {"name": "always"}}
    return Config.from_dict({**values, **more})


def test_a_fifth_of_each_clients_samples_is_kept_out(app):
    task = supervised(seed=5)
    # Of 20, 21 and 22 samples, four each.
    assert task.samples.tolist() == [16, 17, 18]
    assert len(task.data.test_labels) == 12
    user_app = load_user_app(app)
    for client in range(3):
        inputs, _ = user_app.samples(client)
        trained = {tuple(row) for row in task.data.inputs[task.parts[client]].tolist()}
        tested = {tuple(row) for row in task.data.test_inputs[4 * client : 4 * client + 4].tolist()}
        assert trained | tested == {tuple(row) for row in inputs.tolist()}
        assert not trained & tested
    # The same for every seed: a search with one seed must not see what another one is tested on.
    again, other = supervised(seed=5), supervised(seed=6)
    assert task.fingerprint() == again.fingerprint() == other.fingerprint()
    assert build_experiment(configured()).notes == (HELD_OUT,)
    values = {"task": {"app": "app.py"}, "clients": 3, "rounds": 2}
    with pytest.warns(RuntimeWarning, match="a fifth of each client's samples"):
        plan_comparison(values)


def test_data_without_a_seed_can_be_resumed(app):
    app.write_text(APP.replace(", generator=random", ""))
    torch.manual_seed(1)
    first = supervised().fingerprint()
    state = torch.random.get_rng_state()
    assert supervised().fingerprint() == first
    assert torch.equal(torch.random.get_rng_state(), state)


def test_test_data_of_ones_own(app):
    app.write_text(APP + TEST)
    task = supervised()
    assert task.samples.tolist() == [20, 21, 22]
    assert torch.equal(task.data.test_inputs, torch.zeros(6, 4))
    assert build_experiment(configured()).notes == ()
    # A client trains on the same batches as its device.
    whole = load_user_app(app).whole_task(clients=3, seed=0, training=LocalTraining())
    model = task.init()
    assert torch.equal(model, whole.init())
    args = (1, model, 0, 0, None)
    assert torch.equal(task.local_steps(*args), whole.local_steps(*args))


METRICS = """
def share_of_0(outputs, labels):
    return (outputs.argmax(1) == 0).float().mean()

metrics = {"share_of_0": share_of_0}
"""


def test_metrics_of_ones_own(app, tmp_path):
    app.write_text(APP + TEST + METRICS)
    values = {"task": {"app": "app.py"}, "clients": 3, "rounds": 4, "evaluate_every": 2}
    start_run(Config.from_dict(values), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    for line in lines:
        for evaluation in line["views"].values():
            # Of zeros a linear model makes the same of every sample.
            assert evaluation["share_of_0"] in (0.0, 1.0)
    worked("report", tmp_path / "run", "--out", "page.html")
    assert '<option value="share_of_0">share of 0</option>' in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (APP + "\nmetrics = 3", "a file whose metrics are a table of functions"),
        (APP + "\nmetrics = {'f1': 3}", r"metrics\['f1'\] is 3, but should be a function"),
        (APP + "\ntest = 3", "a file whose test is a function"),
        (APP + "\ndef test():\n    return 3", r"test\(\) returns a int"),
        (
            APP + "\ndef test():\n    return torch.ones(2, 4), torch.ones(3)",
            "2 inputs and 3 labels",
        ),
        (APP.replace("20 + client", "4"), r"define test\(\)"),
        (APP.replace("client, 4", "client, 4 + client"), r"data\(1\) returns samples of shape"),
        (
            APP.replace("return torch.randn", "raise OSError('gone')\n    return torch.randn"),
            "gone",
        ),
    ],
)
def test_a_wrong_app_is_one_line(app, content, message):
    app.write_text(content)
    with pytest.raises(InputError, match=message):
        supervised()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--app", "app.py"), "clients is missing"),
        (("--app", "none.py", "--clients", 3), "a Python file that exists"),
        (("--app", "app.py", "--clients", 3, "--data", "digits"), "does not use it"),
        (("--app", "app.py", "--clients", 3, "--model", "mlp"), "does not use it"),
        (("--set", "task.name=app", "--clients", 3), "task.app is missing"),
        (("--app", "app.py", "--clients", 3, "--set", "task.name=quadratic"), "task.targets is"),
    ],
)
def test_wrong_options(app, options, message):
    assert message in refused(fedpbc("run", *options, "--rounds", 2, "--out", "out"))
    assert not (app.parent / "out").exists()


def test_what_one_seed_tests_no_other_seed_has_trained_on_or_been_tuned_on():
    def data(client):
        numbers = torch.arange(40.0) + 1000 * client
        return numbers[:, None], (numbers % 2).long()

    mine = UserApp(lambda: nn.Linear(1, 2), data)

    def parts(seed, validation):
        task = mine.simulated_task(
            clients=4, seed=seed, training=LocalTraining(), validation=validation
        )
        trained = {x.item() for client in range(4) for x in task.data.samples_of(client)[0]}
        return trained, {x.item() for x in task.data.test_inputs}

    tested = [parts(seed, 0.0)[1] for seed in range(4)]
    assert len(tested[0]) == 4 * 8
    assert all(other == tested[0] for other in tested)
    for seed in range(4):
        trained, held_out = parts(seed, 0.25)
        assert (len(trained), len(held_out)) == (4 * 24, 4 * 8)
        assert not tested[0] & (trained | held_out)


def test_the_path_is_kept_and_the_content_identifies_the_run(app, tmp_path):
    worked("run", "--app", "app.py", "--clients", 3, "--rounds", 4, "--out", "run")
    values = (tmp_path / "run" / "config.toml").read_text()
    assert f'app = "{app}"' in values
    assert not (tmp_path / "run" / "inputs").exists()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    # Elsewhere, with the same content: the same run.
    (tmp_path / "there").mkdir()
    shutil.copy(app, tmp_path / "there" / "app.py")
    same = start_run(configured(task={"app": "there/app.py"}, links={}), tmp_path / "same")
    assert same["fingerprint"] == summary["fingerprint"]
    assert np.isclose(same["views"]["server"]["test_loss"], summary["views"]["server"]["test_loss"])
    worked("verify", "run")
    worked("theory", "run")
    worked("report", "run")
    # Another loss is another run, although data and model are the same.
    (tmp_path / "run" / "summary.json").unlink()
    app.write_text(APP + "\nloss = nn.functional.cross_entropy\n")
    with pytest.raises(Exception, match="belongs to another run"):
        resume_run(tmp_path / "run", trust=True)
    app.write_text(APP)
    assert resume_run(tmp_path / "run")["fingerprint"] == summary["fingerprint"]


def test_a_configuration_names_it_relative_to_itself(app, tmp_path):
    (tmp_path / "sub").mkdir()
    shutil.move(app, tmp_path / "sub" / "mine.py")
    (tmp_path / "sub" / "c.toml").write_text(
        'rounds = 2\nclients = 3\n[task]\napp = "mine.py"\n[links]\nname = "bernoulli"\np = 0.5\n'
    )
    worked("run", "sub/c.toml", "--out", "a")
    # --app outranks the file's task, whatever it was.
    (tmp_path / "d.toml").write_text(
        'rounds = 2\n[data]\nname = "digits"\n[links]\nname="always"\n'
    )
    worked("run", "d.toml", "--app", "sub/mine.py", "--clients", 3, "--out", "b")


def test_a_fleets_log_has_its_clients(app, tmp_path):
    (tmp_path / "log.csv").write_text(
        "# round_seconds = 10\nclient,online_from_s,online_until_s\na,0,100\nb,0,50\nc,20,90\n"
    )
    worked("run", "--app", "app.py", "--trace", "log.csv", "--rounds", 3, "--out", "out")
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["clients"] == 3


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "arguments",
    [
        ("resume", "run"),
        ("theory", "run"),
        ("links", "run"),
        ("run", "run/config.toml", "--out", "new"),
        ("resume", "compared"),
        ("compare", "compared/compare.toml", "--out", "new"),
    ],
    ids=" ".join,
)
def test_an_app_that_was_sent_needs_trust(app, tmp_path, monkeypatch, arguments):
    mark = tmp_path / "mark"
    app.write_text(
        APP + TEST + f"\nfrom pathlib import Path\nPath({str(mark)!r}).write_text('ran')\n"
    )
    options = ("--app", "app.py", "--clients", 3, "--rounds", 2)
    worked("run", *options, "--out", "run")
    (tmp_path / "run" / "summary.json").unlink()
    worked(
        "compare",
        *options,
        "--algorithms",
        "fedavg",
        "--seeds",
        0,
        "--jobs",
        1,
        "--out",
        "compared",
    )
    mark.unlink()
    monkeypatch.setattr(trust, "_remembered", set())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "receiver"))
    assert "has an app that you have not run on this machine" in refused(fedpbc(*arguments))
    assert not mark.exists()
    assert fedpbc(*arguments, "--trust").code == 0
    if arguments[0] != "resume" or arguments[1] == "run":
        assert mark.exists()
    assert fedpbc(*arguments[:2], *(("--out", "next") if len(arguments) > 2 else ())).code == 0


@pytest.mark.slow
def test_classes_of_the_app_reach_other_processes(app, tmp_path):
    mine = "class Mine(nn.Linear):\n    pass\n\ndef model():\n    return Mine(4, 3)\n"
    app.write_text(f"{APP}\n{mine}")
    serial = start_run(configured(engine="serial"), tmp_path / "serial")
    pool = start_run(configured(engine="pool", workers=2), tmp_path / "pool")
    assert serial["views"] == pool["views"]


REGRESSION = """
import torch
from torch import nn

loss = "squared"

def model():
    return nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))

def data(client):
    random = torch.Generator().manual_seed(client)
    x = torch.randn(20, 4, generator=random)
    return x, x.sum(1)
"""


def test_an_apps_loss_is_a_name_or_the_settings(tmp_path):
    (tmp_path / "app.py").write_text(REGRESSION)
    values = {
        "task": {"app": str(tmp_path / "app.py")},
        "clients": 3,
        "links": {"name": "bernoulli", "p": 0.5},
    }
    task = build_task(Config.from_dict(values))
    assert isinstance(task, Supervised)
    assert task.loss is LOSSES["squared"].function
    assert set(task.evaluate(task.init()).extra) == {"mae", "rmse"}
    more = {**values["task"], "loss": "huber", "running_statistics": "client"}
    task = build_task(Config.from_dict({**values, "task": more}))
    assert isinstance(task, Supervised)
    assert task.loss is LOSSES["huber"].function
    assert task.layout.without_kept().names == ("0.weight", "0.bias", "2.weight", "2.bias")
    with pytest.raises(InputError, match=r"task\.loss is 'hubert', but should be"):
        Config.from_dict({**values, "task": {**more, "loss": "hubert"}})


@pytest.mark.slow
def test_a_regression_from_the_command_line(tmp_path):
    (tmp_path / "app.py").write_text(REGRESSION)
    arguments = ("run", "--app", tmp_path / "app.py", "--clients", 3, "--rounds", 2)
    settings = ("--set", "task.loss=absolute", "--set", "links.p=0.5", "--links", "bernoulli")
    worked(*arguments, *settings, "--evaluate-every", 2, "--out", tmp_path / "run")
    [line] = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert {"mae", "rmse"} <= set(json.loads(line)["views"]["server"])
