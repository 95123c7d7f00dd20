"""Clients that join and leave during a simulation: who is not there counts nowhere."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from fedpbc.algorithms import ALGORITHMS, Algorithm, ServerInit
from fedpbc.engines import SerialEngine
from fedpbc.links import from_table
from fedpbc.simulation.costs import costs_of
from fedpbc.simulation.loop import Simulation
from fedpbc.simulation.membership import MembershipChange
from fedpbc.simulation.norm_bound import NormBound
from tests import small_runs as small

KEEPING = {"scaffold", "amplified_scaffold", "focus", "area"}
CHANGING = sorted(set(ALGORITHMS) - KEEPING - {"fedavg_known"})


def simulation(task, name, up, changes, *, first=None, down=None, options=None, **more):
    kind = ALGORITHMS[name] if isinstance(name, str) else name
    first = up.shape[1] - sum(c.joined for c in changes.values()) if first is None else first
    return Simulation(
        task,
        kind(ServerInit(task.init(), first), **(options or {})),
        SerialEngine(task),
        from_table(up),
        None if down is None else from_table(down),
        membership=changes,
        **more,
    )


def finished(*args, **more):
    made = simulation(*args, **more)
    return made, list(made.run())


# With these options all weights are 1 where everyone is heard, and nothing is amplified.
NEUTRAL = {
    "fedawe": {"clip": 0.0},
    "amplified_fedavg": {"gamma": 1.0},
    "ca_fed": {"bias": 1e3},
}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, NEUTRAL.get(name, {})) for name in CHANGING),
        ("fedau", {"over": "heard"}),
        ("mifa", {"over": "heard"}),
    ],
)
def test_who_has_left_pulls_nobody(name, options):
    """With all links up, the others end where they would without the one that left."""
    task = small.quadratic(decay=False)
    up = np.ones((300, 7), dtype=bool)
    made, _ = finished(task, name, up, {50: MembershipChange(left=(3,))}, options=options)
    rest = task.targets[[0, 1, 2, 4, 5, 6]].mean(0)
    assert (made.algorithm.x - rest).abs().max() < 1e-6


def test_fedau_over_those_heard_steps_in_full():
    """0.5 instead of 1 with one of two clients gone."""
    task = small.quadratic(2, learning_rate=0.1, local_steps=1, decay=False)
    up = np.array([[1, 1], [0, 1], [0, 1]], dtype=bool)
    made = simulation(
        task, "fedau", up, {1: MembershipChange(left=(0,))}, options={"over": "heard"}
    )
    steps = made.steps()
    next(steps)
    x = made.algorithm.x
    next(steps)
    assert torch.allclose(made.algorithm.x, x + 0.1 * (task.targets[1] - x))


def test_ca_fed_chooses_as_if_the_departed_had_never_been_there():
    """Neither its large loss nor its place among the m counts."""
    task = small.quadratic(3)
    task.targets[0] += 100
    up = np.ones((12, 3), dtype=bool)
    up[:, 1] = np.arange(12) % 2
    gone, _ = finished(task, "ca_fed", up, {0: MembershipChange(left=(0,))})
    two = small.quadratic(2)
    two.targets = task.targets[1:]
    alone, _ = finished(two, "ca_fed", up[:, 1:], {})
    assert (gone.algorithm.x - alone.algorithm.x).abs().max() < 1e-12


def test_staleness_is_that_of_the_members():
    up = np.ones((9, 3), dtype=bool)
    _, metrics = finished(
        small.quadratic(3), "fedavg", up, {2: MembershipChange(left=(0,))}, evaluate_every=9
    )
    assert (metrics[-1].staleness_mean, metrics[-1].staleness_max) == (1.0, 1)


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("lost", [False, True])
def test_links_of_clients_that_are_not_there_are_down(name, lost):
    """Before they join, and once they have left."""
    task, up, down = small.quadratic(6), small.random_table(clients=6), small.lossy(clients=6)
    changes = {4: MembershipChange(joined=2), 9: MembershipChange(left=(0,))}
    only = np.ones_like(up)
    only[:4, 4:] = only[9:, 0] = False
    shown = {"down": down} if lost else {}
    masked = {"down": down & only} if lost else {}
    made, metrics = finished(task, name, up, changes, evaluate_every=4, **shown)
    expected, same = finished(task, name, up & only, changes, evaluate_every=4, **masked)
    assert small.same_bits(made.view_models(), expected.view_models())
    assert metrics[-1].bytes_down == same[-1].bytes_down
    assert metrics[-1].active_mean == (up & only).sum() / len(up)


@pytest.mark.parametrize("first", [1, 2, 4])
def test_models_on_the_server_are_those_of_its_clients(first):
    """x, and a report of each of five clients; with one more vector for the moving average."""
    up = np.ones((6, 5), dtype=bool)
    made, _ = finished(small.quadratic(5), "fedpbc", up, {2: MembershipChange(joined=5 - first)})
    assert costs_of(made.server)["models_on_server"] == {
        "server": 1,
        "averaged": 2,
        "mean": None,
        "reported": 6,
        "corrected": 7,
    }


def test_who_has_left_is_not_stored():
    up = np.ones((6, 5), dtype=bool)
    made, _ = finished(small.quadratic(5), "fedpbc", up, {2: MembershipChange(left=(1,))})
    models = costs_of(made.server)["models_on_server"]
    assert (models["reported"], models["corrected"]) == (5, 6)


def test_accuracies_belong_to_the_clients_they_are_of():
    task = small.network(5)
    up = np.ones((6, 5), dtype=bool)
    changes = {2: MembershipChange(left=(1,)), 3: MembershipChange(joined=1)}
    made, _ = finished(task, "fedpbc", up, changes)
    accuracies = made.client_accuracies()
    x = made.view_models()["server"]
    expected = task.client_accuracies(x)
    for view in ("server", "own"):
        assert accuracies[view].pop(1) is None
        assert accuracies[view] == pytest.approx(expected[:1] + expected[2:])


class Renamed(Algorithm):
    """Keeps its options under other names, and an array that is as long as there are clients."""

    name = "renamed"

    def __init__(self, init, *, start: float = 1.0, more: int = 0):
        super().__init__(init)
        self.weights = np.full(init.clients, start + more)
        self.momentum = np.zeros(len(init.x0))

    def aggregate(self, round, updates):
        self.momentum = self.momentum + sum(
            (self.weights[update.client] * update.delta.numpy() for update in updates), 0.0
        )
        if updates:
            self.x = self.x + torch.from_numpy(self.momentum) / self.members


@pytest.mark.parametrize("copied", [False, True])
def test_newcomers_get_the_options_of_the_run(copied):
    algorithm = Renamed(ServerInit(torch.zeros(4).double(), 4), start=5.0, more=1)
    if copied:
        algorithm = copy.deepcopy(algorithm)
    algorithm.join(3)
    assert algorithm.weights.tolist() == [6.0] * 5
    assert algorithm.momentum.shape == (4,)
    finished(small.quadratic(5), Renamed, np.ones((5, 5), dtype=bool), {2: MembershipChange(1)})


def test_the_norms_of_who_has_left_are_no_measure():
    bound = NormBound(factor=10.0)
    bound.count({0: {"model": 1e9}, 1: {"model": 1e9}, 2: {"model": 1.0}, 3: {"model": 1.0}})
    assert bound.problem(4, {"model": 100.0}, {}, scale=1.0) is None
    bound.forget([0, 1])
    assert bound.problem(4, {"model": 100.0}, {}, scale=1.0) is not None
