"""Changes in place reach nobody else: a rule or an algorithm comes to the bits of one without."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpbc.algorithms import Algorithm, ClientResult, ClientRule, advance, mean
from fedpbc.engines import SerialEngine, StackedEngine
from fedpbc.errors import InputError
from tests import small_runs as small

# Ray starts many processes: on a busy machine its tests need more than the usual time.
pytestmark = pytest.mark.timeout(900)


here = pytest.mark.parametrize("engine", [SerialEngine, StackedEngine])


class OwnSteps(ClientRule):
    """Plain steps that also upload how far they went."""

    uploads = ("model", "way")
    keeps = ("way",)

    def local_steps(self, work, gradient):
        m = work.start
        for k in range(work.steps):
            m = m - work.rate(k) * (gradient(m, k) + 0.1 * work.received["pull"])
        way = m - work.start + 0.1 * work.state["way"]
        return ClientResult({"model": m, "way": way}, {"way": way})


class OwnStepsInPlace(OwnSteps):
    def local_steps(self, work, gradient):
        m = work.start
        for k in range(work.steps):
            g, pull = gradient(m, k), work.received["pull"]
            pull *= 0.1
            g += pull
            g *= work.rate(k)
            m -= g
        way, last = m.clone(), work.state["way"]
        way -= work.start
        last *= 0.1
        way += last
        return ClientResult({"model": m, "way": way}, {"way": way})


class OwnStepsNumpy(OwnSteps):
    """Through a view of NumPy's, which PyTorch does not notice."""

    def local_steps(self, work, gradient):
        m, received = work.start, work.received
        for k in range(work.steps):
            pull = received["pull"].numpy()
            pull *= 0.1
            view = m.numpy()
            view -= work.rate(k) * (gradient(m, k).numpy() + pull)
        way, last = (m - work.start).numpy(), work.state["way"].numpy()
        last *= 0.1
        way += last
        sent = torch.from_numpy(way)
        return ClientResult({"model": m, "way": sent}, {"way": sent})


class PlainSteps(ClientRule):
    uploads = ("model", "way")
    keeps = ("way",)

    def correction(self, work):
        return 0.2 * work.received["pull"] - 0.1 * work.state["way"]

    def finish(self, work, end):
        way = end - work.start
        return ClientResult({"way": way}, {"way": way})


class PlainStepsInPlace(PlainSteps):
    """With a buffer for its results, besides."""

    def __init__(self):
        self.buffers = {}

    def buffer(self, name, like):
        return self.buffers.setdefault(name, torch.empty_like(like))

    def correction(self, work):
        pull, way = work.received["pull"], work.state["way"]
        pull *= 0.2
        way *= 0.1
        return torch.sub(pull, way, out=self.buffer("correction", pull))

    def finish(self, work, end):
        end -= work.start
        way = self.buffer("way", end).copy_(end)
        return ClientResult({"way": way}, {"way": way})


class Pulled(Algorithm):
    """FedAvg that sends along how far its clients went."""

    name = "pulled"
    rule = OwnSteps

    def __init__(self, init):
        super().__init__(init)
        self.pull = self.x * 0

    def client_rule(self):
        return self.rule()

    def message(self, client):
        return {"pull": self.pull}

    def aggregate(self, round, updates):
        if updates:
            self.x = self.x + mean(update.delta for update in updates)
            self.pull = self.pull + mean(update["way"] for update in updates)


def with_rule(kind):
    return type(kind.__name__, (Pulled,), {"rule": kind})


def views(task, kind, engine, **more):
    up = small.random_table(rounds=8)
    return small.views(task, kind, up, engine=engine, evaluate_every=3, **more)


RULES = [
    (OwnSteps, OwnStepsInPlace),
    (OwnSteps, OwnStepsNumpy),
    (PlainSteps, PlainStepsInPlace),
]


@pytest.mark.parametrize(("plain", "in_place"), RULES)
def test_a_rule_on_every_engine(engine, plain, in_place):
    down = small.lossy(rounds=8)
    expected = views(small.quadratic(), with_rule(plain), SerialEngine, down=down)
    found = views(small.quadratic(), with_rule(in_place), engine, down=down)
    assert expected.keys() == found.keys()
    for name, view in expected.items():
        assert (view - found[name]).abs().max() < 1e-12, name


@here
@pytest.mark.parametrize("make", [small.quadratic, small.network])
@pytest.mark.parametrize(("plain", "in_place"), RULES)
def test_a_rule(engine, plain, in_place, make):
    expected = views(make(), with_rule(plain), engine)
    found = views(make(), with_rule(in_place), engine)
    for name, view in expected.items():
        assert (view - found[name]).abs().max() < 1e-6, name


@here
def test_a_rule_of_clients_with_models_of_their_own(engine):
    own = {"client_models": True, "everyone_trains": True}
    kinds = (
        type(rule.__name__, (Pulled,), {"rule": rule, **own})
        for rule in (PlainSteps, PlainStepsInPlace)
    )
    plain, in_place = (views(small.quadratic(), kind, engine) for kind in kinds)
    assert small.same_bits(plain, in_place)


