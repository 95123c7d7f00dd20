"""What clients keep and send along: counted once, held with the model, and never cut in two."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpbc.algorithms import Algorithm, ClientResult, ClientRule, FedAvg, mean
from fedpbc.errors import DivergedError, InputError
from fedpbc.simulation.costs import costs_of
from tests import small_runs as small


class PulledClient(ClientRule):
    """Pulls towards what the server sent and away from where it went last."""

    uploads = ("model", "way")
    keeps = ("last",)

    def correction(self, work):
        return 0.2 * work.received["pull"] - 0.1 * work.state["last"]

    def finish(self, work, end):
        way = (end - work.start) / work.step_sum
        return ClientResult({"way": way}, {"last": way})


class Pulled(Algorithm):
    """FedAvg with clients that keep something and upload something."""

    name = "pulled"

    def __init__(self, init):
        super().__init__(init)
        self.pull = self.x * 0

    def client_rule(self):
        return PulledClient()

    def message(self, client):
        return {"pull": self.pull}

    def aggregate(self, round, updates):
        if updates:
            self.x = mean(update.model for update in updates)
            self.pull = self.pull + sum(update["way"] for update in updates) / self.clients


class PulledPBC(Pulled):
    """FedPBC likewise: every client trains on from its own model."""

    name = "pulled_pbc"
    everyone_trains = client_models = True


def literal(task, up, down=None, everyone=False):
    """The same by hand: x, the pulls, and every client's model, message and state."""
    (rounds, m), x = up.shape, task.init()
    down = np.ones_like(up) if down is None else down
    s, zeros, pull = task.training.local_steps, 0 * x, 0 * x
    held, message, state = [x] * m, [zeros] * m, [zeros] * m
    since, batches = [0] * m, [0] * m
    for t in range(rounds):
        A = np.flatnonzero(up[t])
        ends, ways = {}, {}
        for i in A:
            first = since[i] if everyone else t
            model, rates = held[i], [task.training.rate(k) for k in range(first, t + 1)]
            shift = 0.2 * message[i] - 0.1 * state[i]
            for k in range(first, t + 1):
                model = task.local_steps(i, model, k, k * s if everyone else batches[i], shift)
            batches[i] += s
            ends[i], ways[i] = model, (model - held[i]) / (s * sum(rates))
        if len(A):
            x = mean(list(ends.values()))
            pull = pull + sum(ways.values()) / m
        for i in range(m):
            if i in ends:
                state[i], held[i], since[i] = ways[i], ends[i], t + 1
            if down[t, i] and (i in ends or not everyone):
                held[i], message[i] = x, pull
    return x, pull


@pytest.mark.parametrize("kind", [Pulled, PulledPBC])
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("every", [1, 4, 100])
def test_as_by_hand(engine, kind, lost, every):
    task, up, down = small.quadratic(), small.random_table(), small.lossy() if lost else None
    made, _ = small.finished(task, kind, up, engine=engine, down=down, evaluate_every=every)
    x, pull = literal(task, up, down, everyone=kind.everyone_trains)
    assert (made.algorithm.x - x).abs().max() < 1e-12
    assert (made.algorithm.state()["pull"] - pull).abs().max() < 1e-12


@pytest.mark.parametrize("every", [2, 5])
def test_an_evaluation_does_not_cut_work_in_two(engine, every):
    task, up = small.network(), small.random_table()
    rare, _ = small.finished(task, PulledPBC, up, engine=engine, evaluate_every=100)
    often, metrics = small.finished(task, PulledPBC, up, engine=engine, evaluate_every=every)
    assert small.same_bits(rare.view_models(), often.view_models())
    assert metrics[-1].consensus_error > 0


def test_a_round_that_fails_leaves_the_clients_as_they_were():
    class Failing(Pulled):
        def aggregate(self, round, updates):
            super().aggregate(round, updates)
            if round.number == 3:
                self.x = self.x * float("inf")

    up = np.ones((6, 7), dtype=bool)
    made = small.simulation(small.quadratic(), Failing, up)
    steps = made.steps()
    for _ in range(3):
        next(steps)
    before = {i: state["last"].clone() for i, state in made.server.client_states.items()}
    with pytest.raises(DivergedError):
        next(steps)
    assert made.round == 3
    assert {i: s["last"].tolist() for i, s in made.server.client_states.items()} == {
        i: last.tolist() for i, last in before.items()
    }
    assert made.server.last_upload.tolist() == [2] * 7


