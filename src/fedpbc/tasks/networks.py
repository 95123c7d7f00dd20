"""The paper's networks and two small dense ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import nn

from fedpbc.errors import InputError
from fedpbc.options import check_arguments, check_type, nearest
from fedpbc.randomness import integer_seed

__all__ = ["MODELS", "build_model", "initialise"]

PictureShape = tuple[int, int, int]
"""Height, width and channels."""
Side = Annotated[int, Ge(1), Le(10_000)]
MAX_CLASSES = 1_000_000


def convolutions(shape: PictureShape) -> tuple[list[nn.Module], int]:
    """Return the paper's two convolution blocks and the number of their output features."""
    height, width, channels = shape
    layers: list[nn.Module] = []
    for inputs in (channels, 32):
        # Pooling before ReLU gives the same values and gradients on a quarter of the elements.
        layers += [nn.Conv2d(inputs, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
    return [*layers, nn.Flatten()], 32 * (height // 4) * (width // 4)


def dense(sizes: list[int], dropout: float = 0.0) -> list[nn.Module]:
    """Return dense layers with ReLU in between and, optionally, dropout before each."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Dropout(dropout)] if dropout else []
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return layers[:-1]


def cnn_svhn(shape: PictureShape, classes: int) -> nn.Sequential:
    """The paper's network for SVHN: two convolution blocks, FC128."""
    blocks, features = convolutions(shape)
    return nn.Sequential(*blocks, *dense([features, 128, classes]))


def cnn_cifar10(shape: PictureShape, classes: int) -> nn.Sequential:
    """The paper's network for CIFAR-10: two convolution blocks, FC256, FC64."""
    blocks, features = convolutions(shape)
    return nn.Sequential(*blocks, *dense([features, 256, 64, classes]))


def cnn_cinic10(shape: PictureShape, classes: int) -> nn.Sequential:
    """The paper's network for CINIC-10: two convolution blocks, FC512, FC256, dropout."""
    blocks, features = convolutions(shape)
    return nn.Sequential(*blocks, *dense([features, 512, 256, classes], dropout=0.2))


def mlp(shape: PictureShape, classes: int) -> nn.Sequential:
    """One hidden layer of 64 units."""
    return nn.Sequential(nn.Flatten(), *dense([math.prod(shape), 64, classes]))


def softmax(shape: PictureShape, classes: int) -> nn.Sequential:
    """Softmax regression."""
    return nn.Sequential(nn.Flatten(), *dense([math.prod(shape), classes]))


MODELS: dict[str, Callable[[PictureShape, int], nn.Sequential]] = {
    network.__name__: network for network in (mlp, softmax, cnn_svhn, cnn_cifar10, cnn_cinic10)
}
"""The networks by name; each is a function of the shape of an image and the number of classes."""


@check_arguments
def build_model(
    name: str,
    shape: PictureShape,
    classes: Annotated[int, Ge(1), Le(MAX_CLASSES)],
    seed: Annotated[int, Ge(0)],
) -> nn.Sequential:
    """Build a network by name, initialised from the seed.

    Example:
        >>> network = build_model("cnn_cifar10", (32, 32, 3), 10, seed=0)
        >>> sum(p.numel() for p in network.parameters())
        551786
    """
    shape = check_type("shape", shape, tuple[Side, Side, Side])
    if name not in MODELS:
        raise InputError("model", name, nearest(name, MODELS))
    if name.startswith("cnn") and min(shape[:2]) < 4:
        raise InputError("model", name, f"'mlp' or 'softmax' for images of {shape[0]}x{shape[1]}")
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also seed every GPU, without restoring it.
        torch.default_generator.manual_seed(integer_seed(seed, "initial model"))
        network = MODELS[name](shape, classes)
        initialise(network)
    return network


def initialise(network: nn.Module) -> None:
    """Set Kaiming-normal weights and zero biases; the last layer keeps PyTorch's default."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