class Server(Pulled):
    """Out of place."""

    rule = PlainSteps

    def aggregate(self, round, updates):
        for update in updates:
            self.x = self.x + update.delta / len(updates)
            self.pull = self.pull + update["way"] / len(updates)


class ServerInPlace(Server):
    one_pass = True

    def aggregate(self, round, updates):
        for update in updates:
            way, start, model = update["way"], update.start, update.model
            model -= start
            start *= 0
            model /= len(updates)
            self.x += model
            self.pull = self.pull + way.div_(len(updates))


class ServerNumpy(Server):
    def aggregate(self, round, updates):
        for update in updates:
            model, pull = update.model.numpy(), self.pull.clone()
            model -= update.start.numpy()
            x = self.x.numpy()
            x += model / len(updates)
            pull += update["way"] / len(updates)
            self.pull = pull


class ServerAdvanced(Server):
    def aggregate(self, round, updates):
        x = self.x.clone()
        for update in updates:
            moved = advance(x, update, 1.0)
            moved -= x
            self.x.add_(moved, alpha=1 / len(updates))
            self.pull = self.pull + update["way"] / len(updates)


@here
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("kind", [ServerInPlace, ServerNumpy, ServerAdvanced])
def test_an_algorithm(engine, kind, lost):
    down = small.lossy(rounds=8) if lost else None
    expected = views(small.quadratic(), Server, engine, down=down)
    found = views(small.quadratic(), kind, engine, down=down)
    for name, view in expected.items():
        assert (view - found[name]).abs().max() < 1e-12, name


class Reporting(Algorithm):
    """Clients with models of their own; what they report is the server's own tensor."""

    name = "reporting"
    client_models = True

    def report(self, round, update):
        return self.x

    def aggregate(self, round, updates):
        for update in updates:
            self.x = self.x + update.delta / len(updates)


class ReportingInPlace(Reporting):
    def aggregate(self, round, updates):
        for update in updates:
            self.x += update.delta / len(updates)


@here
def test_a_report(engine):
    down = small.lossy(rounds=8)
    plain = views(small.quadratic(), Reporting, engine, down=down)
    in_place = views(small.quadratic(), ReportingInPlace, engine, down=down)
    assert small.same_bits(plain, in_place)


class Attribute(Server):
    """What the server sends along is changed in place."""

    def aggregate(self, round, updates):
        for update in updates:
            self.x = self.x + update.delta / len(updates)
            self.pull += update["way"] / len(updates)


class Start(Server):
    """An attribute that is the model itself."""

    def aggregate(self, round, updates):
        self.begun = self.x
        for update in updates:
            self.x += update.delta / len(updates)


@pytest.mark.parametrize(("kind", "name"), [(Attribute, "pull"), (Start, "begun")])
def test_an_attribute_in_place_is_refused(kind, name):
    match = rf"^pulled changes self\.{name} in place, .*: assign a new one, such as self\.{name} ="
    with pytest.raises(InputError, match=match):
        small.finished(small.quadratic(), kind, np.ones((3, 7), dtype=bool))


def test_a_round_that_fails_leaves_what_was_before():
    class Failing(ServerInPlace):
        def __init__(self, init):
            super().__init__(init)
            self.history = []

        def aggregate(self, round, updates):
            super().aggregate(round, updates)
            self.history.append(round.number)
            if round.number == 2:
                raise KeyboardInterrupt

    made = small.simulation(small.quadratic(), Failing, np.ones((4, 7), dtype=bool))
    steps = made.steps()
    for _ in range(2):
        next(steps)
    x, held = made.algorithm.x.clone(), made.server.model.clone()
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    assert made.algorithm.x.equal(x)
    assert made.server.model.equal(held)
    assert vars(made.algorithm)["history"] == [0, 1]


def test_views_are_not_the_servers_own():
    made, _ = small.finished(small.quadratic(), "fedpbc", small.random_table())
    before = {name: view.clone() for name, view in made.server.view_models().items()}
    for view in made.server.view_models().values():
        view += 1
    assert small.same_bits(made.server.view_models(), before)


class OwnTask:
    """A task from outside, which takes its steps in the tensor that it is given."""

    def __init__(self, task):
        self._task = task
        self.clients, self.training, self.layout = task.clients, task.training, task.layout
        self.seed, self.class_shares = 0, None
        self.init, self.evaluate = task.init, task.evaluate

    def local_steps(self, client, start, round, first_batch, correction):
        start -= self.training.rate(round) * (start - self._task.targets[client])
        return start


@pytest.mark.parametrize(("name", "global_lr"), [("fedavg", 1.0), ("fedpbc", 1.0), ("fedpbc", 0.7)])
def test_a_task_from_outside(name, global_lr):
    task, up = small.quadratic(local_steps=1), small.random_table()
    expected = small.views(task, name, up, global_lr=global_lr)
    found = small.views(OwnTask(task), name, up, global_lr=global_lr)
    for view, model in expected.items():
        assert (model - found[view]).abs().max() < 1e-12
