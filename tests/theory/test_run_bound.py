"""The lemma Consensus Error beside a run."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from fedpbc import Config, LocalTraining, Quadratic, resume_run, simulate, start_run, theory
from fedpbc.algorithms import FedPBC, ServerInit
from fedpbc.experiments.execution import Watcher
from fedpbc.links import Setting, Timetable, link_scheme
from fedpbc.links.scheme import SCHEMES
from fedpbc.simulation.metrics import Metrics
from fedpbc.tasks import Gradients
from fedpbc.theory.run_bound import RunBound
from tests import small_runs as small
from tests.commandline import assert_same_run, metrics

pytestmark = pytest.mark.slow

P = np.linspace(0.3, 0.9, 8)


def targets(clients: int = 8, dimension: int = 3) -> np.ndarray:
    random = np.random.default_rng(1)
    return random.normal(size=(clients, dimension)) + np.arange(clients)[:, None]


def within(p: np.ndarray, steps: int) -> float:
    """A step size that the lemma covers."""
    return theory.largest_step_size(theory.mixing_rate(p), 1.0, steps)


def bernoulli(p: np.ndarray = P) -> dict[str, object]:
    return {"name": "bernoulli", "p": p.tolist()}


def quadratic(step: float = 0.1, steps: int = 3, decay: bool = False) -> Quadratic:
    training = LocalTraining(local_steps=steps, learning_rate=step, decay=decay)
    return Quadratic(targets(), training=training)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("links", ["bernoulli", "bernoulli_varying"])
@pytest.mark.parametrize("steps", [1, 4])
def test_the_measured_consensus_error_stays_below_the_bound(links, steps):
    lowest = P if links == "bernoulli" else 0.2 * P
    task = quadratic(within(lowest, steps), steps)
    scheme = {"name": links, "p": P.tolist()}
    found = simulate(task, "fedpbc", scheme, rounds=600, evaluate_every=1).metrics
    errors = np.array([line.consensus_error for line in found])
    bounds = np.array([line.observed["consensus_bound"] for line in found])
    # The lemma speaks of the mean up to each round; here every single one stays below it as well.
    means = np.cumsum(errors) / np.arange(1, len(errors) + 1)
    assert (bounds > 0).all()
    assert (means <= bounds).all()
    assert (errors <= bounds).all()
    assert errors.max() > 0


def test_the_bound_by_hand():
    task = quadratic(0.1, steps=3)
    found = simulate(task, "fedpbc", bernoulli(), rounds=20, evaluate_every=10).metrics
    centre = targets().mean(axis=0)
    spread = np.square(targets() - centre).sum(axis=1).mean()
    # x̄ goes to the optimum by itself: aggregation never moves it.
    slopes = [np.square(centre * 0.9 ** (3 * t)).sum() for t in (0, 10)]
    for line, mean_slope in zip(found, (slopes[0], sum(slopes) / 2), strict=True):
        bound = theory.consensus_bound(
            step_size=0.1,
            local_steps=3,
            rho=theory.mixing_rate(P),
            sigma=0.0,
            zeta=math.sqrt(spread),
            beta=0.0,
            mean_squared_gradient=mean_slope,
        )
        assert line.observed["consensus_bound"] == pytest.approx(bound, rel=1e-5)


def test_a_decaying_step_counts_as_its_first():
    falling = simulate(quadratic(decay=True), "fedpbc", bernoulli(), rounds=1).metrics[0]
    constant = simulate(quadratic(), "fedpbc", bernoulli(), rounds=1).metrics[0]
    assert falling.observed["consensus_bound"] == constant.observed["consensus_bound"]


@pytest.mark.parametrize(
    "other",
    [
        {"algorithm": "fedavg"},
        {"algorithm": "fedawe"},
        {"links": {"name": "markov", "p": 0.5}},
        {"links": {"name": "cyclic", "p": 0.5}},
        {"links": np.ones((4, 8), dtype=bool)},
        {"links": {"name": "bernoulli", "p": [0.0, *P[1:].tolist()]}},
        {"views": ["server", "reported"]},
        {"global_lr": 0.5},
        {"downlink": {"name": "bernoulli", "p": 0.5}},
    ],
    ids=lambda other: str(other)[:40],
)
def test_what_the_lemma_does_not_speak_of_has_no_bound(other):
    usual = {"algorithm": "fedpbc", "links": bernoulli(), "rounds": 4, "evaluate_every": 2}
    found = simulate(quadratic(), **{**usual, **other}).metrics
    assert [line.observed["consensus_bound"] for line in found] == [None, None]
    assert simulate(quadratic(), **usual).metrics[-1].observed["consensus_bound"] > 0


def test_only_plain_steps_have_a_bound():
    training = LocalTraining(local_steps=3, learning_rate=0.1, momentum=0.9)
    task = Quadratic(targets(), training=training)
    assert (
        simulate(task, "fedpbc", bernoulli(), rounds=2).metrics[-1].observed["consensus_bound"]
        is None
    )


def test_a_task_without_gradients_has_no_bound():
    class Plain(Quadratic):
        gradients = None

    assert (
        simulate(Plain(targets()), "fedpbc", bernoulli(), rounds=2)
        .metrics[0]
        .observed["consensus_bound"]
        is None
    )


def test_a_scheme_of_ones_own_has_a_bound_if_it_says_that_it_is_independent():
    @link_scheme(independent=True)
    def coins(setting):
        """Fair coins."""
        for t in range(setting.rounds):
            yield setting.uniform(t) < 0.5, np.full(setting.clients, 0.5)

    try:
        found = (
            simulate(quadratic(), "fedpbc", "coins", rounds=2)
            .metrics[0]
            .observed["consensus_bound"]
        )
        even = simulate(quadratic(), "fedpbc", bernoulli(np.full(8, 0.5)), rounds=2).metrics[0]
        assert found == even.observed["consensus_bound"]
    finally:
        del SCHEMES["coins"]


def lemma(clients: int = 8) -> RunBound:
    task = Quadratic(targets(clients))
    setting = Setting(0, clients, rounds=5, base_probabilities=np.full(clients, 0.5))
    links = Timetable.draw("bernoulli", setting)
    return RunBound(task, FedPBC(ServerInit(task.init(), clients)), links, None)


def test_many_clients_have_the_bound_on_rho():
    assert lemma().rho == theory.mixing_rate([0.5] * 8)
    assert lemma(1001).rho == theory.mixing_rate_bound(0.5, 1001)


def test_the_largest_noise_and_spread_that_were_seen_count():
    made, x = lemma(), torch.zeros(3, dtype=torch.float64)
    told = iter([Gradients(4, 1, 2), Gradients(1, 3, 1), Gradients(9, 2, 0)])
    made.task.gradients = lambda model, draw: next(told)  # type: ignore[attr-defined]
    first = made.observe(10, {"mean": x})
    assert made.state() == {"slope": 1, "noise": 3, "spread": 2, "slopes": 40, "rounds": 10}
    second = made.observe(15, {"mean": x})
    assert made.state() == {"slope": 9, "noise": 3, "spread": 2, "slopes": 45, "rounds": 15}
    # 12σ² + 54ζ² + 54G, with G = 4 and then 45/15.
    assert second / first == pytest.approx((36 + 108 + 162) / (36 + 108 + 216), rel=1e-5)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_gradients_that_are_not_finite_have_no_bound_and_do_not_end_the_run(wrong):
    made, x = lemma(), torch.zeros(3, dtype=torch.float64)
    told = iter([Gradients(4, 1, 2), Gradients(1, wrong, 1), Gradients(1, 1, 1)])
    made.task.gradients = lambda model, draw: next(told)  # type: ignore[attr-defined]
    assert made.observe(10, {"mean": x}) is None
    made.restore(json.loads(json.dumps(made.state())))
    assert made.observe(20, {"mean": x}) is None


class Stop(Exception):
    """Stands for whatever interrupts a run."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("links", ["bernoulli", "bernoulli_varying"])
