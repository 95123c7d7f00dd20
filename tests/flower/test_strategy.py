from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

import fedpbc.flower
from fedpbc.algorithms import ALGORITHMS, Algorithm, ClientResult, ClientRule, mean
from fedpbc.errors import InputError, MissingExtraError
from fedpbc.flower import FedAU, FedPBC, Scaffold, strategy_for
from fedpbc.flower.supported import SUPPORTED, check_flower
from fedpbc.links import Setting, Timetable, find_scheme
from fedpbc.links.link_log import link_log
from fedpbc.links.trace import fleet_log_settings
from tests import small_runs as small
from tests.flower.fake_grid import app_of, cut, grid_of, record_of, vector_of
from tests.flower.test_against_simulator import CANNOT, assert_same, known_of, run


def test_every_algorithm_of_the_package_has_a_strategy_or_says_why_not():
    for name, algorithm in ALGORITHMS.items():
        if name in CANNOT:
            with pytest.raises(InputError, match=f"^{name} "):
                strategy_for(name)
        else:
            made = strategy_for(name, **known_of(small.quadratic(), name))
            assert isinstance(made, FlowerFedAvg)
            assert type(made) is getattr(fedpbc.flower, algorithm.__name__)
            assert made.algorithm is algorithm


def test_options_are_the_algorithms_and_flowers():
    made = FedAU(0.5, cutoff=7, min_train_nodes=3, weighted_by_key="n")
    assert (made.fraction_train, made.min_train_nodes, made.weighted_by_key) == (0.5, 3, "n")
    assert made.settings.options == {"cutoff": 7, "over": "all"}


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: FedAU(cutof=7), "cutof is unknown: use one of .*did you mean 'cutoff'"),
        (lambda: FedPBC(num_clients=3), "num_clients is unknown: use clients"),
        (lambda: Scaffold(lr=0.1), "lr is unknown: use learning_rate"),
        (lambda: FedPBC(learning_rate=0.1), "learning_rate has no effect on fedpbc"),
        (lambda: FedAU(local_steps=5), "local_steps has no effect on fedau"),
        (lambda: FedAU(cutoff=0), "cutoff is 0, but should be at least 1"),
        (lambda: FedAU(fraction_trian=1.0), "did you mean 'fraction_train'"),
        (lambda: FedPBC(view="mean"), "view is 'mean', but should be"),
        (lambda: FedPBC(views=["nothing"]), "views is 'nothing'"),
        (lambda: Scaffold(local_steps=3), "scaffold computes with the app's learning_rate"),
        (lambda: Scaffold(learning_rate=0.1), "scaffold computes with the app's local_steps"),
        (lambda: strategy_for("mifa", rescale=True), "mifa computes with the app's learning_rate"),
        (lambda: FedPBC(learning_rate=0.1), "learning_rate has no effect on fedpbc, which does"),
        (lambda: strategy_for("mifa", local_steps=2), "local_steps has no effect on mifa"),
        (
            lambda: FedPBC(links="links.csv", fraction_train=0.5),
            "fraction_train is 0.5, but should be 1 with links=…: whoever is not asked",
        ),
        (lambda: FedPBC(clients=0), "clients is 0, but should be at least 1"),
        (lambda: FedPBC(global_lr="x"), "global_lr is 'x'"),
        (lambda: FedPBC(norm_factor=-1.0), "norm_factor is -1.0, but should be at least 0"),
        (lambda: Scaffold(learning_rate=0.0, local_steps=1), "learning_rate is 0.0"),
        (lambda: FedPBC(links="no/such/folder/links.csv"), "a file in a folder that exists"),
        (lambda: strategy_for("fedpcb"), "did you mean 'fedpbc'"),
        (lambda: FedPBC(view=np.zeros(2)), "view is array"),
        (lambda: FedPBC(checkpoint={}), "checkpoint is {}, but should be a path"),
        (lambda: FedPBC(checkpoint="a\0b"), "checkpoint is .*without NUL"),
        (lambda: FedPBC(checkpoint="."), "checkpoint is '.', but should be a file"),
        (lambda: FedPBC(links="a" * 300), "links is .*a file"),
        (lambda: FedPBC(fraction_train="x"), "fraction_train is 'x', but should be a valid number"),
        (lambda: FedPBC(fraction_train=1.5), "fraction_train is 1.5, but should be at most 1"),
        (lambda: FedPBC("x"), "fraction_train is 'x'"),
        (lambda: FedPBC(0.5, fraction_train=0.5), "fraction_train is given twice"),
        (lambda: FedPBC(*range(11)), "there are 10 options of Flower, not 11"),
        (lambda: FedPBC(min_available_nodes=[]), r"min_available_nodes is \[\]"),
        (lambda: FedPBC(weighted_by_key=3), "weighted_by_key is 3"),
        (lambda: FedPBC(arrayrecord_key="fedpbc"), "does not begin with 'fedpbc'"),
        (lambda: FedPBC(configrecord_key="a", arrayrecord_key="a"), "another one than"),
        (lambda: FedPBC(train_metrics_aggr_fn=3), "train_metrics_aggr_fn is 3"),
        (lambda: FedPBC(aggregation="krum"), "aggregation.name is 'krum'"),
        (lambda: FedPBC(aggregation={"trim": 0.7}), "aggregation.trim is 0.7"),
        (lambda: FedPBC(aggregation=3), "aggregation is 3, but should be the name"),
        (lambda: FedAU(aggregation="median"), "aggregation is 'median', but fedau weights"),
    ],
)
def test_wrong_options_are_one_line(make, line):
    with pytest.raises(InputError, match=line):
        make()


