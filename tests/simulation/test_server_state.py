from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpbc.algorithms import ALGORITHMS, ClientResult
from fedpbc.engines.serial import train
from fedpbc.errors import DivergedError
from fedpbc.simulation.build import make_algorithm
from fedpbc.simulation.server_state import ServerState
from fedpbc.simulation.views import DEPLOYABLE
from fedpbc.storage.tensors import load_state, save_state
from tests.deployment.fake_network import simulated, small_task

SERVABLE = [name for name, kind in ALGORITHMS.items() if not kind.needs_probabilities]


def state_of(algorithm, task):
    """The state as a fleet's server has it."""
    return ServerState(algorithm, task.training, views=DEPLOYABLE)


def close_round(server, uploads):
    """End a round as a fleet does, with what arrived; a device's state does not arrive."""
    opened = server.open_round(sorted(uploads))
    selected = server.select(opened)
    server.close_round(opened, selected, lambda client: ClientResult(uploads[client]))
    return opened, selected


def drive(server, task, table, first=0, devices=None):
    """Everybody in A^t does the work that the server asks for; its state stays on its device."""
    lines, devices = [], {} if devices is None else devices
    for row in table[first:]:
        trained = {}
        for i in np.flatnonzero(row).tolist():
            segment = server.segment(i, server.round)
            trained[i] = train(task, replace(segment, state=devices.get(i, segment.state)))
        opened, selected = close_round(server, {i: each.upload for i, each in trained.items()})
        devices |= {i: trained[i].state for i in selected}
        assert not server.client_states
        lines.append({"round": opened.number, "active": opened.active.tolist()})
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
    server = state_of(make_algorithm(algorithm, task), task)
    lines = drive(server, task, table)
    expected = simulated(task, algorithm, lines)
    found = server.view_models()
    assert set(found) == set(expected) - {"mean"}
    for view, model in found.items():
        assert torch.equal(model, expected[view]), view


@pytest.mark.parametrize("name", SERVABLE)
def test_a_server_goes_on_from_disk_to_the_same_bits(name, table, tmp_path):
    task = small_task()
    whole = state_of(make_algorithm(name, task), task)
    drive(whole, task, table)
    half = state_of(make_algorithm(name, task), task)
    devices = {}
    drive(half, task, table[:6], devices=devices)
    save_state(tmp_path / "s", half.state())
    other = state_of(make_algorithm(name, task), task)
    other.restore(load_state(tmp_path / "s"))
    drive(other, task, table, first=6, devices=devices)
    for view, model in whole.view_models().items():
        assert torch.equal(model, other.view_models()[view]), view
    for counter in ("uploads", "bytes_up", "bytes_down", "local_steps"):
        assert getattr(other, counter) == getattr(whole, counter)
    assert other.last_upload.tolist() == whole.last_upload.tolist()


def test_what_is_owed_is_the_model_of_the_last_answer_taken():
    task = small_task()
    server = state_of(make_algorithm("fedpbc", task), task)
    first = drive(server, task, np.array([[1, 0, 0], [0, 1, 0]], dtype=bool))
    assert [line["active"] for line in first] == [[0], [1]]
    work = server.segment(0, server.round)
    assert (work.first_round, work.rounds, work.first_batch) == (1, 2, 2)
    work = server.segment(2, server.round)
    assert (work.first_round, work.rounds, work.first_batch) == (0, 3, 0)
    assert torch.equal(work.start, task.init())


def test_a_round_that_diverges_leaves_the_server_where_it_began():
    task = small_task()
    server = state_of(make_algorithm("mifa", task), task)
    drive(server, task, np.ones((2, 3), dtype=bool))
    before = server.algorithm.x
    with pytest.raises(DivergedError):
        close_round(server, {0: {"model": torch.full_like(before, float("inf"))}})
    assert server.round == 2
    assert torch.equal(server.algorithm.x, before)
    after = drive(server, task, np.ones((1, 3), dtype=bool))
    assert after[0]["round"] == 2
