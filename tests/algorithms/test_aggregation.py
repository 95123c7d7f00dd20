"""Trimmed mean, median and clipping: against the reference, resumed, and what they withstand."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict

import numpy as np
import pytest
import torch

from fedpbc.algorithms import ALGORITHMS, Aggregation, ServerInit, check_aggregation
from fedpbc.engines import PoolEngine
from fedpbc.engines.engine import one_thread
from fedpbc.errors import InputError
from fedpbc.simulation.loop import Simulation
from tests import small_runs as small
from tests.reference import reference

ROBUST = {
    "fedpbc": {},
    "fedavg": {},
    "fedavg_all": {},
    "amplified_fedavg": {"window": 3},
    "fedawe": {},
    "mifa": {},
    "mifa-heard": {"over": "heard", "rescale": True},
}
KEEPING = {"scaffold", "amplified_scaffold", "focus", "area"}
CLIPPED = sorted(set(ALGORITHMS) - KEEPING)
MEDIAN = Aggregation(name="median")
TRIMMED = Aggregation(name="trimmed_mean", trim=0.3)
CLIP = Aggregation(clip=0.05)
CASES = [
    *((name, how, False) for name in ROBUST for how in (MEDIAN, TRIMMED)),
    *((name, CLIP, False) for name in CLIPPED),
    # What a client continues from without the answer is not clipped.
    *((name, how, True) for name in ("fedpbc", "fedawe", "mifa") for how in (MEDIAN, CLIP)),
    ("fedpbc", Aggregation(name="median", clip=0.05), True),
]


def kind_of(case):
    return case.partition("-")[0]


def expected_views(task, case, aggregation, lost):
    up = busy_table()
    with one_thread():
        return reference(
            kind_of(case),
            task.init(),
            up,
            task.local_steps,
            local_steps=task.training.local_steps,
            learning_rate=task.training.rate,
            downlink=small.lossy() if lost else None,
            probabilities=np.broadcast_to(up.mean(axis=0), up.shape),
            loss=task.client_loss,
            aggregation=asdict(aggregation),
            **ROBUST.get(case, {}),
        )


def busy_table():
    """Enough clients per round that a trimmed mean and a median differ from the mean."""
    up = np.random.default_rng(4).random((small.ROUNDS, small.CLIENTS)) < 0.6
    up[[0, 5]] = False
    up[:, 2] = False
    return up


def simulated(task, case, aggregation, lost=False, **more):
    return small.simulation(
        task,
        kind_of(case),
        busy_table(),
        down=small.lossy() if lost else None,
        options=ROBUST.get(case, {}),
        aggregation=aggregation,
        **more,
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("case", "aggregation", "lost"), CASES, ids=str)
def test_the_reference_to_the_bit(case, aggregation, lost):
    task = small.network()
    # Evaluations cut clients' work in two: it must not show.
    simulation = simulated(task, case, aggregation, lost, evaluate_every=4)
    list(simulation.run())
    expected = expected_views(task, case, aggregation, lost)
    assert small.same_bits(simulation.view_models(), expected)
    plain = expected_views(task, case, Aggregation(), lost)
    assert not torch.equal(expected["server"], plain["server"])


def test_the_numbers_of_clients_do_not_matter():
    """One client is itself, and two are their mean, whatever is trimmed."""
    vectors = [torch.tensor([1.0, 5.0]), torch.tensor([3.0, -1.0])]
    for how in (MEDIAN, Aggregation(name="trimmed_mean", trim=0.49)):
        assert torch.equal(how.mean_of(vectors[:1]), vectors[0])
        assert torch.equal(how.mean_of(vectors), torch.tensor([2.0, 2.0]))


def test_pieces_have_no_effect(monkeypatch):
    vectors = list(torch.randn(5, 33, generator=torch.Generator().manual_seed(0)))
    whole = MEDIAN.mean_of(vectors)
    monkeypatch.setattr("fedpbc.aggregation.VALUES_AT_ONCE", 20)
    assert torch.equal(MEDIAN.mean_of(vectors), whole)
    assert torch.equal(whole, torch.stack(vectors).median(dim=0).values)


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", [MEDIAN, Aggregation(name="trimmed_mean", clip=0.05)])
def test_the_engine_does_not_show(aggregation):
    task = small.network()
    ended = []
    for more in ({}, {"engine": lambda task: PoolEngine(task, workers=2)}):
        with closing(simulated(task, "fedpbc", aggregation, **more)) as simulation:
            list(simulation.run())
            ended.append(simulation.view_models())
    assert small.same_bits(*ended)


@pytest.mark.parametrize("case", ["fedpbc", "mifa"])
def test_a_resumed_run_has_the_same_bits(case):
    task, aggregation = small.network(), Aggregation(name="median", clip=0.05)
    whole = simulated(task, case, aggregation, evaluate_every=4)
    list(whole.run())
    first = simulated(task, case, aggregation, evaluate_every=4)
    for _ in zip(range(10), first.steps(), strict=False):
        continue
    resumed: Simulation = simulated(task, case, aggregation, evaluate_every=4)
    resumed.restore(first.state())
    list(resumed.run())
    assert small.same_bits(resumed.view_models(), whole.view_models())


@pytest.mark.parametrize("name", ["fedpbc", "fedavg", "fedavg_all", "fedawe", "mifa"])
@pytest.mark.parametrize("aggregation", [MEDIAN, TRIMMED], ids=str)
def test_one_client_of_five_cannot_move_the_model_far(name, aggregation):
    """Its value is beyond those of the others, and the result is not."""
    from fedpbc.algorithms import Round, Update

    algorithm = ALGORITHMS[name](ServerInit(torch.zeros(2), 5, aggregation=aggregation))
    ends = [torch.tensor([0.1 * k, -0.1 * k]) for k in range(1, 5)] + [torch.full((2,), 1e30)]
    updates = [Update(i, torch.zeros(2), end) for i, end in enumerate(ends)]
    algorithm.aggregate(Round(0, np.arange(5), 0.1, 1), updates)
    assert algorithm.x.abs().max() <= 0.5


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_what_makes_no_sense_is_refused_by_name(name):
    kind = ALGORITHMS[name]
    if name in KEEPING:
        for aggregation in (MEDIAN, TRIMMED, CLIP):
            with pytest.raises(InputError, match=f"aggregation.*clients of {name} upload"):
                check_aggregation(kind, {}, aggregation)
    elif name in ROBUST:
        check_aggregation(kind, {}, MEDIAN)
    else:
        check_aggregation(kind, {}, CLIP)
        with pytest.raises(InputError, match=f"aggregation is 'median', but {name} weights"):
            check_aggregation(kind, {}, MEDIAN)
    check_aggregation(kind, {}, Aggregation())


def test_mifa_with_its_memory_on_the_clients_is_refused():
    with pytest.raises(InputError, match="clients of mifa upload"):
        check_aggregation(ALGORITHMS["mifa"], {"memory": "client"}, MEDIAN)
