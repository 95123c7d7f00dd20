"""Clients whose batches differ in size, stacked: the same models as one after another."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpbc.engines import SerialEngine, StackedEngine
from fedpbc.tasks import LocalTraining, Supervised
from tests import small_runs as small

SIZES = [3, 40, 1, 8, 3, 7, 30]
"""Samples of each client; a batch has eight."""


def uneven(**training):
    parts = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    options = {"local_steps": 3, "batch_size": 8, "learning_rate": 0.1, **training}
    data = small.samples()
    return Supervised(
        small.mlp(), data, data, partition=parts, training=LocalTraining(**options), seed=5
    )


def test_clients_with_fewer_samples_than_a_batch_are_stacked():
    assert uneven().stack_advice().worthwhile


@pytest.mark.parametrize("training", [{}, {"momentum": 0.9}, {"proximal": 0.1}])
@pytest.mark.parametrize("corrected", [False, True])
def test_each_row_is_its_clients_own_round(training, corrected):
    task = uneven(**training)
    clients, rounds, first = [6, 0, 2, 1, 4, 5], [0, 2, 0, 1, 3, 0], [0, 4, 9, 1, 0, 30]
    random = torch.Generator().manual_seed(1)
    starts = task.init() + 0.1 * torch.randn(len(clients), len(task.init()), generator=random)
    terms = 0.01 * torch.randn(starts.shape, generator=random) if corrected else None
    stack = starts.clone()
    task.stacked_local_steps(clients, stack, rounds, first, terms)
    for k, client in enumerate(clients):
        term = None if terms is None else terms[k]
        alone = task.local_steps(client, starts[k], rounds[k], first[k], term)
        assert small.distance(stack[k], alone) < 1e-5


def test_a_rows_bits_do_not_depend_on_the_other_rows():
    task = uneven()
    together = task.init().repeat(len(SIZES), 1)
    task.stacked_local_steps(range(len(SIZES)), together, [0] * 7, [0] * 7, None)
    for pair in ([0, 1], [2, 3], [4, 0], [5, 6]):
        models = task.init().repeat(2, 1)
        task.stacked_local_steps(pair, models, [0, 0], [0, 0], None)
        assert torch.equal(models, together[pair])


@pytest.mark.parametrize("algorithm", ["fedpbc", "fedavg", "scaffold"])
def test_runs_are_those_of_the_serial_engine(algorithm):
    up = small.random_table(clients=len(SIZES))
    stacked = small.views(uneven(), algorithm, up, engine=StackedEngine)
    serial = small.views(uneven(), algorithm, up, engine=SerialEngine)
    for view, model in serial.items():
        assert small.distance(stacked[view], model) < 1e-4
