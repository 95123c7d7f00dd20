from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpbc.algorithms import ALGORITHMS
from fedpbc.deployment.server.ledger import Ledger
from fedpbc.engines.serial import train
from fedpbc.errors import DivergedError
from fedpbc.simulation.build import make_algorithm
from fedpbc.storage.tensors import load_state, save_state
from tests.deployment.fake_network import simulated, small_task

SERVABLE = [name for name, kind in ALGORITHMS.items() if not kind.needs_probabilities]


def drive(ledger, task, table, first=0):
    """Everybody in A^t does the work that the ledger asks for."""
    lines = []
    for row in table[first:]:
        ends = {i: train(task, ledger.work(i)).end for i in np.flatnonzero(row).tolist()}
        closed = ledger.close(ends)
        lines.append({"round": closed.round, "active": closed.active})
    return lines


@pytest.fixture(scope="module")
def table():
    drawn = np.random.default_rng(5).random((12, 3)) < 0.5
    drawn[4] = False
    return drawn


@pytest.mark.parametrize("name", SERVABLE)
def test_every_algorithm_gives_the_simulators_bits(name, table):
    task = small_task()
    algorithm = {"name": "f3ast", "cap": 1} if name == "f3ast" else name
    ledger = Ledger(make_algorithm(algorithm, task), task.training)
    lines = drive(ledger, task, table)
    expected = simulated(task, algorithm, lines)
    found = ledger.view_models()
    assert set(found) == set(expected) - {"mean"}
    for view, model in found.items():
        assert torch.equal(model, expected[view]), view


@pytest.mark.parametrize("name", SERVABLE)
def test_a_ledger_goes_on_from_disk_to_the_same_bits(name, table, tmp_path):
    task = small_task()
    whole = Ledger(make_algorithm(name, task), task.training)
    drive(whole, task, table)
    half = Ledger(make_algorithm(name, task), task.training)
    drive(half, task, table[:6])
    save_state(tmp_path / "s", half.state())
    other = Ledger(make_algorithm(name, task), task.training)
    other.restore(load_state(tmp_path / "s"))
    drive(other, task, table, first=6)
    for view, model in whole.view_models().items():
        assert torch.equal(model, other.view_models()[view]), view
    assert other.uploads == whole.uploads


def test_what_is_owed_is_the_model_of_the_last_answer_taken():
    task = small_task()
    ledger = Ledger(make_algorithm("fedpbc", task), task.training)
    first = drive(ledger, task, np.array([[1, 0, 0], [0, 1, 0]], dtype=bool))
    assert [line["active"] for line in first] == [[0], [1]]
    work = ledger.work(0)
    assert (work.first_round, work.rounds, work.first_batch) == (1, 2, 2)
    work = ledger.work(2)
    assert (work.first_round, work.rounds, work.first_batch) == (0, 3, 0)
    assert torch.equal(work.start, task.init())


def test_a_round_that_diverges_leaves_the_ledger_where_it_began():
    task = small_task()
    ledger = Ledger(make_algorithm("mifa", task), task.training)
    drive(ledger, task, np.ones((2, 3), dtype=bool))
    before = ledger.algorithm.x
    with pytest.raises(DivergedError):
        ledger.close({0: torch.full_like(before, float("inf"))})
    assert ledger.round == 2
    assert torch.equal(ledger.algorithm.x, before)
    after = drive(ledger, task, np.ones((1, 3), dtype=bool))
    assert after[0]["round"] == 2
