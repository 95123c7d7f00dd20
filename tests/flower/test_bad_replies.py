"""What clients may send: refused with one line, and the round goes on."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from fedpbc.flower import MIFA, FedPBC
from tests import small_runs as small
from tests.flower.fake_grid import app_of, grid_of, record_of
from tests.flower.test_against_simulator import assert_same

QUIET = {"fraction_evaluate": 0.0}


def replaced(**arrays):
    def change(content):
        content["arrays"] = ArrayRecord({**content["arrays"], **arrays})

    return change


def set_protocol(**fields):
    def change(content):
        content["fedpbc"] = ConfigRecord({**content["fedpbc"], **fields})

    return change


def huge(value):
    return replaced(second=Array(np.full(3, value)))


def without(key):
    def change(content):
        del content[key]

    return change


def second_record(content):
    content["more"] = ArrayRecord({"w": Array(np.zeros(2))})


def other_names(content):
    content["arrays"] = ArrayRecord({"x": Array(np.zeros(1)), "second": Array(np.zeros(3))})


def pickled(content):
    array = content["arrays"]["second"]
    content["arrays"]["second"] = Array(array.dtype, array.shape, "pickle", array.data)


def cut_short(content):
    array = content["arrays"]["second"]
    content["arrays"]["second"] = Array(array.dtype, array.shape, array.stype, array.data[:-8])


def other_header(content):
    array, other = content["arrays"]["second"], Array(np.zeros(2**12))
    content["arrays"]["second"] = Array(array.dtype, array.shape, array.stype, other.data)


def damaged_header(content):
    # NumPy parses headers as Python, and this one ends within brackets.
    array = content["arrays"]["second"]
    data = array.data.replace(b"}", b"(", 1)
    content["arrays"]["second"] = Array(array.dtype, array.shape, array.stype, data)


BAD = {
    "not a number": (huge(np.nan), "'second' is not finite"),
    "infinite": (huge(np.inf), "'second' is not finite"),
    "beyond the usual norm": (huge(1e30), "the norm of model is"),
    "largest of all": (huge(1.7e308), "the norm of model is"),
    "shape": (replaced(second=Array(np.zeros((3, 1)))), "float64 of shape 3×1, not float64"),
    "type": (replaced(second=Array(np.zeros(3, np.float32))), "'second' is float32 of shape 3"),
    "text": (replaced(second=Array(np.array(["a", "b", "c"]))), "'second' is <U1"),
    "names": (other_names, "arrays by other names: missing first; unknown x"),
    "one more name": (replaced(third=Array(np.zeros(3))), "missing none; unknown third"),
    "no arrays": (without("arrays"), "0 ArrayRecords, not one"),
    "two records": (second_record, "2 ArrayRecords, not one"),
    "pickled": (pickled, "serialised as 'pickle'"),
    "cut short": (cut_short, "'second' cannot be read"),
    "damaged header": (damaged_header, "its header cannot be read"),
    "another header": (other_header, "its header says something else"),
    "no mod": (without("fedpbc"), "its ClientApp has no catch_up_mod"),
    "another round": (set_protocol(round=9), "replies to another round"),
    "another job": (set_protocol(job="x"), "replies to another round"),
    "another version": (set_protocol(version=7), "another version of fedpbc"),
    "hidden characters": (set_protocol(problem="\x1b[31mred"), "\\x1b[31mred"),
    "another partition": (set_protocol(**{"partition-id": 6}), "partition-id is not what it was"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_a_link_that_was_down(kind, caplog):
    change, line = BAD[kind]
    task, table = small.quadratic(), np.ones((5, 7), dtype=bool)
    grid = grid_of(app_of(task), 7)

    def spoil(node, reply):
        number = reply.content["fedpbc"]["round"]
        if node == 103 and number in (1, 4) and "metrics" in reply.content:
            table[number - 1, 3] = False
            change(reply.content)
        return reply

    grid.after = spoil
    strategy = FedPBC(**QUIET)
    result = strategy.start(grid, record_of(task.init().numpy()), num_rounds=5)
    assert line in caplog.text
    assert np.array_equal(strategy.state()["job"]["table"], table)
    assert_same(result.views, small.views(task, "fedpbc", table), bound=1e-12)


def test_a_model_that_would_not_be_finite_counts_nothing(caplog):
    task = small.quadratic()
    grid = grid_of(app_of(task), 7)

    def spoil(node, reply):
        if "metrics" in reply.content:
            huge(1.7e308)(reply.content)
        return reply

    grid.after = spoil
    strategy = MIFA(**QUIET)
    result = strategy.start(grid, record_of(task.init().numpy()), num_rounds=2)
    assert "with it the server's model would not be finite" in caplog.text
    assert not strategy.state()["job"]["table"].any()
    assert np.isfinite(result.views["server"]["second"].numpy()).all()


def test_an_absolute_bound_holds_per_round_of_work(caplog):
    task = small.quadratic()
    grid = grid_of(app_of(task), 7)
    strategy = FedPBC(norm_bound=1e-6, **QUIET)
    strategy.start(grid, record_of(task.init().numpy()), num_rounds=2)
    assert "above 1e-06" in caplog.text
    assert not strategy.state()["job"]["table"].any()


def test_metrics_that_differ_do_not_stop_a_round(caplog):
    task = small.quadratic()
    grid = grid_of(app_of(task), 7)

    def spoil(node, reply):
        if "metrics" in reply.content and node in (101, 102, 103):
            bad = [{"other": 1.0}, {"num-examples": -1}, {"num-examples": [1, 2]}][node - 101]
            reply.content["metrics"] = MetricRecord(bad)
        return reply

    grid.after = spoil
    strategy = FedPBC(**QUIET)
    result = strategy.start(grid, record_of(task.init().numpy()), num_rounds=1)
    assert strategy.state()["job"]["table"].all()
    assert "the metrics of 3 replies are left out" in caplog.text
    assert result.train_metrics_clientapp[1]["round"] == pytest.approx(1.0)


def test_evaluations_that_differ_are_left_out(caplog):
    task = small.quadratic()
    app = app_of(task)

    @app.evaluate()
    def evaluate(message, context):
        from flwr.app import Message, RecordDict

        node = context.node_config["partition-id"]
        metrics = {"loss": float(node), "num-examples": 1} if node else {"nothing": 1}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    result = FedPBC().start(grid_of(app, 7), record_of(task.init().numpy()), num_rounds=1)
    assert result.evaluate_metrics_clientapp[1]["loss"] == pytest.approx(3.5)
    assert "1 evaluations are left out" in caplog.text


def test_an_app_without_the_mod_is_named(caplog):
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message, context):
        return message.content["arrays"]["first"]

    task = small.quadratic()
    grid = grid_of(app_of(task), 7)
    grid.nodes[104].app = app
    FedPBC(**QUIET).start(grid, record_of(task.init().numpy()), num_rounds=1)
    assert (
        "node 104 did not greet, as catch_up_mod does: <class 'KeyError'>: 'first'" in caplog.text
    )