def test_a_file_that_is_no_log_of_links_is_not_replaced(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("somebody's own notes\n")
    with pytest.raises(InputError, match=r"links is .*a new file, or an earlier log of links"):
        FedPBC(links=file)
    assert file.read_text() == "somebody's own notes\n"
    file.write_text(link_log([[0], []], clients=1, round_seconds=10.0))
    assert FedPBC(links=file).links == file


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"grid": None}, "grid is None, but should be Flower's Grid"),
        ({"initial_arrays": [np.zeros(3)]}, "initial_arrays is .*should be an ArrayRecord"),
        ({"initial_arrays": ArrayRecord()}, "initial_arrays is .*at least one array with values"),
        ({"initial_arrays": record_of(np.full(4, np.nan))}, "initial_arrays: 'first' is not fin"),
        # Found before a function of the app is given them.
        (
            {"initial_arrays": ArrayRecord({"w": Array(np.array(["a"]))}), "evaluate_fn": int},
            r"initial_arrays\['w'\] is '<U1', but should be an array of real numbers",
        ),
        ({"num_rounds": 1.5}, "num_rounds is 1.5"),
        ({"num_rounds": 10**400}, "num_rounds is "),
        ({"timeout": 0}, "timeout is 0, but should be above 0"),
        ({"timeout": float("inf")}, "timeout is inf"),
        ({"train_config": {}}, "train_config is {}, but should be a ConfigRecord"),
        ({"evaluate_fn": 3}, "evaluate_fn is 3, but should be a function"),
        ({"evaluate_fn": lambda t, model: 0.5}, "evaluate_fn is 0.5, but should be .* returns a"),
        ({"learning_rate": lambda t: None}, r"learning_rate\(1\) is None, but should be"),
        ({"learning_rate": lambda: 0.1}, "learning_rate is .*a number or a function of the round"),
    ],
)
def test_a_wrong_start_is_one_line(given, line):
    task = small.quadratic()
    rate = given.pop("learning_rate", 0.1)
    right = {"grid": grid_of(app_of(task), 7), "initial_arrays": record_of(task.init().numpy())}
    with pytest.raises(InputError, match=line):
        Scaffold(learning_rate=rate, local_steps=2).start(**{**right, "num_rounds": 2, **given})


def test_numbers_of_numpy_are_numbers():
    task = small.quadratic()
    strategy = FedPBC(clients=np.int64(7), global_lr=np.float32(1.0), fraction_evaluate=0)
    initial = record_of(task.init().numpy())
    result = strategy.start(grid_of(app_of(task), 7), initial, num_rounds=np.int32(2))
    assert len(result.train_metrics_clientapp) == 2


@pytest.mark.parametrize("view", ["server", "averaged", "reported", "corrected"])
def test_the_view_asked_for_is_evaluated_and_is_the_results_model(view):
    task, table = small.quadratic(), small.random_table(seed=5)
    evaluated = {}
    strategy, _, result = run(
        "fedpbc",
        {},
        task,
        table,
        more={"view": view},
        evaluate_fn=lambda t, arrays: evaluated.update({t: vector_of(arrays)}),
    )
    assert strategy.view == view
    assert np.array_equal(vector_of(result.arrays), vector_of(result.views[view]))
    assert np.array_equal(evaluated[len(table)], vector_of(result.views[view]))
    expected = small.views(task, "fedpbc", table[:9])[view]
    assert np.array_equal(evaluated[9], expected.numpy())


