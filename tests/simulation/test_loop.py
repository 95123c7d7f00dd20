"""The round loop: what is counted, who holds what, lazy against eager, and where it leads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpbc.algorithms import FedAvg, FedPBC, ServerInit
from fedpbc.engines import SerialEngine, StackedEngine
from fedpbc.errors import DivergedError, InputError
from fedpbc.links import Setting, Timetable
from fedpbc.simulation.loop import Simulation
from fedpbc.tasks import Evaluation, LocalTraining, Quadratic
from fedpbc.tasks.parameter_layout import Layout
from fedpbc.theory import consensus_error, fedavg_limit
from tests import small_runs as small

TRAININGS = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "adam": {"optimizer": "adam", "learning_rate": 0.01},
    "proximal": {"proximal": 0.3},
}
training = pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
tables = st.integers(1, 6).flatmap(
    lambda m: st.lists(st.lists(st.booleans(), min_size=m, max_size=m), min_size=1, max_size=12)
)


class Drift:
    """Each client goes its own given way: nothing but averaging can mix them."""

    class_shares = None
    seed = 0

    def __init__(self, drifts: np.ndarray) -> None:
        self.drifts = torch.from_numpy(drifts)  # [rounds, clients, dimensions]
        self.clients = drifts.shape[1]
        self.training = LocalTraining(local_steps=1)
        self.layout = Layout(("x",), (drifts.shape[2:],))

    def init(self):
        return torch.zeros_like(self.drifts[0, 0])

    def local_steps(self, client, start, round, first_batch, correction):
        return start + self.drifts[round, client]

    def evaluate(self, model):
        return Evaluation(test_loss=0.0)


# FedPBC's identities


@pytest.mark.parametrize("make", [small.quadratic, small.network], ids=["quadratic", "network"])
def test_fedpbc_with_all_links_up_is_fedavg_to_the_bit(engine, make):
    task, up = make(), np.ones((8, 7), dtype=bool)
    fedpbc = small.views(task, "fedpbc", up, engine=engine)
    fedavg = small.views(task, "fedavg", up, engine=engine)
    for view in ("server", "averaged"):
        assert torch.equal(fedpbc[view], fedavg[view])
    # Seven times x divided by seven is x but for the last bit.
    assert small.distance(fedpbc["mean"], fedavg["server"]) < 1e-15


@settings(deadline=None, max_examples=60)
@given(up=tables, global_lr=st.sampled_from([1.0, 0.5]), every=st.integers(1, 5))
def test_averaging_leaves_the_mean_of_all_clients_alone(up, global_lr, every):
    up = np.array(up)
    drifts = np.random.default_rng(up.sum()).normal(size=(*up.shape, 2))
    mean = small.views(Drift(drifts), "fedpbc", up, global_lr=global_lr, evaluate_every=every)
    wanted = torch.from_numpy(global_lr * drifts.mean(axis=1).sum(axis=0))
    assert (mean["mean"] - wanted).abs().max() < 1e-12


@settings(deadline=None, max_examples=30)
@given(up=tables)
def test_fedpbcs_mean_goes_straight_to_the_optimum(up):
    """On the quadratics x̄ − x* shrinks by (1 − η)^s a round, whoever gets through."""
    up = np.array(up)
    task = small.quadratic(up.shape[1], decay=False)
    for engine in (SerialEngine, StackedEngine):
        mean = small.views(task, "fedpbc", up, engine=engine)["mean"]
        left = (1 - 0.1) ** (3 * len(up))
        assert (mean - task.optimum * (1 - left)).abs().max() < 1e-12


@training
@pytest.mark.parametrize("make", [small.quadratic, small.network], ids=["quadratic", "network"])
def test_lazy_is_eager_to_the_bit(engine, make, training):
    """Whether a client's rounds are made one by one or all at once before its contact."""
    task, up, deployable = (
        make(**training),
        small.random_table(),
        ("server", "averaged", "reported"),
    )

    def run(**more):
        return small.finished(task, "fedpbc", up, engine=engine, global_lr=0.7, **more)

    eager, eager_metrics = run(evaluate_every=1)
    lazy, lazy_metrics = run(evaluate_every=1000, views=deployable)
    late, late_metrics = run(evaluate_every=1000)
    restricted, _ = run(evaluate_every=4, views=deployable)
    wanted = eager.view_models()
    assert small.same_bits(late.view_models(), wanted)
    for made in (lazy, restricted):
        assert small.same_bits(made.view_models(), {view: wanted[view] for view in deployable})
    last = eager_metrics[-1]
    assert late_metrics[-1].views == last.views
    assert late_metrics[-1].consensus_error == last.consensus_error
    assert lazy_metrics[-1].views == {view: last.views[view] for view in deployable}
    assert lazy_metrics[-1].local_steps == last.local_steps


