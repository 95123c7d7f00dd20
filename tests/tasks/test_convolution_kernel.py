"""Convolution, ReLU and pooling in one compiled pass: exact sums, and PyTorch's bits where used."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedpbc.tasks import convolution_kernel, manual_backprop
from fedpbc.tasks.convolution_kernel import (
    can_convolve,
    can_convolve_backward,
    convolve_relu_pool,
    convolve_relu_pool_backward,
    has_convolution,
)
from fedpbc.tasks.networks import build_model

pytestmark = pytest.mark.usefixtures("one_thread")
compiled = pytest.mark.skipif(
    not has_convolution(), reason="no compiled convolution, or a processor without wide registers"
)


def channels_last(tensor):
    return tensor.contiguous(memory_format=torch.channels_last)


def layer(count, inputs, height, width, outputs, dtype=torch.float32):
    """Images, weight and bias of small integers: every sum of them is exact, in whatever order."""

    def integers(*shape):
        return torch.randint(-4, 5, shape).to(dtype)

    images, weight = integers(count, inputs, height, width), integers(outputs, inputs, 3, 3)
    return channels_last(images), channels_last(weight), integers(outputs)


def reference(value, weight, bias, grad):
    """The same from PyTorch, by autograd."""
    tensors = [tensor.clone().requires_grad_() for tensor in (value, weight, bias)]
    pooled = nn.functional.max_pool2d(torch.conv2d(*tensors, padding=1).relu(), 2)
    return pooled.detach(), torch.autograd.grad(pooled, tensors, grad)


@compiled
@settings(deadline=None)
@given(
    count=st.integers(1, 3),
    inputs=st.sampled_from([2, 3, 5, 32, 64]),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    outputs=st.sampled_from([32, 64]),
    seed=st.integers(0, 1000),
)
def test_both_passes_are_those_of_convolution_relu_and_pooling(count, inputs, sizes, outputs, seed):
    torch.manual_seed(seed)
    height, width = (2 * size for size in sizes)
    value, weight, bias = layer(count, inputs, height, width, outputs)
    grad = channels_last(torch.randint(-4, 5, (count, outputs, *sizes)).float())
    expected, gradients = reference(value, weight, bias, grad)
    pooled, winner = convolve_relu_pool(value, weight, bias)
    assert pooled.equal(expected)
    need_input = inputs % 32 == 0
    own = convolve_relu_pool_backward(grad, winner, value, weight, need_input)
    for k, (a, b) in enumerate(zip(own, gradients, strict=True)):
        assert (a is None and k == 0 and not need_input) or a.equal(b)


@compiled
def test_what_is_no_number_is_passed_on():
    value, weight, bias = layer(1, 3, 4, 4, 32)
    bias[5] = torch.nan
    pooled, _ = convolve_relu_pool(value, weight, bias)
    assert pooled[:, 5].isnan().all()
    assert not pooled[:, :5].isnan().any()


@compiled
@pytest.mark.parametrize("name", ["cnn_cifar10", "cnn_svhn", "cnn_cinic10"])
@pytest.mark.parametrize("shape", [(32, 32, 3), (8, 12, 3), (28, 28, 1)])
def test_steps_and_outputs_have_the_same_bits_without_the_kernels(name, shape, monkeypatch):
    torch.manual_seed(2)
    height, width, channels = shape
    pictures = torch.randn(16, height, width, channels).permute(0, 3, 1, 2)
    labels = torch.arange(16) % 5

    def trained():
        module = build_model(name, shape, 5, seed=1).to(memory_format=torch.channels_last)
        steps = manual_backprop.manual_backprop(module)
        torch.manual_seed(7)
        for _ in range(3):
            steps.sgd_step(pictures, labels, 0.1)
        parameters = [p.detach().reshape(-1) for p in module.parameters()]
        gradients = [g.reshape(-1) for g in steps.gradients(pictures, labels)]
        return torch.cat([*parameters, *gradients, steps.outputs(pictures).reshape(-1)])

    with_kernel = trained()
    monkeypatch.setattr(convolution_kernel, "_kernels", lambda: None)
    assert trained().equal(with_kernel)


@compiled
def test_a_kernel_with_other_bits_is_not_used(monkeypatch):
    value, weight, _ = layer(1, 3, 4, 6, 32)

    def a_bit_more(*arguments):
        pooled, winner = convolve_relu_pool(*arguments)
        return pooled.nextafter(torch.tensor(torch.inf)), winner

    convolution_kernel._has_pytorch_bits.forget()
    monkeypatch.setattr(convolution_kernel, "convolve_relu_pool", a_bit_more)
    try:
        assert not can_convolve(value, weight)
    finally:
        convolution_kernel._has_pytorch_bits.forget()


@pytest.mark.parametrize(
    ("value", "weight"),
    [
        (torch.ones(1, 3, 4, 4), torch.ones(40, 3, 3, 3)),
        (torch.ones(1, 3, 4, 4), torch.ones(32, 3, 5, 5)),
        (torch.ones(1, 3, 5, 4), torch.ones(32, 3, 3, 3)),
        (torch.ones(1, 3, 4, 5), torch.ones(32, 3, 3, 3)),
        (torch.ones(0, 3, 4, 4), torch.ones(32, 3, 3, 3)),
        (torch.ones(1, 1, 4, 4), torch.ones(32, 1, 3, 3)),
        (torch.ones(1, 3, 4, 4).double(), torch.ones(32, 3, 3, 3).double()),
    ],
    ids=["outputs", "kernel", "height", "width", "empty", "one channel", "precision"],
)
def test_other_layers_are_left_to_pytorch(value, weight):
    assert not can_convolve(channels_last(value), channels_last(weight))
    assert not can_convolve_backward(channels_last(value), channels_last(weight), False)


def test_other_layouts_and_threads_are_left_to_pytorch():
    value, weight, _ = layer(1, 3, 4, 4, 32)
    assert not can_convolve(value.contiguous(), weight)
    assert not can_convolve(value, weight.contiguous())
    torch.set_num_threads(2)
    assert not can_convolve(value, weight)


@compiled
def test_the_gradient_by_few_input_channels_is_left_to_pytorch():
    value, weight, _ = layer(1, 3, 4, 4, 32)
    assert not can_convolve_backward(value, weight, need_input=True)
