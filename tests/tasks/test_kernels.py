"""The compiled kernels give what PyTorch gives, and nothing else changes without them."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedpbc.engines import Segment, SerialEngine, StackedEngine
from fedpbc.tasks import manual_backprop as chain
from fedpbc.tasks import supervised
from fedpbc.tasks.dense_kernel import dense_steps
from fedpbc.tasks.kernels import kernels
from fedpbc.tasks.pooling import pool, suits, unpool
from tests import small_runs as small

pytestmark = pytest.mark.slow

compiled = pytest.mark.skipif(kernels() is None, reason="built without a C compiler")


def pictures(images, channels, height, width):
    values = torch.randn(images, height, width, channels).round(decimals=1)
    return values.permute(0, 3, 1, 2)


@compiled
@given(
    images=st.integers(1, 3),
    channels=st.integers(1, 40),
    height=st.integers(1, 4),
    width=st.integers(1, 4),
    broken=st.booleans(),
)
def test_pooling_is_pytorchs_to_the_bit(images, channels, height, width, broken):
    value = pictures(images, channels, 2 * height, 2 * width)
    if broken:
        value[0, 0, 0, 0] = float("nan")
        value[-1, -1, -1, -1] = float("-inf")
    assert suits(value)
    found, places = pool(value)
    own = value.detach().clone(memory_format=torch.channels_last).requires_grad_()
    wanted = functional.max_pool2d(own, 2).relu()
    assert torch.equal(found.nan_to_num(nan=7), wanted.detach().nan_to_num(nan=7))
    slope = torch.randn_like(found)
    wanted.backward(slope)
    assert torch.equal(unpool(slope, places), own.grad)


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(2, 3, 5, 4).to(memory_format=torch.channels_last),
        torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.zeros(2, 3, 4, 4),
        torch.zeros(2, 3, 4, 4, dtype=torch.float64).to(memory_format=torch.channels_last),
    ],
)
def test_other_pictures_are_left_to_pytorch(value):
    assert not suits(value)


@compiled
@given(
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=4),
    batch=st.integers(1, 9),
    steps=st.integers(1, 3),
)
def test_dense_steps_are_those_of_autograd(sizes, batch, steps):
    torch.manual_seed(1)
    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    module = nn.Sequential(*layers[:-1])
    samples, labels = torch.randn(20, sizes[0]), torch.randint(0, sizes[-1], (20,))
    index = torch.randint(0, 20, (2, steps, batch))
    first = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    models = torch.stack([first, first])
    dense_steps(models, sizes, samples, labels, index, torch.tensor([0.1, 0.2]))
    for row, rate in enumerate((0.1, 0.2)):
        nn.utils.vector_to_parameters(first.clone(), module.parameters())
        optimizer = torch.optim.SGD(module.parameters(), lr=rate)
        for taken in index[row]:
            optimizer.zero_grad()
            functional.cross_entropy(module(samples[taken]), labels[taken]).backward()
            optimizer.step()
        wanted = nn.utils.parameters_to_vector(module.parameters())
        torch.testing.assert_close(models[row], wanted.detach(), rtol=1e-4, atol=1e-5)


@compiled
def test_a_model_that_diverges_is_seen_to():
    models = torch.full((1, 2 * 3 + 3), float("nan"))
    index = torch.zeros(1, 1, 2, dtype=torch.int64)
    labels = torch.tensor([1])
    dense_steps(models, [2, 3], torch.ones(1, 2), labels, index, torch.tensor([0.1]))
    assert models.isnan().any()


def test_without_them_the_stack_is_as_good(monkeypatch):
    monkeypatch.setattr(supervised, "has_dense_steps", lambda: False)
    task = small.network()
    for client in range(3):
        work = Segment(client, task.init(), client, 2, 3 * client)
        ends = []
        for engine in (SerialEngine(task), StackedEngine(task)):
            engine.submit(work)
            ends.append(engine.result(client).end)
        assert small.distance(*ends) < 1e-4


def test_without_them_convolutions_give_the_same_bits(monkeypatch):
    torch.manual_seed(2)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4)
    ).to(memory_format=torch.channels_last)
    inputs, labels = pictures(5, 3, 4, 4), torch.arange(5) % 4
    own = chain.chain_of(module).gradients(inputs, labels)
    monkeypatch.setattr(chain, "suits", lambda value: False)
    for a, b in zip(own, chain.chain_of(module).gradients(inputs, labels), strict=True):
        assert torch.equal(a, b)
