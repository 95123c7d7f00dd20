"""MLflow, by a stand-in; and itself where it is installed."""

from __future__ import annotations

import json
import os
import socket
import sys

import pytest

from fedpbc import Config, DivergedError, resume_run, start_run
from fedpbc.experiments.execution import Watcher
from fedpbc.experiments.tracking import mlflow as own
from fedpbc.experiments.tracking.tracker import values_of
from tests.commandline import DIGITS, fedpbc, metrics, ran, refused
from tests.small_runs import compared
from tests.stand_ins import Mlflow

TRACKED = (*DIGITS, "--rounds", 8, "--evaluate-every", 2, "--track", "mlflow")
EXTRA = "needs the extra: pip install 'fedpbc[mlflow]'"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """As it is where nobody has set anything; and so it is afterwards."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", *own.DEFAULT_ENVIRONMENT):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def mlflow(monkeypatch):
    made = Mlflow()
    for name in ("alembic", "sqlalchemy"):
        monkeypatch.setitem(sys.modules, name, made)
    monkeypatch.setitem(sys.modules, "mlflow", made)
    return made


def stopping(*_):
    raise KeyboardInterrupt


def test_metrics_parameters_and_tags_are_there(mlflow, tmp_path):
    ran("run", *TRACKED, "--out", tmp_path / "run")
    run = mlflow.run()
    assert (run.experiment, run.name, run.status) == ("fedpbc", "run", "FINISHED")
    assert list(mlflow.stores) == [f"sqlite:///{tmp_path.resolve()}/mlflow.db"]
    assert run.params["algorithm.name"] == "fedpbc"
    assert run.params["rounds"] == "8"
    assert run.tags["folder"] == str(tmp_path.resolve() / "run")
    assert run.tags["seed"] == "0"
    told = [(m.step, m.key, m.value) for m in run.metrics]
    lines = metrics(tmp_path / "run")
    assert told == [(x["round"], *pair) for x in lines for pair in values_of(x).items()]


def test_its_telemetry_is_off_unless_the_user_wants_it(mlflow, monkeypatch):
    own.check()
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "false")
    own.check()
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "false"


def test_the_users_server_and_experiment(mlflow, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    ran("run", *TRACKED, "--out", tmp_path / "run")
    assert list(mlflow.stores) == ["http://server"]
    assert mlflow.run().experiment == "mine"


def test_a_server_that_does_not_answer_is_an_error_at_once(mlflow, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@server")
    mlflow.gone = True
    line = refused(fedpbc("run", *TRACKED, "--out", tmp_path / "run"))
    assert line.startswith(
        "the server at MLFLOW_TRACKING_URI does not answer: MlflowException: API request failed"
    )
    assert "secret" not in line
    assert not list(tmp_path.iterdir())


def test_a_run_that_goes_on_is_the_same_run(mlflow, tmp_path):
    given = {"data": "digits", "clients": 8, "rounds": 8, "evaluate_every": 2, "track": ["mlflow"]}

    def stop(done, _):
        if done == 7:
            raise KeyboardInterrupt

    config = Config.from_dict({**given, "checkpoint_every": 3})
    with pytest.raises(KeyboardInterrupt):
        start_run(config, tmp_path / "run", watcher=Watcher(on_round=stop))
    assert mlflow.run().status == "KILLED"
    mlflow.run().metrics = [m for m in mlflow.run().metrics if m.step != 4]  # It missed one.
    statuses = set()
    watcher = Watcher(on_round=lambda *_: statuses.add(mlflow.run().status))
    resume_run(tmp_path / "run", watcher=watcher)
    assert statuses == {"RUNNING"}
    run = mlflow.run()
    assert run.status == "FINISHED"
    # Round 6 was evaluated twice.
    assert sorted(m.step for m in run.metrics if m.key == "active") == [2, 4, 6, 8]


@pytest.mark.parametrize("how", ["removed", "deleted"])
def test_a_run_that_the_server_has_no_more_begins_anew(mlflow, tmp_path, how):
    config = Config.from_dict({"data": "digits", "clients": 8, "rounds": 4, "track": ["mlflow"]})
    with pytest.raises(KeyboardInterrupt):
        start_run(config, tmp_path / "run", watcher=Watcher(on_round=stopping))
    [runs] = mlflow.stores.values()
    if how == "removed":
        runs["other"] = runs.pop("id0")
    else:
        runs["id0"].lifecycle_stage = "deleted"
    ran("resume", tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "tracking.json").read_text())["trackers"]["mlflow"]
    assert kept["run_id"] == "id1"
    assert runs["id1"].status == "FINISHED"


def test_a_failed_run_has_failed(mlflow, tmp_path):
    wild = {"train": {"learning_rate": 1e30}, "links": "always", "track": ["mlflow"]}
    with pytest.raises(DivergedError):
        start_run(Config.from_dict({"data": "digits", "clients": 8, **wild}), tmp_path / "run")
    assert mlflow.run().status == "FAILED"


def test_a_comparison_is_an_experiment(mlflow, tmp_path):
    compared(tmp_path / "cmp", "fedavg,fedpbc", track=["mlflow"])
    [runs] = mlflow.stores.values()
    assert list(mlflow.stores) == [f"sqlite:///{tmp_path.resolve()}/mlflow.db"]
    assert {run.name for run in runs.values()} == {"fedavg/seed-1", "fedpbc/seed-1"}
    assert {(run.experiment, run.tags["group"]) for run in runs.values()} == {("cmp", "cmp")}


def test_another_run_was_quicker_to_make_the_experiment(mlflow, tmp_path, monkeypatch):
    from tests.stand_ins import Client

    ask, asked = Client.get_experiment_by_name, []

    def late(self, name):
        asked.append(name)
        if len(asked) == 1:
            self.experiments.append(name)
            return None
        return ask(self, name)

    monkeypatch.setattr(Client, "get_experiment_by_name", late)
    ran("run", *TRACKED, "--out", tmp_path / "run")
    assert mlflow.run().experiment == "fedpbc"


# ---- itself


@pytest.fixture
def real(monkeypatch, tmp_path):
    for name in ("alembic", "sqlalchemy"):
        pytest.importorskip(name, reason=EXTRA)
    monkeypatch.chdir(tmp_path)
    for name, value in own.DEFAULT_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return pytest.importorskip("mlflow", reason=EXTRA)


@pytest.mark.filterwarnings("default")
def test_in_a_database_of_its_own(real, tmp_path):
    run = tmp_path / "runs" / "a"
    ended = fedpbc("run", *TRACKED, "--set", "checkpoint_every=1", "--out", run)
    assert (ended.code, ended.err) == (0, "")
    client = real.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/runs/mlflow.db")
    experiment = client.get_experiment_by_name("fedpbc")
    [found] = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("a", "FINISHED")
    assert found.data.params["links.name"] == "bernoulli_varying"
    lines = metrics(run)
    for key, value in values_of(lines[-1]).items():
        history = client.get_metric_history(found.info.run_id, key)
        assert [m.step for m in history] == [2, 4, 6, 8]
        assert history[-1].value == value
    # Only what is said in the documentation is there.
    assert {entry.name for entry in tmp_path.iterdir()} == {"runs"}
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"a", "mlflow.db", ".mlflow.lock"}
    # It goes on after its last rounds were lost; what is there already is not there twice.
    (run / "summary.json").unlink()
    for checkpoint in run.glob("checkpoint-000000[67]*"):
        checkpoint.unlink()
    ended = fedpbc("resume", run)
    assert (ended.code, ended.err) == (0, "")
    [again] = client.search_runs([experiment.experiment_id])
    assert again.info.run_id == found.info.run_id
    assert again.info.status == "FINISHED"
    assert [m.step for m in client.get_metric_history(again.info.run_id, "active")] == [2, 4, 6, 8]


@pytest.mark.filterwarnings("default")
def test_runs_side_by_side_share_a_database(real, tmp_path):
    options = ("--algorithms", "fedavg,fedpbc", "--seeds", "0", "--jobs", 2)
    ended = fedpbc("compare", *TRACKED, *options, "--out", tmp_path / "runs" / "cmp")
    assert (ended.code, ended.err) == (0, "")
    client = real.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/runs/mlflow.db")
    found = client.search_runs([client.get_experiment_by_name("cmp").experiment_id])
    assert {r.info.run_name for r in found} == {"fedavg/seed-0", "fedpbc/seed-0"}
    assert {r.info.status for r in found} == {"FINISHED"}


@pytest.mark.filterwarnings("default")
def test_a_server_that_is_not_there(real, tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free.getsockname()[1]}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    line = refused(fedpbc("run", *TRACKED, "--out", tmp_path / "run"))
    assert line.startswith("the server at MLFLOW_TRACKING_URI does not answer: ")
    assert not list(tmp_path.iterdir())
