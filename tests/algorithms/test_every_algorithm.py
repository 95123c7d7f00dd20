"""What holds for every registered algorithm, including plugins."""

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
from tests.reference import ALGORITHMS as REFERENCE

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


@every_algorithm
def test_the_same_on_both_engines(name):
    task, up = small.quadratic(), small.random_table()
    serial = small.views(task, name, up)
    stacked = small.views(task, name, up, engine=StackedEngine)
    assert serial.keys() == stacked.keys()
    for view, model in serial.items():
        assert (stacked[view] - model).abs().max() < 1e-9, view


@every_algorithm
def test_evaluation_does_not_change_the_result(name, engine):
    task, up = small.network(), small.random_table()
    often = small.views(task, name, up, engine=engine, evaluate_every=1)
    assert small.same_bits(often, small.views(task, name, up, engine=engine, evaluate_every=5))


@every_algorithm
def test_nothing_is_learnt_without_active_clients(name, engine):
    task = small.quadratic()
    simulation, metrics = small.finished(task, name, np.zeros((4, 7), dtype=bool), engine=engine)
    assert torch.equal(simulation.algorithm.x, task.init())
    assert (metrics[-1].uploads, metrics[-1].active, metrics[-1].staleness_max) == (0, 0, 5)


@every_algorithm
def test_learns_when_all_links_are_up(name):
    _, metrics = small.finished(
        small.network(), name, np.ones((25, 7), dtype=bool), evaluate_every=25
    )
    assert metrics[-1].views["server"].test_accuracy > 0.9


@pytest.mark.parametrize("name", REFERENCE)
def test_all_equal_fedavg_when_all_links_are_up(name):
    up, task = np.ones((12, 7), dtype=bool), small.quadratic()
    options = {"clip": 0.0} if name == "fedawe" else {}
    model = small.views(task, name, up, options=options, global_lr=0.7)["server"]
    assert (model - small.views(task, "fedavg", up, global_lr=0.7)["server"]).abs().max() < 1e-12


@every_algorithm
def test_the_state_is_complete(name):
    """A new instance with the restored state continues to the same bits."""
    task, up = small.quadratic(), small.random_table()
    original = small.simulation(task, name, up)
    steps = original.steps()
    for _ in range(9):
        next(steps)
    restored = small.simulation(task, name, up)
    restored.restore(copy.deepcopy(original.state()))
    for simulation in (steps, restored.steps()):
        list(simulation)
    assert small.same_bits(original.view_models(), restored.view_models())


@every_algorithm
def test_listing(name):
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
def test_cost(name, server, client, upload):
    kind = ALGORITHMS[name]
    cost = kind.models_on_server(100), kind.models_on_client, kind.vectors_per_upload
    assert cost == (server, client, upload)


def test_the_papers_second_group():
    aided = {name for name in REFERENCE if ALGORITHMS[name].memory_aided}
    assert aided == {"mifa", "fedavg_known", "fedvarp", "scaffold"}


def test_listing_does_not_import_torch():
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
    assert register_algorithm(Median) is Median  # as when a module is imported twice

    class Duplicate(Algorithm):
        name = "median"

    with pytest.raises(InputError, match="not taken"):
        register_algorithm(Duplicate)
    with pytest.raises(InputError, match="a word"):
        register_algorithm(type("Nameless", (Algorithm,), {}))


def test_an_algorithm_without_aggregate():
    with pytest.raises(NotImplementedError, match="aggregate"):
        Algorithm(ServerInit(torch.zeros(1), 1)).aggregate(None, [])


def test_a_selection_outside_the_active_clients_is_refused():
    class OutsideSelection(Algorithm):
        name = "reaching"

        def select(self, round):
            return np.array([0])

    with pytest.raises(InputError, match=r"reaching's selection"):
        small.finished(small.quadratic(2), OutsideSelection, small.table([{1}], 2))
