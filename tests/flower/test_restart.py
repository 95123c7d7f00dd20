"""Server apps and nodes that are started again."""

from __future__ import annotations

import numpy as np
import pytest

from fedpbc.errors import FedpbcError, InputError
from fedpbc.flower import FedAU, FedPBC, Scaffold, strategy_for
from fedpbc.storage.tensors import save_state
from tests import small_runs as small
from tests.flower.fake_grid import app_of, cut, grid_of, record_of
from tests.flower.test_against_simulator import assert_same, batches_of

QUIET = {"fraction_evaluate": 0.0, "norm_factor": 0.0}


def started(strategy, grid, task, rounds, **more):
    return strategy.start(grid, record_of(task.init().numpy()), num_rounds=rounds, **more)


@pytest.mark.parametrize("name", ["fedpbc", "fedau", "mifa", "fedvarp", "f3ast"])
def test_a_server_app_that_is_started_again_goes_on_from_its_file(name, tmp_path):
    """The nodes have other ids then, as in Flower's simulation, and are known by partition."""
    task, table = small.quadratic(), small.random_table(seed=6)
    app = app_of(task, cut(table), batches=batches_of(name))
    file = tmp_path / "job.safetensors"
    evaluated: list[int] = []
    for rounds, ids in ((7, range(100, 107)), (11, range(300, 307)), (18, range(206, 199, -1))):
        strategy = strategy_for(name, checkpoint=file, links=tmp_path / "links.csv", **QUIET)
        grid = grid_of(app, task.clients, ids=ids)
        result = started(
            strategy, grid, task, rounds, evaluate_fn=lambda t, arrays: evaluated.append(t)
        )
        assert list(result.train_metrics_clientapp)[-1] <= rounds
    assert_same(result.views, small.views(task, name, table), bound=0.0)
    assert evaluated == [*range(8), *range(7, 12), *range(11, 19)]
    # Nothing is left to do: the result is that of the file.
    again = strategy_for(name, checkpoint=file, **QUIET)
    assert_same(started(again, grid_of(app, 7), task, 18).views, small.views(task, name, table))


def test_state_and_restore_without_a_file():
    task, table = small.quadratic(), small.random_table(seed=6)
    app = app_of(task, cut(table))
    first = FedPBC(**QUIET)
    started(first, grid_of(app, 7), task, 9)
    state = first.state()
    # Later rounds do not change what was saved.
    first.restore(state)
    started(first, grid_of(app, 7), task, 12)
    second = FedPBC(**QUIET)
    second.restore(state)
    result = started(second, grid_of(app, 7), task, 18)
    assert_same(result.views, small.views(task, "fedpbc", table), bound=0.0)


def test_another_start_is_another_job():
    task, table = small.quadratic(), np.ones((4, 7), dtype=bool)
    strategy, app = FedPBC(**QUIET), app_of(task, cut(table))
    results = [started(strategy, grid_of(app, 7), task, 4) for _ in range(2)]
    assert_same(results[1].views, small.views(task, "fedpbc", table), bound=0.0)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (lambda f: FedAU(checkpoint=f, cutoff=9, **QUIET), 'options is {"cutoff": 9'),
        (lambda f: FedPBC(checkpoint=f, **QUIET), "algorithm is fedpbc, but the job"),
        (lambda f: FedAU(checkpoint=f, global_lr=0.5, **QUIET), "global_lr is 0.5"),
        (
            lambda f: FedAU(checkpoint=f, aggregation={"clip": 1.0}, **QUIET),
            'aggregation is .*"clip"',
        ),
    ],
)
def test_a_file_of_another_job_is_refused(strategy, message, tmp_path):
    task, file = small.quadratic(), tmp_path / "job"
    app = app_of(task)
    started(FedAU(checkpoint=file, **QUIET), grid_of(app, 7), task, 2)
    with pytest.raises(InputError, match=message):
        started(strategy(file), grid_of(app, 7), task, 4)
    with pytest.raises(InputError, match="names is"):
        FedAU(checkpoint=file, **QUIET).start(grid_of(app, 7), other_model(), num_rounds=4)
    file.write_bytes(b"damaged")
    with pytest.raises(FedpbcError, match="damaged"):
        started(FedAU(checkpoint=file, **QUIET), grid_of(app, 7), task, 4)