def test_views_that_store_reports_can_be_left_out():
    task, table = small.quadratic(), small.random_table(seed=5)
    strategy, _, result = run("fedpbc", {}, task, table, more={"views": ["server", "averaged"]})
    assert set(result.views) == {"server", "averaged"}
    assert strategy.state()["job"]["server"]["reported"] == {}


@pytest.mark.parametrize("seconds", [0.0, 12.345])
def test_the_links_are_logged_as_fleets_log_them(tmp_path, seconds, monkeypatch):
    clock = SimpleNamespace(monotonic=count(0.0, seconds).__next__)
    monkeypatch.setattr("fedpbc.flower.strategy.time", clock)
    task, table, path = small.quadratic(), small.random_table(seed=5), tmp_path / "links.csv"
    run("fedpbc", {}, task, table, more={"links": path})
    round_seconds, clients = fleet_log_settings(str(path))
    assert clients == task.clients
    # The first round of the 18 had no clients, and so no look at the clock.
    assert round_seconds == (0.001 if seconds == 0 else round(12.345 * 17 / 18, 3))
    options = {"file": str(path), "round_seconds": round_seconds}
    setting = Setting(seed=1, clients=clients, rounds=len(table))
    replayed = Timetable.draw(find_scheme("trace"), setting, options)
    for t, row in enumerate(table):
        assert np.array_equal(np.flatnonzero(row), replayed.active(t))


def test_owed_rounds_are_trained_one_by_one_with_their_own_numbers():
    """By hand: clients 0 and 1; only 0 gets through at first, then both."""
    table = np.array([[1, 0], [1, 0], [1, 1]], dtype=bool)
    task, calls = small.quadratic(clients=2), []

    def note(message, context, call_next):
        number = message.content["config"]["server-round"]
        calls.append((context.node_config["partition-id"], number))
        return call_next(message, context)

    grid = grid_of(app_with(task, cut(table), note), 2)
    FedPBC(fraction_evaluate=0.0).start(grid, record_of(task.init().numpy()), num_rounds=3)
    assert calls == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]


def app_with(task, before, after):
    """The test app with a mod on either side of ours."""
    from flwr.clientapp import ClientApp

    from fedpbc.flower import catch_up_mod

    app = ClientApp(mods=[before, catch_up_mod, after])

    @app.train()
    def train(message, context):
        start = torch.from_numpy(vector_of(message.content["arrays"]))
        end = task.local_steps(context.node_config["partition-id"], start, 0, 0, None)
        metrics = MetricRecord({"num-examples": 1})
        records = {"arrays": record_of(end.numpy()), "metrics": metrics}
        return Message(RecordDict(records), reply_to=message)

    return app


def test_messages_of_other_strategies_pass_unchanged():
    task = small.quadratic()
    grid = grid_of(app_with(task, cut(np.ones((9, 7))), lambda m, c, n: n(m, c)), 7)
    initial = record_of(task.init().numpy())
    result = FlowerFedAvg(fraction_evaluate=0.0).start(grid, initial, num_rounds=2)
    assert np.isfinite(vector_of(result.arrays)).all()
    assert not any("fedpbc" in message.content for message in grid.sent)


def test_a_sample_of_the_nodes_is_a_link_that_was_down():
    task = small.quadratic()
    grid = grid_of(app_of(task), 7)
    strategy = FedPBC(fraction_train=0.4, fraction_evaluate=0.0, clients=7)
    result = strategy.start(grid, record_of(task.init().numpy()), num_rounds=8)
    table = strategy.state()["job"]["table"]
    assert table.sum(axis=1).tolist() == [2] * 8
    assert_same(result.views, small.views(task, "fedpbc", table), bound=0.0)


class Drifting(ClientRule):
    """Uses what only PyTorch has."""

    keeps = ("drift",)

    def finish(self, work, end):
        return ClientResult(state={"drift": torch.lerp(work.start, end, 0.5)})


class FromOutside(Algorithm):
    """An algorithm from outside the package."""

    name = "from_outside"

    def client_rule(self):
        return Drifting()

    def aggregate(self, round, updates):
        if updates:
            self.x = mean(torch.lerp(self.x, u.model, 0.9) for u in updates)


