"""What every engine promises: segments in, results out, each once, always with the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from fedpbc.algorithms import ClientResult, ClientRule
from fedpbc.engines import Segment, SerialEngine, StackedEngine, choose_engine
from fedpbc.engines.segment import after_round
from fedpbc.errors import FedpbcError, InputError
from fedpbc.tasks import LocalTraining, Quadratic, Supervised
from tests import small_runs as small

# Ray starts many processes: on a busy machine its tests need more than the usual time.
pytestmark = pytest.mark.timeout(900)

STACKED, NETWORK = StackedEngine, small.network()


class Shifted(ClientRule):
    """Adds what the server sent to every gradient."""

    def correction(self, work):
        return work.received["shift"]


class Counting(ClientRule):
    """Uploads how far it came instead of the model; keeps the sum and the number of its works."""

    uploads = ("way", "first")
    keeps = ("sum", "count")

    def initial_state(self, x0):
        return {"sum": x0 * 0, "count": x0[:1] * 0}

    def finish(self, work, end):
        way = end.double() - work.start.double()
        kept = {"sum": work.state["sum"] + way, "count": work.state["count"] + len(work.rates)}
        return ClientResult({"way": way, "first": way[:1]}, kept)


class OwnSteps(ClientRule):
    """Half of a gradient step, twice."""

    keeps = ("last",)

    def local_steps(self, work, gradient):
        model = work.start
        for k in range(work.steps):
            last = gradient(model, k)
            model = model - 0.5 * work.rate(k) * last
            model = model - 0.5 * work.rate(k) * last
        return ClientResult({"model": model}, {"last": last})


def segments(task, count=5):
    """Clients in different rounds, of different lengths, from different models."""
    return [
        Segment(i, task.init() * (1 + i / 8), first_round=i, rounds=1 + i % 3, first_batch=4 * i)
        for i in range(count)
    ]


def results(engine, work) -> dict[int, torch.Tensor]:
    for segment in work:
        engine.submit(segment)
    found = [engine.result(segment.client) for segment in work]
    assert len({id(trained.segment) for trained in found}) == len(work)
    assert {id(trained.segment) for trained in found} == {id(segment) for segment in work}
    return {trained.segment.client: trained.end for trained in found}


def by_rounds(task, segment):
    """A segment, a round at a time, with nothing but the task."""
    model = segment.start
    for k in range(segment.rounds):
        first = segment.first_batch + k * task.training.local_steps
        shift = segment.received.get("shift")
        end = task.local_steps(segment.client, model, segment.first_round + k, first, shift)
        model = (model + segment.scale * (end - model)) if segment.scale != 1 else end
    return model


def test_a_segment_is_its_rounds_one_after_another(engine):
    work = segments(NETWORK)
    found = results(engine(NETWORK), work)
    for segment in work:
        assert small.distance(found[segment.client], by_rounds(NETWORK, segment)) < 1e-5


def test_nothing_submitted(engine):
    made = engine(small.quadratic())
    with pytest.raises(LookupError):
        made.result(0)
    made.submit(Segment(0, small.quadratic().init(), 0, 1, 0))
    with pytest.raises(LookupError):
        made.result(1)
    made.result(0)
    with pytest.raises(LookupError):
        made.result(0)


def test_closing_forgets_what_was_not_run(engine):
    task = small.quadratic()
    made = engine(task)
    for segment in segments(task):
        made.submit(segment)
    made.result(1)
    made.close()
    with pytest.raises(LookupError):
        made.result(2)


def test_more_can_be_submitted_while_others_are_under_way(engine):
    made, work = engine(NETWORK), segments(NETWORK, 6)
    other = engine(NETWORK)
    alone = {s.client: results(other, [s])[s.client] for s in work}
    for segment in work[:3]:
        made.submit(segment)
    found = [made.result(2)]
    for segment in work[3:]:
        made.submit(segment)
    found += [made.result(client) for client in (5, 0, 4, 1, 3)]
    assert [trained.segment.client for trained in found] == [2, 5, 0, 4, 1, 3]
    for trained in found:
        assert torch.equal(trained.end, alone[trained.segment.client])


def test_neither_starts_nor_threads_nor_generators_are_touched(engine):
    torch.manual_seed(4)
    work, state, threads = segments(NETWORK), torch.get_rng_state(), torch.get_num_threads()
    starts = [segment.start.clone() for segment in work]
    torch.set_num_threads(2)
    try:
        results(engine(NETWORK), work)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(s.start, kept) for s, kept in zip(work, starts, strict=True))


def test_work_is_done_on_one_thread(engine, monkeypatch):
    """More would change the order of sums, and with it the bits."""
    if engine(small.quadratic()).name not in {"serial", "stacked"}:
        pytest.skip("its threads cannot be seen from here; they have a test of their own")
    threads, seen = torch.get_num_threads(), []
    task, begin = small.quadratic(), LocalTraining.begin

    def watched(self, *args):
        seen.append(torch.get_num_threads())
        return begin(self, *args)

    monkeypatch.setattr(LocalTraining, "begin", watched)
    torch.set_num_threads(2)
    try:
        results(engine(task), segments(task, 3))
    finally:
        torch.set_num_threads(threads)
    assert set(seen) == {1}


def test_results_are_not_overwritten_by_later_work(engine):
    made, work = engine(NETWORK), segments(NETWORK, 4)
    first = results(made, work)
    kept = {client: end.clone() for client, end in first.items()}
    results(made, segments(NETWORK, 6))
    assert all(torch.equal(first[client], kept[client]) for client in kept)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_scale_by_hand(engine, scale):
    half = LocalTraining(local_steps=1, learning_rate=0.5, decay=False)
    task = Quadratic([[8.0]], training=half)
    # A round takes x to x + scale·(8 − x)/2.
    wanted = 0.0
    for _ in range(3):
        wanted += scale * (8 - wanted) / 2
    found = results(engine(task), [Segment(0, task.init(), 0, 3, 0, scale=scale)])
    assert found[0].item() == wanted


def test_scales_and_corrections_are_each_segments_own(engine):
    task = small.network()
    shift = torch.linspace(-0.5, 0.5, len(task.init()))
    work = [
        Segment(0, task.init(), 0, 2, 0),
        Segment(1, task.init(), 1, 2, 4, scale=0.5),
        Segment(2, task.init(), 0, 1, 0, 1.0, Shifted(), {"shift": shift}),
        Segment(3, task.init(), 3, 2, 2, 2.0, Shifted(), {"shift": -shift}),
    ]
    found = results(engine(task), work)
    for segment in work:
        assert small.distance(found[segment.client], by_rounds(task, segment)) < 1e-5
    plain = results(engine(task), [Segment(2, task.init(), 0, 1, 0)])[2]
    assert small.distance(found[2], plain) > 1e-3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_rule_uploads_and_keeps_what_it_declares(engine, rounds):
    task, rule = small.network(), Counting()
    state = {"sum": torch.ones(len(task.init())), "count": torch.tensor([4.0])}
    work = Segment(1, task.init(), 2, rounds, 3, 1.0, rule, {}, state)
    made = engine(task)
    made.submit(Segment(0, task.init(), 0, 1, 0, 1.0, rule, {}, rule.initial_state(task.init())))
    made.submit(work)
    found, other = made.result(1), made.result(0)
    way = by_rounds(task, work).double() - task.init().double()
    assert set(found.upload) == {"way", "first"}
    assert small.distance(found.upload["way"], way) < 1e-5
    assert torch.equal(found.upload["first"], found.upload["way"][:1])
    assert found.upload["way"].dtype == torch.float32
    assert small.distance(found.state["sum"], 1 + way) < 1e-6
    assert found.state["count"].tolist() == [4 + rounds]
    assert other.state["count"].tolist() == [1]
    # What was kept can be used again, and is not changed by that.
    kept = found.state["sum"].clone()
    made.submit(Segment(1, task.init(), 2, rounds, 3, 1.0, rule, {}, found.state))
    again = made.result(1)
    assert again.state["count"].tolist() == [4 + 2 * rounds]
    assert torch.equal(found.state["sum"], kept)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_rule_takes_the_steps_itself(engine, scale):
    task, rule = small.network(), OwnSteps()
    state = rule.initial_state(task.init())
    work = [Segment(i, task.init(), i, 1 + i, 2 * i, scale, rule, {}, state) for i in range(3)]
    made = engine(task)
    for segment in work:
        made.submit(segment)
    for segment in reversed(work):
        found = made.result(segment.client)
        model = segment.start
        for k in range(2 * segment.rounds):
            g = task.batch_gradient(segment.client, model, segment.first_batch + k)
            rate = 0.5 * task.training.rate(segment.first_round + k // 2)
            model = (model - rate * g) - rate * g
        assert torch.equal(found.state["last"], g)
        assert torch.equal(found.end, after_round(segment.start, model, scale))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", r"what Wrong uploads is 'model', .*extra, model"),
        ("unknown", r"what Wrong keeps is 'more', .*nothing"),
        ("long", r"vector 'extra' of client 0 is '137', but should be 1 to 136 values"),
        ("infinite", "diverged"),
    ],
)
def test_a_rule_that_breaks_its_word_is_one_line(engine, kind, message):
    task = small.network()
    extra = {"long": torch.ones(137), "infinite": torch.tensor([float("inf")])}
    upload = {} if kind == "missing" else {"extra": extra.get(kind, torch.ones(1))}
    state = {"more": torch.ones(1)} if kind == "unknown" else {}

    class Wrong(ClientRule):
        uploads = ("model", "extra")

        def finish(self, work, end):
            return ClientResult(upload, state)

    made = engine(task)
    made.submit(Segment(0, task.init(), 0, 1, 0, 1.0, Wrong()))
    with pytest.raises(FedpbcError, match=message):
        made.result(0)


def test_after_round():
    start, end = torch.tensor([0.1]), torch.tensor([0.7])
    assert after_round(start, end, 1.0) is end
    assert after_round(start, end, 2.0).dtype == torch.float32
    assert after_round(start, end, 2.0).item() == pytest.approx(1.3)


# Stacked: a row's bits do not depend on the others


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(10, 4)
    )


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.Tanh(), nn.Linear(9, 4))


def frozen() -> nn.Module:
    module = small.mlp()
    module[0].bias.requires_grad_(False)
    return module


class Residual(nn.Sequential):
    """Made of dense layers and ReLU, but more than their chain."""

    def forward(self, x):
        return x[:, :4] + super().forward(x)


def tied() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer)


class Scaled(nn.Module):
    """With a parameter that is a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(6, 4), nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.scale * self.layer(x)


