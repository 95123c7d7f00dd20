"""Models of any types of arrays: batch normalisation, whole numbers, truth values, scalars."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedpbc.errors import InputError
from fedpbc.flower import FedPBC, catch_up_mod, correction_of, strategy_for
from tests import small_runs as small
from tests.flower.fake_grid import cut, grid_of
from tests.flower.test_against_simulator import known_of

QUIET = {"fraction_evaluate": 0.0, "norm_factor": 0.0}


def normalised() -> nn.Module:
    return small.seeded(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    )


def torch_app(task, module: nn.Module, table: np.ndarray) -> ClientApp:
    """An app like those of Flower's PyTorch examples, which trains as the simulator does.

    Which batch is the next one it reads from the layer's own counter.
    """
    app, steps = ClientApp(mods=[cut(table), catch_up_mod]), task.training.local_steps

    @app.train()
    def train(message: Message, context) -> Message:
        net = copy.deepcopy(module)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        named, count = net.state_dict(), net[1].num_batches_tracked
        read, correction = correction_of(message), None
        if read:
            names = [name for name, _ in net.named_parameters()]
            assert list(read) == names
            correction = torch.cat([torch.from_numpy(read[n]).reshape(-1) for n in names])
        end = task.local_steps(
            context.node_config["partition-id"],
            torch.cat([named[name].reshape(-1) for name in task.layout.names]),
            message.content["config"]["server-round"] - 1,
            int(count),
            correction,
        )
        task.layout.fill([named[name] for name in task.layout.names], end)
        count += steps
        metrics = MetricRecord({"num-examples": 1, "start-loss": 1.0})
        records = {"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}
        return Message(RecordDict(records), reply_to=message)

    return app


@pytest.mark.parametrize("global_lr", [1.0, 0.7])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("fedpbc", {}), ("fedavg", {}), ("fedau", {}), ("mifa", {}), ("fedawe", {})),
        *(("mifa", {"memory": "client"}), ("area", {}), ("scaffold", {})),
    ],
)
def test_batch_normalisation_is_what_it_is_in_a_simulation(name, options, global_lr):
    """Statistics are averaged, the counter is a client's own, and no variance is negative."""
    module, table = normalised(), small.random_table(seed=3)
    task = small.network(module=copy.deepcopy(module))
    own = {**QUIET, **known_of(task, name, options), **options, "global_lr": global_lr}
    strategy = strategy_for(name, **own)
    initial = ArrayRecord(module.state_dict())
    result = strategy.start(grid_of(torch_app(task, module, table), 7), initial, len(table))
    assert np.array_equal(strategy.state()["job"]["table"], table)
    expected = small.views(task, name, table, options=options, global_lr=global_lr)
    assert set(result.views) == set(expected) - {"mean"}
    for view, record in result.views.items():
        net = normalised()
        net.load_state_dict(record.to_torch_state_dict())
        for key, part in task.layout.named(expected[view]).items():
            assert (net.state_dict()[key] - part).abs().max() <= 1e-5, (view, key)
        assert float(net[1].running_var.min()) > 0
        # One that a client of the last round has: no mean of several.
        assert int(net[1].num_batches_tracked) % task.training.local_steps == 0
        assert int(net[1].num_batches_tracked) > 0


def counting_app(table: np.ndarray) -> ClientApp:
    """Adds to every array, each by what its type can do."""
    app = ClientApp(mods=[cut(table), catch_up_mod])

    @app.train()
    def train(message: Message, context) -> Message:
        arrays = {n: a.numpy().copy() for n, a in message.content["arrays"].items()}
        client = context.node_config["partition-id"]
        for name, array in arrays.items():
            if array.dtype == bool:
                array[...] = client != 1
            elif name != "positions":
                array += np.asarray(client + 1, array.dtype)
        end = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": end, "metrics": metrics}), reply_to=message)

    return app


BIG = 2**62 + 1
"""No floating-point number."""
MIXED: dict[str, np.ndarray] = {
    "scalar": np.array(0.5, np.float32),
    "half": np.zeros(3, np.float16),
    "big": np.array(BIG),
    "double": np.zeros((2, 1)),
    "small": np.zeros(2, np.int8),
    "unsigned": np.array([2**64 - 10], np.uint64),
    "is": np.array([False]),
    "nothing": np.zeros((0, 3), np.int64),
    "positions": np.arange(4)[None],
}


def test_arrays_of_all_types_keep_theirs_and_whole_numbers_stay_exact(tmp_path):
    """Over two processes of the server: the counters are in its file, too."""
    table = np.array([[1, 1, 1], [1, 0, 0], [0, 1, 1]], dtype=bool)
    initial = ArrayRecord({name: Array(value) for name, value in MIXED.items()})
    for rounds in (2, 3):
        strategy = strategy_for("fedavg", checkpoint=tmp_path / "job", **QUIET)
        grid = grid_of(counting_app(table), 3)
        result = strategy.start(grid, initial, rounds)
    assert list(result.arrays) == list(MIXED)
    end = {name: array.numpy() for name, array in result.arrays.items()}
    for name, value in MIXED.items():
        assert (end[name].dtype, end[name].shape) == (value.dtype, value.shape)
    # Means of 1, 2, 3, then 1, then 2 and 3.
    assert float(end["scalar"]) == 0.5 + 2 + 1 + 2.5
    assert end["half"].tolist() == [5.5] * 3
    assert end["double"].tolist() == [[5.5]] * 2
    # Clients 1 and 2 have counted 2 · 2 and 3 · 2: the lower of the two.
    assert int(end["big"]) == BIG + 4
    assert end["small"].tolist() == [4, 4]
    assert end["unsigned"].tolist() == [2**64 - 6]
    assert not end["is"]
    assert end["positions"].tolist() == [[0, 1, 2, 3]]


def test_a_model_in_half_precision():
    initial = ArrayRecord({"w": Array(np.zeros(2, np.float16)), "n": Array(np.array(0))})
    result = FedPBC(**QUIET).start(grid_of(counting_app(np.ones((3, 2))), 2), initial, 3)
    assert result.arrays["w"].numpy().tolist() == [4.5, 4.5]
    assert result.arrays["w"].dtype == "float16"


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        ({"n": np.zeros(3, int)}, "at least one array with values, of floating-point numbers"),
        ({"1.running_var": np.ones(3)}, "at least one array with values, of floating-point"),
        ({"w": np.zeros(2, np.longdouble)}, r"initial_arrays\['w'\] is 'float128'"),
    ],
)
def test_models_without_a_number_to_train_are_refused(arrays, line):
    initial = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    with pytest.raises(InputError, match=line):
        FedPBC(**QUIET).start(grid_of(counting_app(np.ones((3, 2))), 2), initial, 3)


def test_a_counter_of_another_type_is_refused(caplog):
    grid = grid_of(counting_app(np.ones((2, 3))), 3)

    def spoil(node, reply):
        if node == 101 and "arrays" in reply.content:
            reply.content["arrays"]["n"] = Array(np.array(1.0))
        return reply

    grid.after = spoil
    initial = ArrayRecord({"w": Array(np.zeros(2)), "n": Array(np.array(0))})
    strategy = FedPBC(**QUIET)
    strategy.start(grid, initial, 2)
    assert "'n' is float64 of shape (), not int64 of shape ()" in caplog.text
    assert strategy.state()["job"]["table"].tolist() == [[True, False, True]] * 2
