"""Dense layers in compiled functions: sums in blocks to the bit, and PyTorch's bits where used."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpbc.tasks import linear_kernel, manual_backprop
from fedpbc.tasks.linear_kernel import linear, linear_block, linear_step, linear_step_block
from fedpbc.tasks.networks import build_model

pytestmark = pytest.mark.usefixtures("one_thread")
compiled = pytest.mark.skipif(
    linear_kernel._kernels() is None,
    reason="no compiled dense layers, or a processor without wide registers",
)


def fused(a, b, total):
    """a·b + total, rounded once: with eight significant bits each all but that is exact here."""
    return (a.astype(np.float64) * b.astype(np.float64) + total).astype(np.float32)


def chain(left, right):
    """Σ_k left[k] right[k] from zero, one after another."""
    total = np.zeros((left.shape[1], right.shape[1]), dtype=np.float32)
    for a, b in zip(left, right, strict=True):
        total = fused(a[:, None], b[None, :], total)
    return total


def in_blocks(left, right, block, total=None):
    """The same, in blocks whose sums are added."""
    for first in range(0, len(left), block):
        part = chain(left[first : first + block], right[first : first + block])
        total = part if total is None else total + part
    return total


def random(*shape):
    """Numbers of eight significant bits."""
    return torch.randn(shape).bfloat16().float()


@compiled
@settings(deadline=None, max_examples=30)
@given(
    batch=st.integers(1, 16),
    inputs=st.integers(1, 4),
    outputs=st.integers(1, 3),
    blocks=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_every_sum_is_made_in_blocks(batch, inputs, outputs, blocks, seed):
    torch.manual_seed(seed)
    inputs, outputs, block = 32 * inputs, 32 * outputs, 32 * blocks
    value, weight, bias = random(batch, inputs), random(outputs, inputs), random(outputs)
    x, w, g = value.numpy(), weight.numpy().copy(), random(batch, outputs)
    expected = in_blocks(x.T, w.T, block, bias.numpy()[None, :])
    assert np.array_equal(linear(value, weight, bias, block).numpy(), expected)
    stepped = weight.clone()
    below = linear_step(g, value, stepped, block, need_input=True)
    assert np.array_equal(below.numpy(), in_blocks(g.numpy().T, w, block))
    assert np.array_equal(stepped.numpy(), w - chain(g.numpy(), x))
    alone = weight.clone()
    assert linear_step(g, value, alone, block, need_input=False) is None
    assert alone.equal(stepped)


@compiled
@pytest.mark.parametrize("batch", [1, 7, 16, 17])
@pytest.mark.parametrize("name", ["cnn_cifar10", "cnn_svhn"])
def test_steps_have_the_same_bits_without_the_functions(name, batch, monkeypatch):
    torch.manual_seed(2)
    pictures = torch.randn(batch, 32, 32, 3).permute(0, 3, 1, 2)
    labels = torch.arange(batch) % 10

    def trained():
        module = build_model(name, (32, 32, 3), 10, seed=1).to(memory_format=torch.channels_last)
        steps = manual_backprop.manual_backprop(module)
        for _ in range(3):
            steps.sgd_step(pictures, labels, 0.1)
        return torch.cat([p.detach().reshape(-1) for p in module.parameters()])

    with_functions = trained()
    monkeypatch.setattr(linear_kernel, "_kernels", lambda: None)
    assert trained().equal(with_functions)


@compiled
def test_functions_with_other_bits_are_not_used(monkeypatch):
    value, weight = random(5, 64), random(32, 64)

    def a_bit_more(*arguments):
        return linear(*arguments).nextafter(torch.tensor(torch.inf))

    linear_kernel._forward_block.forget()
    monkeypatch.setattr(linear_kernel, "linear", a_bit_more)
    try:
        assert linear_block(value, weight) == 0
    finally:
        linear_kernel._forward_block.forget()


@pytest.mark.parametrize(
    ("value", "weight"),
    [
        (torch.ones(17, 64), torch.ones(32, 64)),
        (torch.ones(0, 64), torch.ones(32, 64)),
        (torch.ones(4, 32), torch.ones(32, 64)),
        (torch.ones(4, 3, 64), torch.ones(32, 64)),
        (torch.ones(4, 48), torch.ones(32, 48)),
        (torch.ones(4, 64), torch.ones(10, 64)),
        (torch.ones(4, 64).double(), torch.ones(32, 64).double()),
        (torch.ones(64, 4).t(), torch.ones(32, 64)),
        (torch.ones(4, 64), torch.ones(64, 32).t()),
    ],
    ids=[
        "batch",
        "empty",
        "other inputs",
        "dimensions",
        "inputs",
        "outputs",
        "precision",
        "samples' layout",
        "weight's layout",
    ],
)
def test_other_layers_are_left_to_pytorch(value, weight):
    assert linear_block(value, weight) == 0
    assert linear_step_block(value, weight, need_input=True) == 0


def test_autocast_is_left_to_pytorch():
    with torch.autocast("cpu", torch.bfloat16):
        assert linear_block(torch.ones(4, 64), torch.ones(32, 64)) == 0


def test_several_threads_are_left_to_pytorch():
    torch.set_num_threads(2)
    assert linear_block(torch.ones(4, 64), torch.ones(32, 64)) == 0
