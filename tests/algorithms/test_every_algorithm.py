"""What holds for every registered algorithm, a new one included."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedpbc.algorithms import ALGORITHMS, Algorithm, ServerInit, find_algorithm, register_algorithm
from fedpbc.engines import StackedEngine
from fedpbc.errors import InputError
from tests import small_runs as small
from tests.reference import ALGORITHMS as ORACLE

everyone = pytest.mark.parametrize("name", ALGORITHMS)


@everyone
def test_the_same_on_both_engines(name):
    task, up = small.quadratic(), small.random_table()
    serial = small.views(task, name, up)
    stacked = small.views(task, name, up, engine=StackedEngine)
    assert serial.keys() == stacked.keys()
    for view, model in serial.items():
        assert (stacked[view] - model).abs().max() < 1e-9, view


@everyone
def test_how_often_it_is_judged_changes_nothing(name, engine):
    task, up = small.network(), small.random_table()
    often = small.views(task, name, up, engine=engine, evaluate_every=1)
    assert small.same_bits(often, small.views(task, name, up, engine=engine, evaluate_every=5))


@everyone
def test_nobody_heard_nothing_learnt(name, engine):
    task = small.quadratic()
    made, metrics = small.finished(task, name, np.zeros((4, 7), dtype=bool), engine=engine)
    assert torch.equal(made.algorithm.x, task.init())
    assert (metrics[-1].uploads, metrics[-1].active, metrics[-1].staleness_max) == (0, 0, 5)


@everyone
def test_learns_when_everyone_gets_through(name):
    _, metrics = small.finished(
        small.network(), name, np.ones((25, 7), dtype=bool), evaluate_every=25
    )
    assert metrics[-1].views["server"].test_accuracy > 0.9


@pytest.mark.parametrize("name", ORACLE)
def test_all_of_them_are_fedavg_when_everyone_gets_through(name):
    up, task = np.ones((12, 7), dtype=bool), small.quadratic()
    options = {"clip": 0.0} if name == "fedawe" else {}
    model = small.views(task, name, up, options=options, global_lr=0.7)["server"]
    assert (model - small.views(task, "fedavg", up, global_lr=0.7)["server"]).abs().max() < 1e-12


@everyone
def test_state_is_all_there_is(name):
    """A fresh instance that takes over the state goes on to the bit."""
    task, up = small.quadratic(), small.random_table()
    whole = small.simulation(task, name, up)
    steps = whole.steps()
    for _ in range(9):
        next(steps)
    other = small.simulation(task, name, up)
    other.algorithm.restore(copy.deepcopy(whole.algorithm.state()))
    other.progress = copy.deepcopy(whole.progress)
    for simulation in (steps, other.steps()):
        list(simulation)
    assert small.same_bits(whole.view_models(), other.view_models())


@everyone
def test_it_can_be_listed(name):
    kind = find_algorithm(name)
    assert kind.name == name
    assert kind.paper
    assert kind.summary().endswith(".")
    assert "\n" not in kind.summary()
    assert kind.models_on_server(100) >= 1
    assert kind.vectors_per_upload >= 1


@pytest.mark.parametrize(
    ("name", "server", "client", "upload"),
    [
        ("fedpbc", 1, 1, 1),
        ("fedawe", 1, 1, 1),
        ("fedavg", 1, 0, 1),
        ("mifa", 101, 0, 1),
        ("fedvarp", 101, 0, 1),
        ("scaffold", 2, 1, 2),
    ],
)
def test_what_it_costs(name, server, client, upload):
    kind = ALGORITHMS[name]
    cost = kind.models_on_server(100), kind.models_on_client, kind.vectors_per_upload
    assert cost == (server, client, upload)


def test_the_papers_second_group():
    aided = {name for name in ORACLE if ALGORITHMS[name].memory_aided}
    assert aided == {"mifa", "fedavg_known", "fedvarp", "scaffold"}


def test_listing_them_does_not_wait_for_torch():
    code = "import sys, fedpbc.algorithms; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_name_gets_a_suggestion():
    with pytest.raises(InputError, match=r"algorithm is 'fedavgg'.*did you mean 'fedavg'\?"):
        find_algorithm("fedavgg")


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr("fedpbc.algorithms.ALGORITHMS", dict(ALGORITHMS))


@pytest.mark.usefixtures("registry")
def test_registering():
    class Median(Algorithm):
        """Once more."""

        name = "median"

    assert register_algorithm(Median) is Median is find_algorithm("median")
    assert register_algorithm(Median) is Median  # a module that is loaded twice

    class Thief(Algorithm):
        name = "median"

    with pytest.raises(InputError, match="not taken"):
        register_algorithm(Thief)
    with pytest.raises(InputError, match="a word"):
        register_algorithm(type("Nameless", (Algorithm,), {}))


def test_an_algorithm_without_a_rule_says_so():
    with pytest.raises(NotImplementedError, match="aggregate"):
        Algorithm(ServerInit(torch.zeros(1), 1)).aggregate(None, [])


def test_a_selection_outside_the_active_clients_is_refused():
    class Reaching(Algorithm):
        name = "reaching"

        def select(self, round):
            return np.array([0])

    with pytest.raises(InputError, match=r"reaching's selection"):
        small.finished(small.quadratic(2), Reaching, small.table([{1}], 2))