def test_lazy_does_the_work_of_contacts_only():
    """Without the view of all clients, nobody trains after its last contact."""
    done = []

    class Watched(SerialEngine):
        def submit(self, segment):
            done.append((segment.client, segment.first_round, segment.last_round))
            super().submit(segment)

    up = small.table([{0}, {1}, {0}, {}], 3)
    small.finished(small.quadratic(3), "fedpbc", up, engine=Watched, views=["server"])
    assert sorted(done) == [(0, 0, 0), (0, 1, 2), (1, 0, 1)]


def test_clients_that_synced_together_share_one_model():
    made, _ = small.finished(small.quadratic(4), "fedpbc", small.table([{1}, {0, 2, 3}], 4))
    held = made.server.held
    assert held[0] is held[2] is held[3] is made.server.model
    assert held[1] is not held[0]


# Where it leads


def paths(kind, p, targets, rounds, seed=0):
    """The server's model after each round, over independent links."""
    task = Quadratic(targets, training=LocalTraining(local_steps=2, learning_rate=0.1, decay=False))
    setting = Setting(seed, len(p), rounds, np.array(p))
    uplink = Timetable.draw("bernoulli", setting)
    made = Simulation(
        task,
        kind(ServerInit(task.init(), len(p))),
        SerialEngine(task),
        uplink,
        evaluate_every=rounds,
    )
    return np.array([made.algorithm.x.numpy() for _ in made.steps()]), made


def test_fedavg_ends_up_at_proposition_1():
    p, targets = [0.8, 0.4, 0.1], np.array([[0.0], [50.0], [100.0]])
    path, made = paths(FedAvg, p, targets, rounds=4000)
    limit = fedavg_limit(p, targets)
    # A round pulls x by a = 0.19 towards the mean of the active targets, so the average over time
    # is theirs, with a deviation below 50/√3500 < 0.9: 3 is beyond three of them.
    assert abs(path[200:].mean() - limit[0]) < 3
    assert abs(limit[0] - 50) > 20
    assert abs(path[200:].mean() - made.task.optimum.item()) > 15


def test_fedavg_ends_up_at_proposition_1_exactly_when_links_come_in_exact_shares():
    # p = (1/2, 1/4): of eight rounds each subset has its exact share, in random order.
    subsets = [{0, 1}, {0}, {0}, {0}, {1}, set(), set(), set()]
    order = np.random.default_rng(0).permutation(400) % 8
    task = Quadratic([[0.0], [100.0]], training=LocalTraining(learning_rate=0.1, decay=False))
    made = small.simulation(task, "fedavg", small.table([subsets[k] for k in order], 2))
    x, path = made.algorithm.x, []
    for t, _ in enumerate(made.steps()):
        if subsets[order[t]]:
            path.append(x.item())
        x = made.algorithm.x
    # Where x begins each round: Σ(x_{t+1} − x_t) = a Σ(mean over A − x_t), a = 1 − 0.9^5.
    residue = x.item() / (1 - 0.9**5) / len(path)
    assert np.mean(path) + residue == pytest.approx(fedavg_limit([0.5, 0.25], [0.0, 100.0]))
    assert fedavg_limit([0.5, 0.25], [0.0, 100.0]) == pytest.approx(30.0)


def test_fedpbcs_mean_has_no_bias():
    p, targets = [0.8, 0.4, 0.1], np.array([[0.0], [50.0], [100.0]])
    _, made = paths(FedPBC, p, targets, rounds=300)
    assert made.view_models()["mean"].item() == pytest.approx(50.0, abs=1e-9)