def test_only_a_counted_upload_counts():
    """Client 0 is up but not selected: it neither trains nor keeps anything."""

    class OnlyOne(Pulled):
        def select(self, round):
            return round.active[-1:]

    made, _ = small.finished(small.quadratic(3), OnlyOne, small.table([{0, 1}, {0, 2}], 3))
    assert set(made.server.client_states) == {1, 2}
    assert made.server.last_upload.tolist() == [-1, 0, 1]


@pytest.mark.parametrize("kind", [Pulled, PulledPBC, FedAvg])
def test_bytes_are_those_of_the_vectors_that_travel(kind):
    up = small.random_table()
    made, metrics = small.finished(small.quadratic(), kind, up)  # 4 numbers of 8 bytes
    vectors = 1 if kind is FedAvg else 2
    assert metrics[-1].uploads == up.sum()
    assert metrics[-1].bytes_up == metrics[-1].bytes_down == up.sum() * vectors * 32
    costs = costs_of(made.server)
    assert costs["models_on_client"] == {Pulled: 1, PulledPBC: 2, FedAvg: 0}[kind]
    assert costs["models_on_server"]["server"] == vectors


def test_with_a_lossy_downlink_what_is_heard_counts():
    up, down = small.random_table(), small.lossy()
    _, metrics = small.finished(small.quadratic(), Pulled, up, down=down)
    assert metrics[-1].bytes_down == down.sum() * 2 * 32
    _, metrics = small.finished(small.quadratic(), PulledPBC, up, down=down)
    assert metrics[-1].bytes_down == (up & down).sum() * 2 * 32


def test_steps_of_its_own_leave_no_room_for_an_optimizer():
    task = small.quadratic(momentum=0.9)
    with pytest.raises(InputError, match=r"train.momentum is 0.9, .*focus takes"):
        small.simulation(task, "focus", small.random_table())
    with pytest.raises(InputError, match=r"train.proximal is 0.1, .*focus takes"):
        small.simulation(small.quadratic(proximal=0.1), "focus", small.random_table())


def test_client_models_must_be_uploaded():
    class Silent(ClientRule):
        uploads = ("way",)

    class Wrong(PulledPBC):
        def client_rule(self):
            return Silent()

    with pytest.raises(InputError, match="must upload 'model'"):
        small.simulation(small.quadratic(), Wrong, small.random_table())


def test_a_rule_without_a_model_has_no_update_of_it():
    class Silent(ClientRule):
        uploads = ("way",)

        def finish(self, work, end):
            return ClientResult({"way": end})

    class Wrong(FedAvg):
        def client_rule(self):
            return Silent()

    with pytest.raises(InputError, match="uploads no model"):
        small.finished(small.quadratic(), Wrong, small.random_table())


def test_distinct_vectors_are_stored_once(tmp_path):
    """What the server sent to many clients, and what none has kept yet, takes one vector each."""
    made = small.simulation(small.quadratic(), PulledPBC, np.ones((4, 7), dtype=bool))
    steps = made.steps()
    next(steps)
    assert len({id(vector["pull"]) for vector in made.server.messages.values()}) == 1
    assert len({id(made.server.client_state(i)["last"]) for i in range(7)}) == 7


def test_a_correction_of_another_type_is_rounded(engine):
    class Doubles(ClientRule):
        def correction(self, work):
            return torch.full_like(work.start, 0.1).double()

    class Shifted(FedAvg):
        def client_rule(self):
            return Doubles()

    task, up = small.network(), small.random_table()
    found = small.views(task, Shifted, up, engine=engine)["server"]
    assert found.dtype == torch.float32
    assert small.distance(found, small.views(task, "fedavg", up, engine=engine)["server"]) > 1e-3
