"""Local steps of many clients at once, against autograd, one client at a time."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import small_runs as small
from fedpbc.models import layout_of
from fedpbc.tasks import LocalTraining
from fedpbc.tasks.stack import DenseStack, FunctionalStack, advise, gradients, make_stack

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


def test_dense_gradients_are_autograds():
    module = dense()
    layout = layout_of(module)
    stack, [(inputs, labels)] = models(layout), batches(1)
    found = gradients(layout.parts(stack), inputs, labels)
    for row in range(ROWS):
        wanted = autograd(module, layout, stack[row], inputs[row], labels[row])
        ours = layout.flatten([part[row] for part in found])
        assert (ours - wanted).abs().max() < 1e-14


@pytest.mark.parametrize("kind", ["dense", "functional"])
def test_one_step_is_the_gradient_times_each_clients_rate(kind):
    module = dense()
    layout = layout_of(module)
    before, [(inputs, labels)] = models(layout), batches(1)
    after, rates = before.clone(), torch.linspace(0.1, 0.5, ROWS, dtype=torch.float64)
    made(kind, module).local_steps(after, [(inputs, labels)], rates, None)
    for row in range(ROWS):
        gradient = autograd(module, layout, before[row], inputs[row], labels[row])
        assert (after[row] - before[row] + rates[row] * gradient).abs().max() < 1e-14


def made(kind, module, training=None):
    layout, training = layout_of(module), training or LocalTraining()
    if kind == "dense":
        return DenseStack(layout, training)
    return FunctionalStack(module, layout, functional.cross_entropy, training)


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"proximal": 0.5}, {"optimizer": "momentum"}, {"optimizer": "adam", "proximal": 0.1}],
)
def test_dense_and_functional_agree(options, corrected):
    module, training = dense(), LocalTraining(**options)
    layout = layout_of(module)
    rates = torch.linspace(0.05, 0.1, ROWS, dtype=torch.float64)
    correction = models(layout).flip(0) if corrected else None
    ours, theirs = models(layout), models(layout)
    made("dense", module, training).local_steps(ours, batches(), rates, correction)
    made("functional", module, training).local_steps(theirs, batches(), rates, correction)
    assert (ours - theirs).abs().max() < 1e-12
    assert (ours - models(layout)).abs().max() > 0.01


def test_inputs_and_labels_are_not_changed():
    module, [(inputs, labels)] = dense(), batches(1)
    kept = inputs.clone(), labels.clone()
    for kind in ("dense", "functional"):
        stack = models(layout_of(module))
        made(kind, module).local_steps(stack, [(inputs, labels)], torch.ones(ROWS).double(), None)
    assert torch.equal(inputs, kept[0])
    assert torch.equal(labels, kept[1])


@pytest.mark.parametrize(
    ("module", "loss", "kind"),
    [
        (dense(), functional.cross_entropy, DenseStack),
        (nn.Linear(6, 4), functional.cross_entropy, DenseStack),
        (nn.Sequential(nn.Flatten(), nn.Linear(6, 4)), functional.cross_entropy, DenseStack),
        (nn.Linear(6, 4), functional.mse_loss, FunctionalStack),
        (nn.Linear(6, 4, bias=False), functional.cross_entropy, FunctionalStack),
        (nn.Sequential(nn.Linear(6, 4), nn.Tanh()), functional.cross_entropy, FunctionalStack),
        (nn.Sequential(nn.Linear(6, 4), nn.ReLU()), functional.cross_entropy, FunctionalStack),
        (nn.Conv1d(6, 4, 1), functional.cross_entropy, FunctionalStack),
    ],
)
def test_only_plain_dense_networks_are_written_out(module, loss, kind):
    assert type(make_stack(module, layout_of(module), loss, LocalTraining())) is kind


@pytest.mark.parametrize(
    ("module", "possible", "worthwhile"),
    [
        (nn.Linear(3, 2), True, True),
        (nn.Sequential(nn.Linear(3, 2), nn.Tanh()), True, True),
        (nn.Conv2d(1, 1, 1), True, False),
        (nn.Linear(1000, 1000), True, False),
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout()), False, False),
        (nn.Sequential(nn.Conv2d(1, 1, 1), nn.Dropout2d()), False, False),
        (nn.Sequential(nn.Linear(3, 2), nn.RReLU()), False, False),
        (nn.Sequential(nn.Linear(3, 2), nn.AlphaDropout()), False, False),
    ],
)
def test_advice(module, possible, worthwhile):
    advice = advise(module)
    assert (advice.possible, advice.worthwhile) == (possible, worthwhile)
    assert advice.why
