"""The paper's networks, two small dense ones, and all others that are built in."""

from __future__ import annotations

import itertools
import math

from torch import nn

from fedpbc.errors import InputError
from fedpbc.tasks import resnets as resnets
from fedpbc.tasks import sequence_models as sequence_models
from fedpbc.tasks.model_registry import (
    MODELS,
    Shape,
    build_model,
    find_model,
    register_model,
)
from fedpbc.tasks.resnets import checked_picture, initialise

__all__ = ["MODELS", "build_model", "find_model", "initialise", "register_model"]


def convolutions(shape: Shape, name: str) -> tuple[list[nn.Module], int]:
    """Return the paper's two convolution blocks and the number of their output features."""
    height, width, channels = checked_picture(shape, name)
    if min(height, width) < 4:
        raise InputError("model", name, f"'mlp' or 'softmax' for images of {height}x{width}")
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


def check_numbers(name: str, vocabulary: int) -> None:
    """Raise unless samples are numbers: those of a text only count characters."""
    if vocabulary:
        raise InputError("model", name, "lstm or transformer: the samples are texts")


@register_model
def mlp(shape: Shape, classes: int, vocabulary: int = 0) -> nn.Sequential:
    """One hidden layer of 64 units."""
    check_numbers("mlp", vocabulary)
    return initialise(nn.Sequential(nn.Flatten(), *dense([math.prod(shape), 64, classes])))


@register_model
def softmax(shape: Shape, classes: int, vocabulary: int = 0) -> nn.Sequential:
    """Softmax regression."""
    check_numbers("softmax", vocabulary)
    return initialise(nn.Sequential(nn.Flatten(), *dense([math.prod(shape), classes])))


@register_model
def cnn_svhn(shape: Shape, classes: int) -> nn.Sequential:
    """The paper's network for SVHN: two convolution blocks, FC128."""
    blocks, features = convolutions(shape, "cnn_svhn")
    return initialise(nn.Sequential(*blocks, *dense([features, 128, classes])))


@register_model
def cnn_cifar10(shape: Shape, classes: int) -> nn.Sequential:
    """The paper's network for CIFAR-10: two convolution blocks, FC256, FC64."""
    blocks, features = convolutions(shape, "cnn_cifar10")
    return initialise(nn.Sequential(*blocks, *dense([features, 256, 64, classes])))


@register_model
def cnn_cinic10(shape: Shape, classes: int) -> nn.Sequential:
    """The paper's network for CINIC-10: two convolution blocks, FC512, FC256, dropout."""
    blocks, features = convolutions(shape, "cnn_cinic10")
    return initialise(nn.Sequential(*blocks, *dense([features, 512, 256, classes], dropout=0.2)))
