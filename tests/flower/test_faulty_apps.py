"""Apps that cannot take part as they are: an error that names the remedy, not a job of nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

from fedpbc.errors import InputError
from fedpbc.flower import CAFed, FedAvg, FedPBC, Scaffold, catch_up_mod, correction_of, strategy_for
from fedpbc.flower.messages import PROTOCOL
from tests import small_runs as small
from tests.flower.fake_grid import NAMES, app_of, cut, grid_of, record_of, vector_of
from tests.flower.test_against_simulator import assert_same

QUIET = {"fraction_evaluate": 0.0, "norm_factor": 0.0}
RATES = {"learning_rate": 0.1, "local_steps": 3, **QUIET}


def app_that_reads(task, read, *mods, **metrics) -> ClientApp:
    """The test app, but for what it does with the correction."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        start = torch.from_numpy(vector_of(message.content["arrays"]))
        read(message)
        end = task.local_steps(context.node_config["partition-id"], start, 0, 0, None)
        record = MetricRecord({"num-examples": 1, **metrics})
        records = {"arrays": record_of(end.numpy()), "metrics": record}
        return Message(RecordDict(records), reply_to=message)

    return app


def started(strategy, app, task, rounds=4, clients=7):
    initial = record_of(task.init().numpy())
    return strategy.start(grid_of(app, clients), initial, num_rounds=rounds)


def by_other_names(message):
    """As an app whose arrays are numbered and whose parameters have names."""
    correction = correction_of(message)
    return [correction[name] for name in ("0.weight", "0.bias") if name in correction]


@pytest.mark.parametrize("name", ["scaffold", "amplified_scaffold"])
@pytest.mark.parametrize("read", [lambda message: None, correction_of, by_other_names])
def test_an_app_that_does_not_correct_its_gradients_is_refused(name, read, caplog):
    task = small.quadratic(decay=False)
    line = (
        f"no client can take part. Node 100: {name} corrects every gradient, but train has not "
        r"read the correction: in train, add correction_of\(msg\) of fedpbc.flower to the "
        "gradients of first, second"
    )
    with pytest.raises(InputError, match=line):
        started(strategy_for(name, **RATES), app_that_reads(task, read, catch_up_mod), task)
    client = f"nothing is uploaded: {name} corrects every gradient"
    assert client in caplog.text


@pytest.mark.parametrize(
    "read",
    [
        lambda message: dict(correction_of(message)),
        lambda message: list(correction_of(message).items()),
        lambda message: [correction_of(message)[name] for name in NAMES],
        lambda message: correction_of(message).get("second"),
    ],
)
def test_whichever_way_the_correction_is_read(read):
    task = small.quadratic(decay=False)
    app = app_that_reads(task, read, catch_up_mod)
    strategy = Scaffold(**RATES)
    started(strategy, app, task, 2)
    assert strategy.state()["job"]["table"].all()


def strict(message):
    if not len(message.content["arrays"]):
        raise KeyError("first")


@pytest.mark.parametrize("name", ["fedpbc", "scaffold"])
@pytest.mark.parametrize("read", [lambda message: None, strict])
def test_an_app_without_the_mod_is_refused(name, read):
    """Also one that fails without a model, which for the server might be a link that is down."""
    task, rounds = small.quadratic(), []

    def note(message, context, call_next):
        rounds.append(message.content["config"]["server-round"])
        return call_next(message, context)

    strategy = strategy_for(name, **(RATES if name == "scaffold" else QUIET))
    line = (
        "no client can take part. Node 100: its ClientApp has no catch_up_mod: "
        r"write ClientApp\(mods=\[catch_up_mod\]\)"
    )
    with pytest.raises(InputError, match=line):
        started(strategy, app_that_reads(task, read, note), task)
    assert max(rounds) <= 2


def test_a_mod_that_is_there_twice_is_refused():
    """It would train what is owed once more for every round that is owed."""
    task = small.quadratic()
    app = app_that_reads(task, lambda message: None, catch_up_mod, catch_up_mod)
    with pytest.raises(InputError, match=r"catch_up_mod is there twice: write ClientApp\(mods=\["):
        started(FedPBC(**QUIET), app, task)