# What is counted


def test_staleness_activity_and_work_by_hand():
    # After round t the next is t + 1, and staleness is t + 1 − τ_i, τ_i = −1 before any contact.
    up = small.table([{0}, {}, {0, 1}, {1}], 3)
    _, metrics = small.finished(small.quadratic(3), "fedavg", up, evaluate_every=1)
    stale = [(1, 2, 2), (2, 3, 3), (1, 1, 4), (2, 1, 5)]
    assert [m.staleness_mean for m in metrics] == [pytest.approx(sum(s) / 3) for s in stale]
    assert [m.staleness_max for m in metrics] == [max(s) for s in stale]
    assert [m.active for m in metrics] == [1, 0, 2, 1]
    assert [m.active_mean for m in metrics] == [1, 0.5, 1, 1]
    assert [m.uploads for m in metrics] == [1, 1, 3, 4]
    assert [m.local_steps for m in metrics] == [3, 3, 9, 12]
    assert [m.round for m in metrics] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "options", "uploads", "trained"),
    [
        ("fedpbc", {}, [1, 1, 4], [4, 8, 12]),
        ("fedavg", {}, [1, 1, 4], [1, 1, 4]),
        ("fedawe", {}, [1, 1, 4], [1, 1, 4]),
        ("f3ast", {"cap": 2}, [1, 1, 3], [1, 1, 3]),
    ],
)
def test_who_works_and_who_uploads(engine, name, options, uploads, trained):
    up = small.table([{0}, {}, {0, 1, 3}], 4)
    _, metrics = small.finished(
        small.quadratic(4), name, up, engine=engine, options=options, evaluate_every=1
    )
    assert [m.uploads for m in metrics] == uploads
    assert [m.local_steps for m in metrics] == [3 * n for n in trained]
    assert [m.active for m in metrics] == [1, 0, 3]


@pytest.mark.parametrize("name", ["fedpbc", "fedawe"])
def test_consensus_error(engine, name):
    made = small.simulation(
        small.network(), name, small.random_table(), engine=engine, evaluate_every=3
    )
    for metrics in made.run():
        models = torch.stack(list(made.server.held)).double().numpy()
        assert metrics.consensus_error == pytest.approx(consensus_error(models), rel=1e-5)
    assert metrics.consensus_error > 0


def test_consensus_error_only_where_all_clients_are_judged():
    task, up = small.quadratic(2), small.table([{0}], 2)
    assert small.finished(task, "fedavg", up)[1][0].consensus_error is None
    assert small.finished(task, "fedpbc", up, views=["server"])[1][0].consensus_error is None
    # One round, everyone at 0.271·u_i, client 0 alone is averaged.
    both = small.finished(task, "fedpbc", up)[1][0].consensus_error
    assert both == pytest.approx(consensus_error(0.271 * task.targets.numpy()))
    assert small.finished(task, "fedpbc", np.ones((2, 2)))[1][0].consensus_error == 0


@pytest.mark.parametrize(
    ("rounds", "every", "wanted"),
    [(10, 3, [3, 6, 9, 10]), (9, 3, [3, 6, 9]), (2, 5, [2]), (3, 1, [1, 2, 3])],
)
def test_evaluation_rounds_with_the_last(engine, rounds, every, wanted):
    for name in ("fedavg", "fedpbc"):
        up = small.random_table(rounds=10)[:rounds]
        _, metrics = small.finished(
            small.quadratic(), name, up, engine=engine, evaluate_every=every
        )
        assert [m.round for m in metrics] == wanted


def test_steps_gives_one_item_a_round_and_the_rest_after_a_pause():
    made = small.simulation(small.quadratic(), "fedpbc", small.random_table(), evaluate_every=5)
    assert [next(steps) is None for steps in [made.steps()] for _ in range(7)] == (
        [True] * 4 + [False] + [True] * 2
    )
    assert made.round == 7