def test_a_state_of_something_else_is_refused(tmp_path):
    task, file = small.quadratic(), tmp_path / "job"
    save_state(file, {"simulation": {"round": 3}})
    with pytest.raises(InputError, match="job is not that of a strategy's job"):
        started(FedAU(checkpoint=file, **QUIET), grid_of(app_of(task), 7), task, 4)
    strategy = FedPBC(**QUIET)
    strategy.restore({"job": 3})
    with pytest.raises(InputError, match="the state is not that of a strategy's job"):
        started(strategy, grid_of(app_of(task), 7), task, 4)


def other_model():
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({"w": Array(np.zeros(4))})


def test_a_node_that_has_lost_its_state_is_told_apart(caplog):
    """It takes no further part: its control variate is part of the server's sum."""
    task, table = small.quadratic(), np.ones((6, 7), dtype=bool)
    grid = grid_of(app_of(task, batches="participations"), 7)
    strategy = Scaffold(learning_rate=lambda t: task.training.rate(t - 1), local_steps=3, **QUIET)

    def restart(node, reply):
        # After the third round: the context is in memory only.
        if reply.has_content() and reply.content["fedpbc"]["round"] == 3 and node == 104:
            grid.nodes[node].context.state.clear()
        return reply

    grid.after = restart
    result = started(strategy, grid, task, 6)
    table[3:, 4] = False
    assert np.array_equal(strategy.state()["job"]["table"], table)
    assert "node 104: has lost what it keeps" in caplog.text
    assert_same(result.views, small.views(task, "scaffold", table), bound=1e-12)


def test_a_stateless_client_may_lose_everything():
    task, table = small.quadratic(), small.random_table(seed=8)
    grid = grid_of(app_of(task, cut(table)), 7)

    def restart(node, reply):
        grid.nodes[node].context.state.clear()
        return reply

    grid.after = restart
    result = started(FedPBC(**QUIET), grid, task, len(table))
    assert_same(result.views, small.views(task, "fedpbc", table), bound=0.0)


def test_a_node_with_a_new_id_is_the_same_client():
    """Without keys, Flower gives a SuperNode that is started again another id."""
    task, table = small.quadratic(), small.random_table(seed=9)
    grid = grid_of(app_of(task, cut(table)), 7)

    def restart(node, reply):
        if node == 103:
            grid.nodes[555] = grid.nodes.pop(103)
        return reply

    grid.after = restart
    result = started(FedPBC(**QUIET), grid, task, len(table))
    assert 555 in grid.nodes
    assert_same(result.views, small.views(task, "fedpbc", table), bound=0.0)


def test_twins_and_strangers_take_no_part(caplog):
    task = small.quadratic(clients=3)
    app = app_of(task)
    grid = grid_of(app, 3)
    twin, stranger = grid_of(app, 3, ids=(1, 2, 3)).nodes[2], grid_of(app, 9).nodes[108]
    strategy = FedPBC(clients=3, **QUIET)
    grid.nodes |= {900: twin, 901: stranger}
    started(strategy, grid, task, 2)
    assert strategy.state()["job"]["table"].shape == (2, 3)
    assert "node 900 takes no part: its partition-id is 1, which is that of node 101" in caplog.text
    assert "node 901 takes no part: its partition-id is 8, but the job has 3" in caplog.text


def test_nodes_without_partitions_are_known_by_their_ids():
    task, table = small.quadratic(), np.ones((3, 7), dtype=bool)
    grid = grid_of(app_of(task), 7, partitions=False)
    for i, node in enumerate(grid.nodes.values()):
        node.context.node_config["client"] = i
    strategy = FedPBC(**QUIET)
    started(strategy, grid, task, 3)  # The app fails without a partition; the nodes are known.
    assert strategy.state()["numbers"]["nodes"] == {100 + i: i for i in range(7)}
    assert strategy.state()["job"]["table"].shape == table.shape


def test_nodes_have_a_round_to_start_and_a_minute_later_on():
    """In a simulation, the first message starts processes that import everything."""
    task, waited = small.quadratic(), []
    grid = grid_of(app_of(task), 7)
    late = grid.nodes.pop(106)
    send = grid.send_and_receive

    def noted(messages, *, timeout=None):
        sent = list(messages)
        waited.append((len(sent), timeout))
        if len(waited) == 2:
            grid.nodes[106] = late
        return send(sent, timeout=timeout)

    grid.send_and_receive = noted
    started(FedPBC(**QUIET), grid, task, 2, timeout=500.0)
    # Greetings, training and no evaluation, twice.
    assert waited == [(6, 500.0), (6, 500.0), (0, 500.0), (1, 60.0), (7, 500.0), (0, 500.0)]
