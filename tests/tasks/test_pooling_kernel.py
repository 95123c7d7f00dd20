"""ReLU and pooling in one compiled pass give the bits of PyTorch's operators."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedpbc.tasks import manual_backprop, pooling_kernel
from fedpbc.tasks.networks import build_model
from fedpbc.tasks.pooling_kernel import (
    can_relu_pool,
    has_relu_pool,
    relu_pool,
    relu_pool_backward,
)

compiled = pytest.mark.skipif(not has_relu_pool(), reason="built without a C compiler")


def images(count, channels, height, width, values=None):
    drawn = torch.randn(count, height, width, channels) if values is None else values
    return drawn.permute(0, 3, 1, 2)


@compiled
@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4)),
    rounded=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_both_passes_are_those_of_relu_and_max_pooling(sizes, rounded, seed):
    count, channels, height, width = sizes
    torch.manual_seed(seed)
    value = images(count, 8 * channels, 2 * height, 2 * width)
    if rounded:
        # Many equal values in a window, and many zeros.
        value = value.round()
    value.requires_grad_()
    expected = nn.functional.max_pool2d(value.relu(), 2)
    grad = images(count, 8 * channels, height, width)
    (expected_grad,) = torch.autograd.grad(expected, value, grad)
    pooled, winner = relu_pool(value.detach())
    assert pooled.equal(expected)
    assert relu_pool_backward(grad, winner).equal(expected_grad)


@compiled
def test_what_is_no_number_is_passed_on_with_its_gradient():
    value = images(1, 8, 2, 2)
    value[0, :, 1, 0] = torch.nan
    value.requires_grad_()
    expected = nn.functional.max_pool2d(value.relu(), 2)
    (expected_grad,) = torch.autograd.grad(expected.sum(), value)
    pooled, winner = relu_pool(value.detach())
    assert pooled.isnan().all()
    assert expected.isnan().all()
    assert relu_pool_backward(torch.ones_like(pooled), winner).equal(expected_grad)


@pytest.mark.parametrize(
    "value",
    [
        images(1, 12, 4, 4),
        images(1, 8, 3, 4),
        images(1, 8, 4, 5),
        images(1, 8, 4, 4).double(),
        images(1, 8, 4, 4).contiguous(),
    ],
    ids=["channels", "height", "width", "precision", "layout"],
)
def test_other_images_are_left_to_pytorch(value):
    assert not can_relu_pool(value)


@compiled
@pytest.mark.parametrize("name", ["cnn_cifar10", "cnn_svhn"])
@pytest.mark.parametrize("shape", [(8, 12, 3), (9, 10, 3)], ids=["even", "odd"])
def test_a_step_has_the_same_bits_without_the_kernel(name, shape, monkeypatch):
    torch.manual_seed(2)
    pictures, labels = images(7, 3, shape[0], shape[1]), torch.arange(7) % 5

    def trained():
        module = build_model(name, shape, 5, seed=1).to(memory_format=torch.channels_last)
        steps = manual_backprop.manual_backprop(module)
        for _ in range(3):
            steps.sgd_step(pictures, labels, 0.1)
        return torch.cat([p.detach().reshape(-1) for p in module.parameters()])

    with_kernel = trained()
    monkeypatch.setattr(pooling_kernel, "_kernels", lambda: None)
    assert trained().equal(with_kernel)


@compiled
def test_a_library_without_the_kernels_is_done_without(monkeypatch):
    pooling_kernel._kernels.cache_clear()
    monkeypatch.setattr(pooling_kernel, "compiled_library", object)
    try:
        assert not has_relu_pool()
    finally:
        pooling_kernel._kernels.cache_clear()