def test_algorithms_from_outside_run_too(monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "from_outside", FromOutside)
    task, table = small.quadratic(), small.random_table(seed=5)
    _, _, result = run("from_outside", {}, task, table)
    assert_same(result.views, small.views(task, FromOutside, table), bound=1e-12)


def test_work_whose_reply_was_lost_is_not_done_again():
    task, calls = small.quadratic(clients=2), []

    def note(message, context, call_next):
        calls.append(
            (context.node_config["partition-id"], message.content["config"]["server-round"])
        )
        return call_next(message, context)

    grid = grid_of(app_with(task, lambda m, c, n: n(m, c), note), 2)

    def lose(node, reply):
        is_lost = node == 101 and "metrics" in reply.content
        return None if is_lost and reply.content["fedpbc"]["round"] < 4 else reply

    grid.after = lose
    strategy = FedPBC(fraction_evaluate=0.0)
    result = strategy.start(grid, record_of(task.init().numpy()), num_rounds=4)
    assert [round for client, round in calls if client == 1] == [1, 2, 3, 4]
    table = np.array([[1, 0], [1, 0], [1, 0], [1, 1]], dtype=bool)
    assert np.array_equal(strategy.state()["job"]["table"], table)
    # app_with() trains every round as round 0.
    expected = small.views(small.quadratic(clients=2, decay=False), "fedpbc", table)
    assert_same(result.views, expected, bound=0.0)


CLIENT = """
import sys
sys.modules["torch"] = None  # Whoever imports it fails.
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from fedpbc.flower import catch_up_mod, correction_of
from fedpbc.flower.messages import RuleRequest, WorkRequest

TaskIdentity._run_id = TaskIdentity._node_id = TaskIdentity._task_id = 1
app = ClientApp(mods=[catch_up_mod])

@app.train()
def train(message, context):
    w = message.content["arrays"]["w"].numpy() + 1
    list(correction_of(message).values())
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(w)})}), reply_to=message)

context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
for rule, options in ((None, ""), ("scaffold", "{}"), ("amplified_scaffold", "{}"),
                      ("area", "{}"), ("mifa", '{"memory": "client"}')):
    asked = rule and RuleRequest(rule, options, (0.1, 0.1), 2, "")
    work = WorkRequest(f"job {rule}", 2, 1, 0, 1.0, "arrays", "config", True, asked)
    zeros = Array(np.zeros(2, np.float32))
    records = {"arrays": ArrayRecord({"w": zeros}), "config": {}, "fedpbc": work.record()}
    records["config"] = type(work.record())({"lr": 0.1})
    records["fedpbc.received"] = ArrayRecord({"control": zeros})
    if rule == "area":
        records["fedpbc.initial"] = ArrayRecord({"delivered": zeros})
    reply = app(Message(RecordDict(records), dst_node_id=1, message_type="train"), context)
    vectors = {n: a.numpy().tolist() for r in reply.content.array_records.values()
               for n, a in r.items()}
    print(rule, vectors)
"""


def test_the_mod_needs_no_torch():
    done = subprocess.run(
        [sys.executable, "-c", CLIENT], capture_output=True, text=True, check=True, timeout=120
    )
    # Two rounds of one step each; SCAFFOLD's c_i is −Δ/(s·Σ η) = −2/0.4.
    assert done.stdout.splitlines() == [
        "None {'w': [2.0, 2.0]}",
        "scaffold {'w': [2.0, 2.0], 'control_change': [-5.0, -5.0]}",
        "amplified_scaffold {'w': [2.0, 2.0], 'control_change': [-5.0, -5.0]}",
        "area {'change': [2.0, 2.0]}",
        "mifa {'change': [2.0, 2.0]}",
    ]


@pytest.mark.parametrize("version", ["1.20.0", "1.40.9", "2.0.0"])
def test_versions_that_were_not_tested_are_refused_by_name(version, monkeypatch):
    monkeypatch.setattr("fedpbc.flower.supported.version", lambda name: version)
    line = rf"supports Flower 1\.41.*, but {version} is installed: pip install 'fedpbc\[flower\]'"
    with pytest.raises(ImportError, match=line):
        check_flower()


def test_without_flower_the_extra_is_named(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("fedpbc.flower.supported.version", missing)
    with pytest.raises(MissingExtraError, match=r"fedpbc\[flower\]"):
        check_flower()


def test_the_installed_version_is_supported():
    assert ".".join(metadata.version("flwr").split(".")[:2]) in SUPPORTED