STACKABLE = {
    "mlp": small.mlp,
    "softmax": lambda: nn.Linear(6, 4),
    "flat": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)),
    "deep": lambda: nn.Sequential(
        nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 4)
    ),
}
# Whatever else is in a module, a row's bits could depend on the others, or its meaning be missed.
REFUSED = {
    "tanh": lambda: nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 4)),
    "no bias": lambda: nn.Sequential(nn.Linear(6, 7, bias=False), nn.ReLU(), nn.Linear(7, 4)),
    "convolution": convolution,
    "normed": normed,
    "frozen": frozen,
    "residual": lambda: Residual(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 4)),
    "tied": tied,
    "scalar": Scaled,
}
MODULES = STACKABLE | REFUSED
stackable = pytest.mark.parametrize("module", STACKABLE)


def of(module: str, **training) -> Supervised:
    return small.network(module=small.seeded(MODULES[module]), **training)


@pytest.mark.parametrize("module", REFUSED)
def test_other_modules_are_left_to_the_serial_engine(module):
    task = of(module)
    with pytest.raises(InputError, match="engine is 'stacked', but should be 'serial', since"):
        StackedEngine(task)
    made, _ = choose_engine("auto", task, client_rounds=1)
    work = segments(task)
    for client, end in results(made, work).items():
        assert small.distance(end, by_rounds(task, work[client])) < 1e-5


