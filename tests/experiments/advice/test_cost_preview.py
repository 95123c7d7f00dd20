from __future__ import annotations

import numpy as np

from fedpbc import simulate
from fedpbc.algorithms import ALGORITHMS
from fedpbc.experiments.advice.cost_preview import preview_costs
from fedpbc.links import from_table
from fedpbc.tasks import LocalTraining
from tests import small_runs as small


def test_costs_are_those_of_a_real_run():
    table = small.random_table(rounds=18)
    training = LocalTraining(local_steps=3)
    previews = preview_costs(ALGORITHMS, from_table(table), training)
    task = small.quadratic(dimension=4)
    for name, preview in previews.items():
        cost = simulate(task, name, table, evaluate_every=18).cost
        assert preview.local_steps == cost["local_steps"], name
        assert preview.models_on_client == cost["models_on_client"], name
        models = [n for n in cost["models_on_server"].values() if n is not None]
        assert preview.models_on_server == min(models), name


def test_local_steps_are_extrapolated():
    table = np.ones((900, 4), dtype=bool)
    [preview] = preview_costs(["fedavg"], from_table(table), LocalTraining(local_steps=5)).values()
    assert preview.local_steps == 900 * 4 * 5


def test_what_needs_probabilities_is_left_out():
    previews = preview_costs(ALGORITHMS, from_table(np.ones((3, 2), dtype=bool)), LocalTraining())
    assert "fedavg_known" not in previews
    assert len(previews) == sum(not kind.needs_probabilities for kind in ALGORITHMS.values())


def test_contacts_beyond_the_counted_rounds_count():
    """Down at first: 40 rounds with two contacts each, then 60 with four."""
    table = np.ones((100, 4), dtype=bool)
    table[:40, 2:] = False
    training = LocalTraining(local_steps=5)
    previews = preview_costs(["fedavg", "fedpbc"], from_table(table), training)
    assert previews["fedavg"].local_steps == (40 * 2 + 60 * 4) * 5
    assert previews["fedpbc"].local_steps == 100 * 4 * 5
