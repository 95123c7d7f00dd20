"""Local steps of one client through a plain chain of layers, with the backward pass written out.

For the paper's networks: convolutions, max-pooling, ReLU, dropout and dense layers one after
another, with cross-entropy at the end. The same kernels that autograd would call, but every
gradient goes into its weight at once: the large ones are never stored, and nothing is recorded.
Other modules go through autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

__all__ = ["Chain", "chain_of"]

from fedpbc.tasks.pooling import pool, suits, unpool

aten = torch.ops.aten


class Sink(Protocol):
    """Where gradients go."""

    def product(self, parameter: Tensor, left: Tensor, right: Tensor) -> None:
        """The gradient is leftᵀ·right."""

    def add(self, parameter: Tensor, gradient: Tensor) -> None:
        """The gradient itself."""


class Descent:
    """Into the weights, at once."""

    def product(self, parameter: Tensor, left: Tensor, right: Tensor) -> None:
        parameter.addmm_(left.t(), right, alpha=-1)

    def add(self, parameter: Tensor, gradient: Tensor) -> None:
        parameter.sub_(gradient)


class Collection:
    """Kept, for optimisers that want to see them."""

    def __init__(self) -> None:
        self.found: dict[int, Tensor] = {}

    def product(self, parameter: Tensor, left: Tensor, right: Tensor) -> None:
        self.found[id(parameter)] = left.t() @ right

    def add(self, parameter: Tensor, gradient: Tensor) -> None:
        self.found[id(parameter)] = gradient


class Layer(Protocol):
    """One layer: what it gives, and what its slope means for what went in."""

    def forward(self, value: Tensor, fresh: bool) -> tuple[Tensor, Any]:
        """The output, and what the way back needs. A fresh value may be changed in place."""

    def backward(self, slope: Tensor, kept: Any, sink: Sink, below: bool) -> Tensor:
        """The slope by the input, if somebody ``below`` wants it; parameters' go to the sink."""


