"""What holds for every registered algorithm, including plugins."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedpbc.algorithms import (
    ALGORITHMS,
    Algorithm,
    ServerInit,
    find_algorithm,
    mean,
    register_algorithm,
)
from fedpbc.engines import StackedEngine
from fedpbc.errors import DivergedError, InputError
from fedpbc.simulation.costs import costs_of
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
    # FOCUS adds up the clients' gradients, m of them, where others average s steps.
    global_lr = 2 / 7 if name == "focus" else 1.0
    up = np.ones((25, 7), dtype=bool)
    _, metrics = small.finished(small.network(), name, up, global_lr=global_lr, evaluate_every=25)
    assert metrics[-1].views["server"].test_accuracy > 0.9


# With these options all weights are 1, and nothing is clipped or amplified. The control variates of
# SCAFFOLD add up to 0, which changes nothing since all quadratics are equally curved.
LIKE_FEDAVG = {
    **{name: {} for name in REFERENCE},
    "fedawe": {"clip": 0.0},
    "amplified_fedavg": {"window": 2, "gamma": 1.0},
    "amplified_scaffold": {"window": 2, "gamma": 1.0},
}
for other in ("focus", "ca_fed", "area"):  # see below
    del LIKE_FEDAVG[other]


def server_model(name, *, task=None, rounds=12, **more):
    """x with all links up."""
    up = np.ones((rounds, 7), dtype=bool)
    return small.views(task or small.quadratic(), name, up, **more)["server"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *LIKE_FEDAVG.items(),
        ("mifa", {"over": "heard", "memory": "client"}),
        ("mifa", {"rescale": True}),
        ("fedau", {"over": "heard"}),
        ("fedstale", {"beta": 1.0}),
        ("fedavg_debiased", {"cap": 1.0}),
    ],
)
def test_all_equal_fedavg_when_all_links_are_up(name, options):
    model = server_model(name, options=options, global_lr=0.7)
    assert (model - server_model("fedavg", global_lr=0.7)).abs().max() < 1e-12


def test_area_equals_fedavg_when_all_links_are_up_at_a_global_rate_of_1():
    """At another, it goes part of the way from the models delivered last, not from its own."""
    assert (server_model("area") - server_model("fedavg")).abs().max() < 1e-12
    damped = server_model("area", global_lr=0.7) - server_model("fedavg", global_lr=0.7)
    assert damped.abs().max() > 1e-3


def test_focus_is_gradient_descent_on_the_sum_when_all_links_are_up():
    """With one local step; FedAvg's step is on the mean, so m times as small."""
    task = small.quadratic(local_steps=1)
    focus = server_model("focus", task=task, global_lr=0.1)
    fedavg = server_model("fedavg", task=task, global_lr=0.7)
    assert (focus - fedavg).abs().max() < 1e-12


def test_ca_fed_is_fedavg_over_its_estimate_of_the_availability_when_all_links_are_up():
    """π̂ = (t + 2)/(t + 3): Laplace's rule does not believe that a link is always up."""
    task = small.quadratic()
    x = task.init()
    for t in range(12):
        ends = [task.local_steps(i, x, t, 3 * t, None) for i in range(7)]
        x = x + 0.7 * (t + 3) / (t + 2) * (torch.stack(ends).mean(0) - x)
    # A high price of the bias: nobody is left out.
    model = server_model("ca_fed", options={"bias": 1e3}, global_lr=0.7)
    assert (model - x).abs().max() < 1e-12


