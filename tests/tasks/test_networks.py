"""The networks of the paper: sizes, first values, and the order of pooling and ReLU."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedpbc.errors import InputError
from fedpbc.tasks.networks import MODELS, build_model
from fedpbc.tasks.parameter_layout import parameters_of

PICTURE = (32, 32, 3)


def layers_of(network):
    return [layer for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]


def fan_in(layer):
    return layer.weight[0].numel()


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        ("cnn_svhn", PICTURE, 273_706),
        ("cnn_cifar10", PICTURE, 551_786),
        ("cnn_cinic10", PICTURE, 1_193_130),
        ("mlp", (28, 28, 1), 784 * 64 + 64 + 64 * 10 + 10),
        ("softmax", (8, 8, 1), 64 * 10 + 10),
    ],
)
def test_parameters(name, shape, count):
    network = build_model(name, shape, 10, seed=0)
    assert sum(p.numel() for p in parameters_of(network)) == count


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [PICTURE, (28, 28, 1), (9, 11, 2)])
def test_any_picture_goes_through(name, shape):
    height, width, channels = shape
    network = build_model(name, shape, 7, seed=0)
    assert network(torch.zeros(2, channels, height, width)).shape == (2, 7)


@pytest.mark.parametrize("name", MODELS)
def test_first_values(name):
    *inner, last = layers_of(build_model(name, PICTURE, 10, seed=3))
    for layer in inner:
        assert not layer.bias.any()
        wanted, count = math.sqrt(2 / fan_in(layer)), layer.weight.numel()
        # The standard error of a deviation is σ/√(2n), of a mean σ/√n: five of them.
        assert abs(layer.weight.std().item() - wanted) < 5 * wanted / math.sqrt(2 * count)
        assert abs(layer.weight.mean().item()) < 5 * wanted / math.sqrt(count)
        assert layer.weight.abs().max() > 2 * wanted  # normal, not uniform
    bound = 1 / math.sqrt(fan_in(last))  # PyTorch's default: uniform in ±bound
    for parameter in (last.weight, last.bias):
        assert 0.5 * bound < parameter.abs().max().item() <= bound


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_decides_and_the_global_generator_is_left_alone(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = build_model(name, PICTURE, 10, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    same, other = (build_model(name, PICTURE, 10, seed=seed) for seed in (0, 1))
    for a, b, c in zip(one.parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c) or not a.any()


@pytest.mark.parametrize("name", ["cnn_svhn", "cnn_cifar10"])
def test_pooling_before_relu_is_the_papers_network(name):
    network = build_model(name, PICTURE, 10, seed=0)
    layers = list(network)
    # Conv, pool, ReLU, conv, pool, ReLU, …, as the paper has it: conv, ReLU, pool.
    assert [type(layer) for layer in layers[:6]] == [nn.Conv2d, nn.MaxPool2d, nn.ReLU] * 2
    paper = nn.Sequential(*[layers[k] for k in (0, 2, 1, 3, 5, 4)], *layers[6:])
    random = torch.Generator().manual_seed(0)
    pictures = torch.randn(6, 3, 32, 32, generator=random)
    found = []
    for order in (network, paper):
        outputs = order(pictures)
        loss = nn.functional.cross_entropy(outputs, torch.arange(6))
        found.append([outputs, *torch.autograd.grad(loss, list(network.parameters()))])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)
    assert all(part.any() for part in found[0])


def test_dropout_stands_before_each_dense_layer_of_cinic10():
    kinds = [type(layer) for layer in build_model("cnn_cinic10", PICTURE, 10, seed=0)][6:]
    dropped = [nn.Dropout, nn.Linear, nn.ReLU]
    assert kinds == [nn.Flatten, *dropped, *dropped, nn.Dropout, nn.Linear]
    rates = {d.p for d in build_model("cnn_cinic10", PICTURE, 10, 0) if isinstance(d, nn.Dropout)}
    assert rates == {0.2}


def test_refusals():
    with pytest.raises(InputError, match=r"model is 'cnn_svh', .*did you mean 'cnn_svhn'\?"):
        build_model("cnn_svh", PICTURE, 10, seed=0)
    with pytest.raises(InputError, match="mlp"):
        build_model("cnn_svhn", (3, 8, 1), 10, seed=0)