@pytest.mark.parametrize("after", [4, 7, 10])
def test_a_run_that_was_stopped_goes_on_to_the_same_bounds(tmp_path, links, after):
    given = {"data": "digits", "clients": 8, "rounds": 14, "evaluate_every": 3}
    given |= {"checkpoint_every": 2, "links": {"name": links, "p": 0.4}}

    def stop(done, _):
        if done == after:
            raise Stop

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    start_run(Config.from_dict(given), whole)
    with pytest.raises(Stop):
        start_run(Config.from_dict(given), broken, watcher=Watcher(on_round=stop))
    resume_run(broken)
    assert_same_run(whole, broken)
    bounds = [line["consensus_bound"] for line in metrics(whole)]
    assert all(bound > 0 for bound in bounds)
    assert len(set(bounds)) == len(bounds) == 5


def test_the_bound_changes_nothing_else(monkeypatch):
    def run():
        return simulate(small.network(), "fedpbc", {"name": "bernoulli", "p": 0.5}, rounds=7)

    with_bound = run()
    monkeypatch.setattr(RunBound, "observe", lambda *_: None)
    without = run()
    assert small.same_bits(with_bound.models, without.models)
    for one, other in zip(with_bound.metrics, without.metrics, strict=True):
        assert one.observed["consensus_bound"] is not None
        assert other.observed["consensus_bound"] is None
        assert one.views == other.views
        assert one.consensus_error == other.consensus_error


def test_lines_of_older_runs_have_no_bound():
    [line] = simulate(quadratic(), "fedpbc", bernoulli(), rounds=1).metrics
    older = line.as_dict()
    assert older.pop("consensus_bound") > 0
    assert Metrics.from_dict(older).observed == {}
    assert Metrics.from_dict(line.as_dict()) == line
