"""Local steps of many clients at once, against autograd, one client at a time."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpbc.tasks import LocalTraining
from fedpbc.tasks.parameter_layout import layout_of
from fedpbc.tasks.stacked_training import advise, gradients, on_all_cores, pad_batch, stacked_steps
from tests import small_runs as small

ROWS, BATCH = 5, 8


def dense() -> nn.Sequential:
    layers = nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 4)
    return small.seeded(lambda: nn.Sequential(*layers)).double()


def models(layout):
    random = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, layout.dimension, dtype=torch.float64, generator=random) / 2


def batches(count=3):
    random = torch.Generator().manual_seed(2)
    return [
        (
            torch.randn(ROWS, BATCH, 6, dtype=torch.float64, generator=random),
            torch.randint(0, 4, (ROWS, BATCH), generator=random),
        )
        for _ in range(count)
    ]


def autograd(module, layout, model, inputs, labels):
    """The flat gradient of one client's loss."""
    parts = [part.clone().requires_grad_() for part in layout.parts(model)]
    named = dict(zip(layout.names, parts, strict=True))
    loss = functional.cross_entropy(torch.func.functional_call(module, named, (inputs,)), labels)
    return layout.flatten(torch.autograd.grad(loss, parts))


def test_gradients_are_autograds():
    module = dense()
    layout = layout_of(module)
    stack, [(inputs, labels)] = models(layout), batches(1)
    found = gradients(layout.parts(stack), *pad_batch(inputs, labels))
    for row in range(ROWS):
        wanted = autograd(module, layout, stack[row], inputs[row], labels[row])
        ours = layout.flatten([part[row] for part in found])
        assert (ours - wanted).abs().max() < 1e-14


@pytest.mark.parametrize("rows", [1, ROWS])
def test_one_step_is_the_gradient_times_each_clients_rate(rows):
    module = dense()
    layout = layout_of(module)
    before, [(inputs, labels)] = models(layout)[:rows], batches(1)
    inputs, labels = inputs[:rows], labels[:rows]
    after, rates = before.clone(), torch.linspace(0.1, 0.5, rows, dtype=torch.float64)
    stacked_steps(LocalTraining(), layout, after, [(inputs, labels)], rates, None)
    for row in range(rows):
        gradient = autograd(module, layout, before[row], inputs[row], labels[row])
        assert (after[row] - before[row] + rates[row] * gradient).abs().max() < 1e-14


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"proximal": 0.5}, {"momentum": 0.9}, {"optimizer": "adam", "proximal": 0.1}],
)
def test_many_steps_are_those_of_each_client_alone(options, corrected):
    module, training = dense(), LocalTraining(**options)
    layout = layout_of(module)
    rates = torch.linspace(0.05, 0.1, ROWS, dtype=torch.float64)
    correction = models(layout).flip(0) if corrected else None
    ours = models(layout)
    stacked_steps(training, layout, ours, batches(), rates, correction)
    for row, model in enumerate(models(layout)):
        parts = [part.clone() for part in layout.parts(model)]
        terms = layout.parts(correction[row]) if corrected else []
        step = training.begin(parts, float(rates[row]), terms)
        for inputs, labels in batches():
            flat = autograd(module, layout, layout.flatten(parts), inputs[row], labels[row])
            step(layout.parts(flat))
        assert (ours[row] - layout.flatten(parts)).abs().max() < 1e-12
    assert (ours - models(layout)).abs().max() > 0.01


@pytest.mark.parametrize("options", [{}, {"optimizer": "adam"}])
@pytest.mark.parametrize("rows", [1, 2, ROWS])
def test_company_changes_nothing(rows, options):
    layout, found = layout_of(dense()), []
    rates = torch.linspace(0.05, 0.1, ROWS, dtype=torch.float64)[:rows]
    for min_rows in (2, ROWS, ROWS + 4):
        stack, given = models(layout)[:rows], [(x[:rows], y[:rows]) for x, y in batches()]
        term = -models(layout)[:rows] / 9
        stacked_steps(LocalTraining(**options), layout, stack, given, rates, term, min_rows)
        found.append(stack)
    assert len(stack) == rows
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_inputs_and_labels_are_not_changed():
    layout, [(inputs, labels)] = layout_of(dense()), batches(1)
    kept = inputs.clone(), labels.clone()
    stack = models(layout)
    rates = torch.ones(ROWS).double()
    stacked_steps(LocalTraining(), layout, stack, [(inputs, labels)], rates, None)
    assert torch.equal(inputs, kept[0])
    assert torch.equal(labels, kept[1])


@pytest.mark.parametrize(
    ("module", "loss", "possible", "worthwhile"),
    [
        (dense(), functional.cross_entropy, True, True),
        (nn.Linear(6, 4), functional.cross_entropy, True, True),
        (nn.Sequential(nn.Flatten(), nn.Linear(6, 4)), functional.cross_entropy, True, True),
        (nn.Linear(1000, 1000), functional.cross_entropy, True, False),
        (nn.Linear(6, 4), functional.mse_loss, False, False),
        (nn.Linear(6, 4, bias=False), functional.cross_entropy, False, False),
        (nn.Sequential(nn.Linear(6, 4), nn.Tanh()), functional.cross_entropy, False, False),
        (nn.Sequential(nn.Linear(6, 4), nn.ReLU()), functional.cross_entropy, False, False),
        (nn.Conv1d(6, 4, 1), functional.cross_entropy, False, False),
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout()), functional.cross_entropy, False, False),
    ],
)
def test_advice(module, loss, possible, worthwhile):
    advice = advise(module, loss)
    assert (advice.possible, advice.worthwhile) == (possible, worthwhile)
    assert advice.why


@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 5, 17])
def test_every_row_is_in_one_slice(monkeypatch, cores, count):
    monkeypatch.setattr("fedpbc.tasks.stacked_training.usable_cores", lambda: cores)
    done: list[slice] = []
    on_all_cores(done.append, count, max_rows=2)
    rows = [row for piece in done for row in range(piece.start, piece.stop)]
    assert sorted(rows) == list(range(count))