class Dense:
    """A linear layer."""

    def __init__(self, layer: nn.Linear) -> None:
        self.weight, self.bias = layer.weight.detach(), layer.bias.detach()

    def forward(self, value: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        return torch.addmm(self.bias, value, self.weight.t()), value

    def backward(self, slope: Tensor, kept: Tensor, sink: Sink, below: bool) -> Tensor:
        under = slope @ self.weight if below else slope
        sink.product(self.weight, slope, kept)
        sink.add(self.bias, slope.sum(0))
        return under


class Convolution:
    """A 2-d convolution."""

    def __init__(self, layer: nn.Conv2d) -> None:
        assert layer.bias is not None
        assert not isinstance(layer.padding, str)
        self.weight, self.bias = layer.weight.detach(), layer.bias.detach()
        self.geometry = layer.stride, layer.padding, layer.dilation

    def forward(self, value: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        return torch.conv2d(value, self.weight, self.bias, *self.geometry), value

    def backward(self, slope: Tensor, kept: Tensor, sink: Sink, below: bool) -> Tensor:
        under, gradient, _ = aten.convolution_backward(
            slope, kept, self.weight, None, *self.geometry, False, [0, 0], 1, [below, True, False]
        )
        sink.add(self.weight, gradient)
        # By itself: the convolution's own bias gradient takes several times as long.
        sink.add(self.bias, slope.sum((0, 2, 3)))
        return under if below else slope


class Pooling:
    """Max-pooling; as in PyTorch, the first of equal values gets the gradient."""

    def __init__(self, layer: nn.MaxPool2d) -> None:
        kernel, stride = pair(layer.kernel_size), pair(layer.stride)
        self.geometry = kernel, stride, pair(layer.padding), pair(layer.dilation), layer.ceil_mode

    def forward(self, value: Tensor, fresh: bool) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        pooled, places = aten.max_pool2d_with_indices(value, *self.geometry)
        return pooled, (value, places)

    def backward(
        self, slope: Tensor, kept: tuple[Tensor, Tensor], sink: Sink, below: bool
    ) -> Tensor:
        value, places = kept
        under: Tensor = aten.max_pool2d_with_indices_backward(slope, value, *self.geometry, places)
        return under


HALVING = [2, 2], [2, 2], [0, 0], [1, 1], False


class Rectifier:
    """ReLU."""

    def forward(self, value: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        value = value.relu_() if fresh else value.relu()
        return value, value

    def backward(self, slope: Tensor, kept: Tensor, sink: Sink, below: bool) -> Tensor:
        under: Tensor = aten.threshold_backward(slope, kept, 0)
        return under


class PooledRectifier:
    """2 × 2 pooling and ReLU at once, in the compiled kernel where there is one."""

    def __init__(self, pooling: Pooling) -> None:
        self.pooling, self.rectifier = pooling, Rectifier()

    def forward(self, value: Tensor, fresh: bool) -> tuple[Tensor, Any]:
        if suits(value):
            pooled, places = pool(value)
            return pooled, (places, None, None)
        pooled, kept = self.pooling.forward(value, fresh)
        pooled, rectified = self.rectifier.forward(pooled, True)
        return pooled, (None, kept, rectified)

    def backward(self, slope: Tensor, kept: Any, sink: Sink, below: bool) -> Tensor:
        places, pooled, rectified = kept
        if places is not None:
            return unpool(slope, places)
        slope = self.rectifier.backward(slope, rectified, sink, below)
        return self.pooling.backward(slope, pooled, sink, below)


class Flattening:
    """From pictures to rows."""

    def forward(self, value: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        return value.flatten(1), value

    def backward(self, slope: Tensor, kept: Tensor, sink: Sink, below: bool) -> Tensor:
        slope = slope.view(kept.shape)
        if kept.dim() == 4 and kept.is_contiguous(memory_format=torch.channels_last):
            slope = slope.contiguous(memory_format=torch.channels_last)
        return slope


class Dropping:
    """Dropout; draws from PyTorch's generator, as nn.Dropout does."""

    def __init__(self, layer: nn.Dropout) -> None:
        self.share = layer.p

    def forward(self, value: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        output, mask = torch.native_dropout(value, self.share, True)
        return output, mask

    def backward(self, slope: Tensor, kept: Tensor, sink: Sink, below: bool) -> Tensor:
        under: Tensor = aten.native_dropout_backward(slope, kept, 1 / (1 - self.share))
        return under


class Chain:
    """Layers one after another with the cross-entropy of their output.

    Works on the module's own parameters, so what is filled into them counts.

    Example:
        >>> network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> chain = chain_of(network)
        >>> gradients = chain.gradients(torch.ones(4, 2), torch.tensor([0, 1, 1, 1]))
        >>> [tuple(gradient.shape) for gradient in gradients]
        [(3, 2), (3,), (2, 3), (2,)]
    """

    def __init__(self, layers: Sequence[Layer], parameters: Sequence[Tensor], random: bool) -> None:
        self.layers = layers
        self.random = random
        """Whether a step draws random numbers."""
        self._parameters = parameters

    @torch.no_grad()
    def descend(self, inputs: Tensor, labels: Tensor, rate: float) -> None:
        """One step of SGD, in place."""
        # Everything behind is linear in the slope: scaling it scales every gradient.
        self._backward(*self._forward(inputs), labels, rate, Descent())

    @torch.no_grad()
    def gradients(self, inputs: Tensor, labels: Tensor) -> list[Tensor]:
        """The gradient of the batch's mean loss by each parameter."""
        sink = Collection()
        self._backward(*self._forward(inputs), labels, 1.0, sink)
        return [sink.found[id(parameter)] for parameter in self._parameters]

    def _forward(self, inputs: Tensor) -> tuple[Tensor, list[Any]]:
        value, kept = inputs, []
        for position, layer in enumerate(self.layers):
            # Nobody else reads a value between two layers, nor do the layers' own ways back.
            value, keep = layer.forward(value, fresh=position > 0)
            kept.append(keep)
        return value, kept

    def _backward(
        self, outputs: Tensor, kept: list[Any], labels: Tensor, scale: float, sink: Sink
    ) -> None:
        slope = outputs.softmax(1)
        minus_one = slope.new_full((1, 1), -1.0).expand(len(labels), 1)
        slope.scatter_add_(1, labels.unsqueeze(1), minus_one).mul_(scale / len(labels))
        lowest = next(k for k, layer in enumerate(self.layers) if hasattr(layer, "weight"))
        for k in range(len(self.layers) - 1, lowest - 1, -1):
            # Taken from the list: what one layer kept is free when the next needs memory.
            slope = self.layers[k].backward(slope, kept.pop(), sink, below=k > lowest)


MADE: dict[type[nn.Module], Callable[[Any], Layer]] = {
    nn.Linear: Dense,
    nn.Conv2d: Convolution,
    nn.MaxPool2d: Pooling,
    nn.ReLU: lambda layer: Rectifier(),
    nn.Flatten: lambda layer: Flattening(),
    nn.Dropout: Dropping,
}


def chain_of(module: nn.Module) -> Chain | None:
    """The chain that a module is, or None if it is anything else.

    Example:
        >>> chain_of(nn.LSTM(3, 4)) is None
        True
    """
    # Exact types: a subclass may do anything in its forward().
    children = list(module.children()) if type(module) is nn.Sequential else [module]
    trained = [p for p in module.parameters() if p.requires_grad]
    parametrised = [layer for layer in children if type(layer) in {nn.Linear, nn.Conv2d}]
    if (
        not children
        or not all(type(layer) in MADE and is_plain(layer) for layer in children)
        or type(children[-1]) is not nn.Linear
        # A layer that stands twice has its parameters once; and all of them are trained.
        or len(trained) != 2 * len(parametrised)
        or any(has_hooks(layer) for layer in (module, *children))
    ):
        return None
    layers = together([MADE[type(layer)](layer) for layer in children])
    own = [t for layer in layers if isinstance(layer, Dense | Convolution) for t in of(layer)]
    random = any(isinstance(layer, Dropping) and layer.share > 0 for layer in layers)
    return Chain(layers, own, random)


def together(layers: Sequence[Layer]) -> list[Layer]:
    """The layers, those as one that can be computed at once."""
    joined: list[Layer] = []
    for layer in layers:
        before = joined[-1] if joined else None
        halving = isinstance(before, Pooling) and before.geometry == HALVING
        if isinstance(layer, Rectifier) and isinstance(before, Pooling) and halving:
            joined[-1] = PooledRectifier(before)
        else:
            joined.append(layer)
    return joined


def of(layer: Dense | Convolution) -> tuple[Tensor, Tensor]:
    """A layer's parameters, in their order."""
    return layer.weight, layer.bias


def is_plain(layer: nn.Module) -> bool:
    """Whether a layer of a known type is used in a way that is written out here."""
    if isinstance(layer, nn.Conv2d):
        usual = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return usual and layer.groups == 1 and layer.bias is not None
    if isinstance(layer, nn.Linear):
        return layer.bias is not None
    if isinstance(layer, nn.MaxPool2d):
        return not layer.return_indices
    if isinstance(layer, nn.Flatten):
        return layer.start_dim == 1 and layer.end_dim == -1
    return not isinstance(layer, nn.Dropout) or layer.p < 1


def has_hooks(layer: nn.Module) -> bool:
    """Whether somebody wants to see or change what goes through."""
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks
    return any(map(bool, (*hooks, layer._backward_pre_hooks)))


def pair(size: int | tuple[int, ...]) -> list[int]:
    """A number for both directions."""
    return [size, size] if isinstance(size, int) else list(size)