def test_a_metric_that_the_algorithm_needs_is_named():
    task = small.quadratic()
    app = app_that_reads(task, lambda message: None, catch_up_mod)
    with pytest.raises(InputError, match="ca_fed needs the metric 'start-loss' of train"):
        started(CAFed(**QUIET), app, task)


def test_another_version_of_the_package_is_named():
    task = small.quadratic()

    def newer(message, context, call_next):
        record = {**message.content[PROTOCOL], "version": 99}
        message.content[PROTOCOL] = ConfigRecord(record)
        return call_next(message, context)

    app = app_that_reads(task, lambda message: None, newer, catch_up_mod)
    with pytest.raises(InputError, match="the server has another version of fedpbc than this"):
        started(FedPBC(**QUIET), app, task)


def test_one_faulty_client_does_not_end_the_job_of_the_others(caplog):
    task = small.quadratic()
    grid = grid_of(app_of(task, batches="participations"), 7)
    grid.nodes[104].app = app_that_reads(task, lambda message: None, catch_up_mod)
    strategy = Scaffold(**{**RATES, "learning_rate": lambda t: task.training.rate(t - 1)})
    result = strategy.start(grid, record_of(task.init().numpy()), num_rounds=3)
    table = np.ones((3, 7), dtype=bool)
    table[:, 4] = False
    assert caplog.text.count("refused the reply of node 104: scaffold corrects every") == 3
    assert_same(result.views, small.views(task, "scaffold", table), bound=1e-12)


def test_a_job_whose_clients_have_all_lost_their_state_does_not_go_on_without_them(tmp_path):
    """As in another run of the app, whose contexts are new: nobody would ever be counted."""
    task = small.quadratic()
    strategies = [Scaffold(checkpoint=tmp_path / "job", **RATES) for _ in range(2)]
    app = app_of(task, batches="participations")
    started(strategies[0], app, task, 2)
    with pytest.raises(InputError, match="Node 100: has lost what it keeps"):
        started(strategies[1], app, task, 4)


def test_links_that_are_down_are_no_error_but_a_job_of_nothing_is_said(caplog):
    task = small.quadratic()
    started(FedPBC(**QUIET), app_of(task, cut(np.zeros((3, 7)))), task, 3)
    assert "no client was counted in 3 rounds: nothing is trained" in caplog.text


def test_a_wrapper_that_changes_the_model_is_refused():
    """The noise of differential privacy would reach nobody."""
    task = small.quadratic()
    private = DifferentialPrivacyServerSideFixedClipping(FedAvg(**QUIET), 1.0, 5.0, 7)
    with pytest.raises(InputError, match="the model was changed between two rounds"):
        started(private, app_of(task), task)


@pytest.mark.parametrize(
    ("begun", "later", "line"),
    [
        ({}, {"clients": 9}, "clients is 9, but the job started with 7"),
        ({"views": ["server"]}, {}, "views has corrected, which the job has not stored so far"),
    ],
)
def test_what_a_job_that_goes_on_cannot_take_up_is_refused(begun, later, line, tmp_path):
    task, file = small.quadratic(), tmp_path / "job"
    started(FedPBC(checkpoint=file, **begun, **QUIET), app_of(task), task, 2)
    with pytest.raises(InputError, match=line):
        started(FedPBC(checkpoint=file, **later, **QUIET), app_of(task), task, 4)


def test_a_job_that_has_had_more_rounds_than_asked_for_is_refused(tmp_path):
    task, file = small.quadratic(), tmp_path / "job"
    started(FedPBC(checkpoint=file, **QUIET), app_of(task), task, 5)
    with pytest.raises(InputError, match="num_rounds is 3, but should be at least 5"):
        started(FedPBC(checkpoint=file, **QUIET), app_of(task), task, 3)


def test_other_local_steps_are_another_job(tmp_path):
    task, file = small.quadratic(), tmp_path / "job"
    app = app_of(task, batches="participations")
    started(Scaffold(checkpoint=file, **RATES), app, task, 2)
    with pytest.raises(InputError, match="local_steps is 5, but the job started with 3"):
        started(Scaffold(checkpoint=file, **{**RATES, "local_steps": 5}), app, task, 4)