@stackable
def test_stacked_agrees_with_one_by_one(module):
    task = of(module)
    work = segments(task)
    serial, stacked = results(SerialEngine(task), work), results(StackedEngine(task), work)
    for client, end in serial.items():
        assert small.distance(stacked[client], end) < 1e-4
        assert small.distance(end, work[client].start) > 1e-3


@stackable
@pytest.mark.parametrize("training", [{}, {"optimizer": "adam", "proximal": 0.1}])
def test_a_rows_bits_do_not_depend_on_the_others(module, training):
    task = of(module, **training)
    work = segments(task, 7)
    together = results(StackedEngine(task), work)
    turned = results(StackedEngine(task), work[::-1])
    for segment in work:
        alone = results(StackedEngine(task), [segment])[segment.client]
        assert torch.equal(together[segment.client], alone)
        assert torch.equal(turned[segment.client], alone)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    order=st.permutations(range(7)),
    cut=st.integers(1, 7),
    scale=st.sampled_from([1.0, 0.7]),
    layers=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    batch=st.integers(1, 20),
)
@example(order=list(range(7)), cut=1, scale=1.0, layers=(40, 1), batch=20)  # a row alone
@example(order=list(range(6, -1, -1)), cut=3, scale=1.0, layers=(29, 20), batch=3)
def test_a_rows_bits_do_not_depend_on_the_others_whatever_the_sizes(
    order, cut, scale, layers, batch
):
    first, second = layers
    network = small.seeded(
        lambda: nn.Sequential(
            nn.Linear(6, first),
            nn.ReLU(),
            nn.Linear(first, second),
            nn.ReLU(),
            nn.Linear(second, 4),
        )
    )
    task = small.network(module=network, batch_size=batch, local_steps=1)
    work = [Segment(i, task.init(), i % 3, 1 + i % 2, 3 * i, scale) for i in range(7)]
    together = results(StackedEngine(task), [work[i] for i in order])
    some = results(StackedEngine(task), [work[i] for i in order[:cut]])
    assert all(torch.equal(together[client], end) for client, end in some.items())


def test_what_cannot_be_stacked_is_refused():
    task = small.network(module=nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.1)))
    with pytest.raises(
        InputError, match=r"engine is 'stacked', .*'serial', since .*plain sequence"
    ):
        StackedEngine(task)


def test_a_stack_that_grows_and_shrinks_keeps_every_row():
    """Segments of all lengths, most of the time more rows than the buffer held before."""
    task, random = small.quadratic(40), np.random.default_rng(0)
    made, alone, found = StackedEngine(task), {}, {}
    for start in range(0, 40, 4):
        for client in range(start, start + 4):
            model = torch.from_numpy(random.normal(size=4))
            segment = Segment(client, model, start, int(random.integers(1, 9)), 0)
            alone[client] = by_rounds(task, segment)
            made.submit(segment)
        found[start] = made.result(start).end
    for client in set(range(40)) - set(found):
        found[client] = made.result(client).end
    for client, end in alone.items():
        assert (found[client] - end).abs().max() < 1e-12