def test_metrics_as_a_line():
    _, [metrics] = small.finished(small.quadratic(2), "fedavg", small.table([{0}], 2))
    line = metrics.as_dict()
    assert line["round"] == 1
    assert line["seconds"] >= 0
    assert line["views"]["server"]["distance"] == metrics.views["server"].extra["distance"]
    assert line["views"]["server"]["test_accuracy"] is None


@pytest.mark.parametrize(("name", "which"), [("links", 0), ("downlink", 1)])
def test_a_timetable_for_other_clients_is_refused(name, which):
    task, tables = small.quadratic(3), [np.ones((2, 3)), np.ones((2, 3))]
    tables[which] = np.ones((2, 4))
    with pytest.raises(InputError, match=rf"^{name} is for 4 clients, but the task has 3$"):
        small.simulation(task, "fedavg", tables[0], down=tables[1])


def test_a_lost_answer_by_hand():
    # u = (8, 16), η = 1/2, s = 1. Both report in round 0: x = (4 + 8)/2, client 0 does not hear it.
    task = Quadratic(
        [[8.0], [16.0]], training=LocalTraining(local_steps=1, learning_rate=0.5, decay=False)
    )
    up, down = np.ones((2, 2)), small.table([{1}, {0, 1}], 2)
    made = small.simulation(task, "fedpbc", up, down=down, evaluate_every=1)
    steps = made.steps()
    next(steps)
    assert [model.item() for model in made.server.held] == [4.0, 6.0]
    next(steps)
    assert made.algorithm.x.item() == ((4 + 8) / 2 + (6 + 16) / 2) / 2
    # FedAvg: client 0 brings the change from 4 to 6, client 1 that from 6 to 11.
    assert small.views(task, "fedavg", up, down=down)["server"].item() == 6 + (2 + 5) / 2


# Divergence


def exploding(**training) -> Quadratic:
    """Client 0 is at its target already, client 1 grows by the learning rate in every step."""
    return Quadratic([[0.0], [1.0]], training=LocalTraining(decay=False, **training))


@pytest.mark.parametrize(("name", "round"), [("fedavg", 3), ("scaffold", 3), ("fedpbc", 0)])
@pytest.mark.parametrize("views", [None, ["server"]])
def test_divergence_names_the_client_and_the_round(engine, name, round, views):
    task = exploding(learning_rate=1e80)
    up = small.table([{0}, {0}, {}, {0, 1}], 2)
    with pytest.raises(DivergedError) as error:
        small.finished(task, name, up, engine=engine, views=views)
    assert (error.value.client, error.value.round) == (1, round)
    assert str(error.value).startswith(
        f"the run diverged in round {error.value.round}: client 1's model"
    )


def test_divergence_in_the_middle_of_a_segment(engine):
    # 1e120, 1e240, then too large: in round 2, long before the contact in round 5.
    task = exploding(learning_rate=1e120, local_steps=1)
    with pytest.raises(DivergedError, match="in round 2: client 1's model is not finite"):
        small.finished(
            task, "fedpbc", small.table([{0}] * 5 + [{1}], 2), engine=engine, views=["server"]
        )


def test_divergence_of_the_server(engine):
    with pytest.raises(DivergedError) as error:
        small.finished(
            small.quadratic(), "fedavg", np.ones((3, 7)), engine=engine, global_lr=1.7e308
        )
    assert (error.value.client, error.value.round) == (None, 1)
    assert "the server's model" in str(error.value)


def test_a_loss_that_is_not_finite_is_divergence_too(engine):
    # The model is still finite, its square is not.
    task = exploding(learning_rate=1e200, local_steps=1)
    with pytest.raises(DivergedError) as error:
        small.finished(task, "fedavg", small.table([{1}], 2), engine=engine)
    assert (error.value.client, error.value.round) == (None, 0)


def test_a_simulation_of_one_client_is_plain_training(engine):
    task = small.quadratic(1)
    model = task.init()
    for t in range(5):
        model = task.local_steps(0, model, t, 3 * t, None)
    for name in ("fedavg", "fedpbc"):
        server = small.views(task, name, np.ones((5, 1)), engine=engine)["server"]
        assert (server - model).abs().max() < 1e-14