EXACT = {
    **{name: {} for name in ("mifa", "fedvarp", "scaffold", "focus", "mimic", "area")},
    "fedstale": {"beta": 1.0},
    "amplified_scaffold": {"window": 5, "gamma": 1.0},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", REFERENCE)
def test_memory_reaches_the_optimum_at_a_constant_rate_although_links_differ(name):
    """Others stay where the clients that happen to be heard pull them."""
    task = small.quadratic(decay=False)
    up = np.random.default_rng(0).random((800, 7)) < np.linspace(0.2, 0.9, 7)
    model = small.views(
        task,
        name,
        up,
        options=EXACT.get(name),
        global_lr=0.1 if name == "focus" else 1.0,
        evaluate_every=800,
    )["server"]
    error = float((model - task.targets.mean(0)).abs().max())
    assert error < 1e-9 if name in EXACT else error > 0.05


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


# Vectors of the model's size, with all of 7 clients heard from: on the server, on each client, in
# an upload, and in what comes down before it.
COSTS = {
    "fedpbc": (1, 1, 1, 1),
    "fedavg": (1, 0, 1, 1),
    "fedavg_all": (1, 0, 1, 1),
    "fedau": (1, 0, 1, 1),
    "f3ast": (1, 0, 1, 1),
    "fedavg_known": (1, 0, 1, 1),
    "mifa": (1 + 7 + 1, 0, 1, 1),  # x, all G_i and their sum
    "mifa-client": (2, 1, 1, 1),
    "fedawe": (1, 1, 1, 1),
    "fedvarp": (1 + 7 + 1, 0, 1, 1),
    "scaffold": (2, 1, 2, 2),
    "focus": (2, 1, 1, 1),
    "fedstale": (1 + 7 + 1, 0, 1, 1),
    "mimic": (1 + 7, 0, 1, 1),
    "area": (1, 1, 1, 1),
    "ca_fed": (1, 0, 1 + 1 / 4, 1),  # the loss is one number beside the model's four
    "fedavg_debiased": (1, 0, 1, 1),
    "amplified_fedavg": (2, 0, 1, 1),
    "amplified_scaffold": (4, 2, 2, 2),  # x, the window's start, c and its change; c_i, ḡ_i
}


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("variant", COSTS)
def test_costs_of_a_finished_run(variant, lost):
    name, *more = variant.split("-")
    task, up = small.quadratic(), np.ones((3, 7), dtype=bool)
    down = np.array([[1, 0, 1, 1, 1, 1, 0], [1] * 7, [0] * 7], dtype=bool)
    options = {"memory": "client"} if more else {}
    made, metrics = small.finished(task, name, up, down=down if lost else None, options=options)
    costs, vector = costs_of(made.server), 4 * 8
    on_server, on_client, uploaded, sent = COSTS[variant]
    assert costs["models_on_server"]["server"] == on_server
    assert costs["models_on_server"]["averaged"] == on_server + 1
    assert costs["models_on_client"] == on_client
    assert (costs["local_steps"], costs["uploads"]) == (3 * 7 * 3, 3 * 7)
    assert costs["bytes_up"] == 3 * 7 * uploaded * vector
    # Each upload answers one model; with losses, that is what the downlinks that are up carried.
    assert costs["bytes_down"] == (5 + 7 if lost else 3 * 7) * sent * vector
    assert (metrics[-1].bytes_up, metrics[-1].bytes_down) == (
        costs["bytes_up"],
        costs["bytes_down"],
    )
    if ALGORITHMS[name].client_models:
        assert costs["models_on_server"]["mean"] is None
        assert costs["models_on_server"]["reported"] == on_server + 7
        assert costs["models_on_server"]["corrected"] == on_server + 1 + 7


def test_every_algorithm_has_its_costs():
    assert {variant.partition("-")[0] for variant in COSTS} == set(REFERENCE)


def test_memory_is_counted_for_clients_heard_from():
    made, _ = small.finished(small.quadratic(), "mifa", small.table([{0, 4}, {4}], 7))
    assert costs_of(made.server)["models_on_server"]["server"] == 1 + 2 + 1


@pytest.mark.parametrize("name", ["amplified_fedavg", "amplified_scaffold"])
@pytest.mark.parametrize("window", [1, 2, 3, 4])
def test_the_start_of_a_window_is_counted_also_at_its_end(name, window):
    up = np.ones((4, 7), dtype=bool)
    made, _ = small.finished(small.quadratic(), name, up, options={"window": window})
    assert costs_of(made.server)["models_on_server"]["server"] == COSTS[name][0]


def test_the_papers_second_group():
    aided = {name for name in REFERENCE if ALGORITHMS[name].memory_aided}
    assert aided == {
        *("mifa", "fedavg_known", "fedvarp", "scaffold"),
        *("focus", "fedstale", "mimic", "area", "amplified_scaffold"),
    }


def test_which_clients_have_a_rule():
    init = ServerInit(torch.zeros(2), 3)
    two_sided = {
        name
        for name in REFERENCE
        if ALGORITHMS[name](init, **small.TWO_SIDED.get(name, {})).client_rule() is not None
    }
    assert two_sided == set(small.TWO_SIDED)


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

        def aggregate(self, round, updates):
            pass

    assert register_algorithm(Median) is Median is find_algorithm("median")
    assert register_algorithm(Median) is Median  # as when a module is imported twice

    class Duplicate(Algorithm):
        name = "median"

    with pytest.raises(InputError, match="not taken"):
        register_algorithm(Duplicate)
    with pytest.raises(InputError, match="a word"):
        register_algorithm(type("Nameless", (Algorithm,), {}))


def test_an_algorithm_without_aggregate():
    with pytest.raises(InputError, match="Idle has no aggregate"):
        register_algorithm(type("Idle", (Algorithm,), {"name": "idle"}))
    for wrong in (lambda self, round: None, lambda self, a, b, c: None, 3):
        with pytest.raises(InputError, match=r"Idle\.aggregate should be a function aggregate\("):
            register_algorithm(type("Idle", (Algorithm,), {"name": "idle", "aggregate": wrong}))
    assert "idle" not in ALGORITHMS
    with pytest.raises(NotImplementedError, match="aggregate"):
        Algorithm(ServerInit(torch.zeros(1), 1)).aggregate(None, [])


def test_a_selection_outside_the_active_clients_is_refused():
    class OutsideSelection(Algorithm):
        name = "reaching"

        def select(self, round):
            return np.array([0])

    with pytest.raises(InputError, match=r"reaching's selection"):
        small.finished(small.quadratic(2), OutsideSelection, small.table([{1}], 2))


def test_an_algorithm_that_does_not_begin_as_its_base_class():
    class Idle(Algorithm):
        name = "idle"

        def __init__(self, init):
            pass

        def aggregate(self, round, updates):
            pass

    with pytest.raises(InputError, match=r"^Idle.__init__ should call super\(\).__init__\(init\)$"):
        small.finished(small.quadratic(2), Idle, small.table([{1}], 2))


class Choosing(Algorithm):
    """FedAvg over those that it is told to select."""

    name = "choosing"
    chosen = staticmethod(lambda active: active)

    def select(self, round):
        return self.chosen(round.active)

    def aggregate(self, round, updates):
        if updates:
            self.x = mean(update.model for update in updates)


@pytest.mark.parametrize(
    "chosen",
    [
        lambda active: active.tolist(),
        lambda active: list(active),
        lambda active: active.tolist()[::-1],
        lambda active: torch.from_numpy(active),
        lambda active: active.astype(np.int32),
    ],
)
def test_a_selection_may_be_a_list(chosen):
    kind = type("Listing", (Choosing,), {"chosen": staticmethod(chosen)})
    task, up = small.quadratic(), small.random_table()
    assert small.same_bits(small.views(task, kind, up), small.views(task, "fedavg", up))


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (lambda active: active > 0, "a part of A"),  # a mask
        (lambda active: None, "a part of A"),
        (lambda active: [0.5], "a part of A"),
        (lambda active: [0, 0], "each client once"),
        (lambda active: [[0], [1, 2]], "a part of A"),
        (lambda active: 3, "a part of A"),
    ],
)
def test_a_selection_that_is_none(chosen, expected):
    kind = type("Listing", (Choosing,), {"chosen": staticmethod(chosen)})
    with pytest.raises(InputError, match=rf"^choosing's selection is .*should be {expected}"):
        small.finished(small.quadratic(), kind, np.ones((2, 7), dtype=bool))


