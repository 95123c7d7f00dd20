"""Residual networks with group normalisation.

He et al. 2016, with GroupNorm (Wu and He, 2018) in place of BatchNorm: a client's batches are small
and of few classes, and statistics of a batch would not be those of the other clients. The first
layer is a 3x3 convolution without pooling, as is usual for small pictures, and shortcuts to more
channels are 1x1 convolutions with a normalisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from fedpbc.errors import InputError
from fedpbc.tasks.model_registry import Shape, register_model

__all__ = ["checked_picture", "initialise", "resnet18_gn", "resnet20_gn"]

Module = TypeVar("Module", bound=nn.Module)
Groups = Annotated[int, Ge(1), Le(1024)]


def initialise(network: Module) -> Module:
    """Set Kaiming-normal weights and zero biases; the last layer keeps PyTorch's default."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return network


def checked_picture(shape: Shape, name: str) -> tuple[int, int, int]:
    """Return height, width and channels, if these are pictures."""
    if len(shape) != 3:
        kind = "texts: use lstm or transformer" if len(shape) == 1 else f"samples of shape {shape}"
        raise InputError("model", name, f"another: it is for pictures, and these are {kind}")
    height, width, channels = shape
    return height, width, channels


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(groups, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(groups, outputs)
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + self.shortcut(x))


def residual_network(
    shape: Shape, classes: int, name: str, widths: Sequence[int], blocks: int, groups: int
) -> nn.Sequential:
    """Return a network of stages with these widths; each but the first halves the picture."""
    _, _, channels = checked_picture(shape, name)
    if widths[0] % groups:
        raise InputError("model.groups", groups, f"a divisor of {widths[0]}, the first channels")
    layers: list[nn.Module] = [
        nn.Conv2d(channels, widths[0], 3, padding=1, bias=False),
        nn.GroupNorm(groups, widths[0]),
        nn.ReLU(),
    ]
    inputs = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            layers.append(ResidualBlock(inputs, width, stride, groups))
            inputs = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
    return initialise(nn.Sequential(*layers))


@register_model
def resnet18_gn(shape: Shape, classes: int, *, groups: Groups = 32) -> nn.Sequential:
    """ResNet-18 with group normalisation, for small pictures."""
    return residual_network(shape, classes, "resnet18_gn", (64, 128, 256, 512), 2, groups)


@register_model
def resnet20_gn(shape: Shape, classes: int, *, groups: Groups = 8) -> nn.Sequential:
    """ResNet-20 with group normalisation, for small pictures."""
    return residual_network(shape, classes, "resnet20_gn", (16, 32, 64), 3, groups)
