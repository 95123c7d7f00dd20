"""The networks of the paper: sizes, first values, and the order of pooling and ReLU."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpbc.errors import InputError
from fedpbc.tasks.networks import MODELS, build_model
from fedpbc.tasks.parameter_layout import parameters_of

PICTURE = (32, 32, 3)
TEXT = {"vocabulary": 65, "every_position": True}
TEXT_MODELS = ("lstm", "transformer")
PICTURE_MODELS = [name for name in MODELS if name not in TEXT_MODELS]
# ResNet-18 has eleven million parameters: it differs from ResNet-20 in its sizes only.
SMALL_MODELS = [name for name in PICTURE_MODELS if name != "resnet18_gn"]


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
        # Stem and its norm; 64, 128, 256 and 512 channels: two blocks of two convolutions and norms
        # each, and from the second on a 1x1 convolution with a norm; the dense layer.
        (
            "resnet18_gn",
            PICTURE,
            (3 * 64 * 9 + 128)
            + (4 * 64 * 64 * 9 + 4 * 128)
            + (64 * 128 * 9 + 3 * 128 * 128 * 9 + 4 * 256 + 64 * 128 + 256)
            + (128 * 256 * 9 + 3 * 256 * 256 * 9 + 4 * 512 + 128 * 256 + 512)
            + (256 * 512 * 9 + 3 * 512 * 512 * 9 + 4 * 1024 + 256 * 512 + 1024)
            + (512 * 10 + 10),
        ),
        # 16, 32 and 64 channels, three blocks each.
        (
            "resnet20_gn",
            PICTURE,
            (3 * 16 * 9 + 32)
            + (6 * 16 * 16 * 9 + 6 * 32)
            + (16 * 32 * 9 + 5 * 32 * 32 * 9 + 6 * 64 + 16 * 32 + 64)
            + (32 * 64 * 9 + 5 * 64 * 64 * 9 + 6 * 128 + 32 * 64 + 128)
            + (64 * 10 + 10),
        ),
    ],
)
def test_parameters(name, shape, count):
    network = build_model(name, shape, 10, seed=0)
    assert sum(p.numel() for p in parameters_of(network)) == count


def lstm_parameters(vocabulary, embedding, hidden):
    # Four gates, each with weights of input and state, and two biases; two layers.
    first = 4 * (hidden * embedding + hidden * hidden + 2 * hidden)
    second = 4 * (hidden * hidden + hidden * hidden + 2 * hidden)
    return vocabulary * embedding + first + second + (hidden * vocabulary + vocabulary)


@pytest.mark.parametrize("hidden", [256, 64])
def test_parameters_of_the_lstm(hidden):
    network = build_model("lstm", (80,), 65, seed=0, **TEXT, hidden=hidden)
    # LEAF's sizes, with 65 characters: 520 + 272,384 + 526,336 + 16,705.
    assert lstm_parameters(65, 8, 256) == 815_945
    assert sum(p.numel() for p in network.parameters()) == lstm_parameters(65, 8, hidden)


def test_parameters_of_the_transformer():
    network = build_model("transformer", (32,), 65, seed=0, **TEXT)
    # Norms; query, key and value; projection; two dense layers.
    block = 2 * 128 + (64 * 192 + 192) + (64 * 64 + 64) + (64 * 256 + 256) + (256 * 64 + 64)
    count = 65 * 64 + 32 * 64 + 2 * block + 128 + (64 * 65 + 65)
    assert sum(p.numel() for p in network.parameters()) == count == 110_529


@pytest.mark.parametrize("name", TEXT_MODELS)
@pytest.mark.parametrize("every_position", [True, False])
def test_texts_go_through_and_no_position_sees_a_later_one(name, every_position):
    network = build_model(name, (9,), 7, seed=0, vocabulary=5, every_position=every_position).eval()
    tokens = torch.arange(18).reshape(2, 9) % 5
    outputs = network(tokens)
    assert outputs.shape == ((2, 7, 9) if every_position else (2, 7))
    changed = tokens.clone()
    changed[:, 6:] = 4 - changed[:, 6:]
    if every_position:
        assert torch.equal(network(changed)[..., :6], outputs[..., :6])
        assert not torch.equal(network(changed)[..., 6:], outputs[..., 6:])
        whole = build_model(name, (9,), 7, seed=0, vocabulary=5, every_position=False).eval()
        torch.testing.assert_close(whole(tokens), outputs[..., -1])
    else:
        assert not torch.equal(network(changed), outputs)


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_a_model_of_texts_learns_what_comes_next(name):
    tokens = torch.arange(9).repeat(2, 1) % 3
    size = {"lstm": {"hidden": 16}, "transformer": {"width": 16}}[name]
    network = build_model(name, (8,), 3, seed=0, vocabulary=3, every_position=True, **size)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.03)
    for _ in range(40):
        loss = functional.cross_entropy(network(tokens[:, :-1]), tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5 * math.log(3)


def test_models_for_other_data():
    with pytest.raises(InputError, match=r"model is 'lstm', but should be another.*for texts"):
        build_model("lstm", PICTURE, 10, seed=0)
    for name in ("cnn_svhn", "resnet20_gn"):
        with pytest.raises(InputError, match=rf"model is '{name}'.*these are texts"):
            build_model(name, (32,), 65, seed=0, **TEXT)
    with pytest.raises(InputError, match=r"model\.heads is 3, but should be a divisor of .*64"):
        build_model("transformer", (32,), 65, seed=0, **TEXT, heads=3)
    with pytest.raises(InputError, match=r"model\.groups is 5, but should be a divisor of 16"):
        build_model("resnet20_gn", PICTURE, 10, seed=0, groups=5)
    with pytest.raises(InputError, match=r"model\.hiden is unknown.*did you mean 'hidden'"):
        build_model("lstm", (32,), 65, seed=0, **TEXT, hiden=3)
    with pytest.raises(InputError, match=r"model\.hidden is 0, but should be at least 1"):
        build_model("lstm", (32,), 65, seed=0, **TEXT, hidden=0)


def test_small_pictures_go_through_resnet18():
    network = build_model("resnet18_gn", (9, 11, 2), 7, seed=0)
    assert network(torch.zeros(2, 2, 9, 11)).shape == (2, 7)


@pytest.mark.parametrize("name", SMALL_MODELS)
@pytest.mark.parametrize("shape", [PICTURE, (28, 28, 1), (9, 11, 2)])
def test_any_picture_goes_through(name, shape):
    height, width, channels = shape
    network = build_model(name, shape, 7, seed=0)
    assert network(torch.zeros(2, channels, height, width)).shape == (2, 7)


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_first_values(name):
    *inner, last = layers_of(build_model(name, PICTURE, 10, seed=3))
    for layer in inner:
        assert layer.bias is None or not layer.bias.any()
        wanted, count = math.sqrt(2 / fan_in(layer)), layer.weight.numel()
        # The standard error of a deviation is σ/√(2n), of a mean σ/√n: five of them.
        assert abs(layer.weight.std().item() - wanted) < 5 * wanted / math.sqrt(2 * count)
        assert abs(layer.weight.mean().item()) < 5 * wanted / math.sqrt(count)
        assert layer.weight.abs().max() > 2 * wanted  # normal, not uniform
    bound = 1 / math.sqrt(fan_in(last))  # PyTorch's default: uniform in ±bound
    for parameter in (last.weight, last.bias):
        assert 0.5 * bound < parameter.abs().max().item() <= bound


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_the_seed_decides_and_the_global_generator_is_left_alone(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = build_model(name, PICTURE, 10, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    same, other = (build_model(name, PICTURE, 10, seed=seed) for seed in (0, 1))
    for a, b, c in zip(one.parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c) or not a.any() or a.eq(1).all()


@pytest.mark.parametrize("name", ["cnn_svhn", "cnn_cifar10"])
def test_pooling_before_relu_is_the_papers_network(name):
    network = build_model(name, PICTURE, 10, seed=0)
    layers = list(network.children())
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
    kinds = [type(k) for k in build_model("cnn_cinic10", PICTURE, 10, seed=0).children()][6:]
    dropped = [nn.Dropout, nn.Linear, nn.ReLU]
    assert kinds == [nn.Flatten, *dropped, *dropped, nn.Dropout, nn.Linear]
    network = build_model("cnn_cinic10", PICTURE, 10, 0)
    rates = {d.p for d in network.modules() if isinstance(d, nn.Dropout)}
    assert rates == {0.2}


def test_refusals():
    with pytest.raises(InputError, match=r"model is 'cnn_svh', .*did you mean 'cnn_svhn'\?"):
        build_model("cnn_svh", PICTURE, 10, seed=0)
    with pytest.raises(InputError, match="mlp"):
        build_model("cnn_svhn", (3, 8, 1), 10, seed=0)


def test_threads_that_build_at_once_get_the_models_of_their_seeds():
    """As the devices of a fleet that tests run in one process; they share PyTorch's generator."""
    expected = [build_model("mlp", (8, 8, 1), 10, seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda k: build_model("mlp", (8, 8, 1), 10, k % 4), range(200)))
    for k, network in enumerate(built):
        for found, right in zip(network.parameters(), expected[k % 4].parameters(), strict=True):
            assert torch.equal(found, right)