class Forgetful(Algorithm):
    name = "forgetful"

    def aggregate(self, round, updates):
        self.x = mean(update.model for update in updates)


class Dividing(Forgetful):
    def aggregate(self, round, updates):
        self.x = self.x + sum(update.delta for update in updates) / len(updates)


class Stacking(Forgetful):
    def aggregate(self, round, updates):
        self.x = torch.stack([update.model for update in updates]).mean(0)


class NotANumber(Forgetful):
    def aggregate(self, round, updates):
        self.x = self.x + torch.tensor([float(update.delta[0]) for update in updates]).mean()


class First(Forgetful):
    def aggregate(self, round, updates):
        self.x = updates[0].model


@pytest.mark.parametrize("kind", [Forgetful, Dividing, Stacking, NotANumber, First])
def test_a_forgotten_round_without_updates_is_named(kind):
    up = small.table([{0, 1}, {1}, set(), {0}], 2)
    match = r"^forgetful failed in round 3: nobody got through .*: if not updates: return$"
    with pytest.raises(InputError, match=match):
        small.finished(small.quadratic(2), kind, up)


def test_a_failure_in_another_round_is_left_as_it_is():
    class Failing(Forgetful):
        def aggregate(self, round, updates):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        small.finished(small.quadratic(2), Failing, small.table([{0, 1}], 2))


def test_a_divergence_without_updates_remains_one():
    class Exploding(Forgetful):
        def aggregate(self, round, updates):
            self.x = (self.x + 1) * 1e200

    with pytest.raises(DivergedError):
        small.finished(small.quadratic(2), Exploding, small.table([set()] * 4, 2))
