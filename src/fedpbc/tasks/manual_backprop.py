"""Hand-written SGD step and outputs of plain sequential networks with cross-entropy loss.

For the paper's networks: convolutions, max-pooling, ReLU, dropout and dense layers. The operators
are those that autograd calls, or compiled functions with the same bits, but each gradient updates
its parameter at once: large gradients are never stored and no graph is recorded. Other modules use
autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedpbc.tasks.convolution_kernel import (
    can_convolve,
    can_convolve_backward,
    convolve_relu_pool,
    convolve_relu_pool_backward,
    has_convolution,
)
from fedpbc.tasks.linear_kernel import linear, linear_block, linear_step, linear_step_block
from fedpbc.tasks.pooling_kernel import (
    can_relu_pool,
    has_relu_pool,
    relu_pool,
    relu_pool_backward,
)

__all__ = ["ManualBackprop", "manual_backprop"]

aten = torch.ops.aten


class GradientSink:
    """Subtracts each gradient from its parameter at once, or collects it for other optimizers."""

    def __init__(self, collect: bool) -> None:
        self.collect = collect
        self.gradients: dict[int, Tensor] = {}

    def add(self, parameter: Tensor, gradient: Tensor) -> None:
        if self.collect:
            self.gradients[id(parameter)] = gradient
        else:
            parameter.sub_(gradient)

    def add_product(self, parameter: Tensor, left: Tensor, right: Tensor) -> None:
        """Receive the gradient leftᵀ·right."""
        if self.collect:
            self.gradients[id(parameter)] = left.t() @ right
        else:
            parameter.addmm_(left.t(), right, alpha=-1)


class Layer(Protocol):
    """The forward and backward pass of one layer."""

    def forward(self, value: Tensor, in_place: bool) -> tuple[Tensor, Any]:
        """Return the output and what the backward pass needs."""

    def backward(self, grad: Tensor, saved: Any, sink: GradientSink, need_input: bool) -> Tensor:
        """Return the input's gradient if needed; the parameters' gradients go to the sink."""


class LinearLayer:
    """nn.Linear."""

    def __init__(self, layer: nn.Linear) -> None:
        self.weight, self.bias = layer.weight.detach(), layer.bias.detach()

    def forward(self, value: Tensor, in_place: bool) -> tuple[Tensor, Tensor]:
        if block := linear_block(value, self.weight):
            return linear(value, self.weight, self.bias, block), value
        return torch.addmm(self.bias, value, self.weight.t()), value

    def backward(self, grad: Tensor, saved: Tensor, sink: GradientSink, need_input: bool) -> Tensor:
        sink.add(self.bias, grad.sum(0))
        block = 0 if sink.collect else linear_step_block(saved, self.weight, need_input)
        if block:
            below = linear_step(grad, saved, self.weight, block, need_input)
            return grad if below is None else below
        # Before the sink may update the weight.
        input_grad = grad @ self.weight if need_input else grad
        sink.add_product(self.weight, grad, saved)
        return input_grad


class ConvLayer:
    """nn.Conv2d."""

    def __init__(self, layer: nn.Conv2d) -> None:
        assert layer.bias is not None
        assert not isinstance(layer.padding, str)
        self.weight, self.bias = layer.weight.detach(), layer.bias.detach()
        self.geometry = layer.stride, layer.padding, layer.dilation

    def forward(self, value: Tensor, in_place: bool) -> tuple[Tensor, Tensor]:
        return torch.conv2d(value, self.weight, self.bias, *self.geometry), value

    def backward(self, grad: Tensor, saved: Tensor, sink: GradientSink, need_input: bool) -> Tensor:
        output_mask = [need_input, True, False]
        input_grad, weight_grad, _ = aten.convolution_backward(
            grad, saved, self.weight, None, *self.geometry, False, [0, 0], 1, output_mask
        )
        sink.add(self.weight, weight_grad)
        # Separately: the bias gradient of convolution_backward takes several times as long.
        sink.add(self.bias, grad.sum((0, 2, 3)))
        return input_grad if need_input else grad


class MaxPoolLayer:
    """nn.MaxPool2d; as in PyTorch, the first of equal values gets the gradient."""

    def __init__(self, layer: nn.MaxPool2d) -> None:
        sizes = layer.kernel_size, layer.stride, layer.padding, layer.dilation
        pairs = ([n, n] if isinstance(n, int) else list(n) for n in sizes)
        self.geometry = *pairs, layer.ceil_mode

    def forward(self, value: Tensor, in_place: bool) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        pooled, indices = aten.max_pool2d_with_indices(value, *self.geometry)
        return pooled, (value, indices)

    def backward(
        self, grad: Tensor, saved: tuple[Tensor, Tensor], sink: GradientSink, need_input: bool
    ) -> Tensor:
        value, indices = saved
        input_grad: Tensor = aten.max_pool2d_with_indices_backward(
            grad, value, *self.geometry, indices
        )
        return input_grad


class ReluLayer:
    """nn.ReLU."""

    def forward(self, value: Tensor, in_place: bool) -> tuple[Tensor, Tensor]:
        value = value.relu_() if in_place else value.relu()
        return value, value

    def backward(self, grad: Tensor, saved: Tensor, sink: GradientSink, need_input: bool) -> Tensor:
        input_grad: Tensor = aten.threshold_backward(grad, saved, 0)
        return input_grad


class ReluPoolLayer:
    """nn.ReLU and 2×2 max-pooling, which commute, in one pass where the kernel takes the images."""

    def __init__(self, pool: Any) -> None:
        self.pool, self.relu = MaxPoolLayer(pool), ReluLayer()

    def forward(self, value: Tensor, in_place: bool) -> tuple[Tensor, Any]:
        if can_relu_pool(value):
            return relu_pool(value)
        pooled, saved = self.pool.forward(value, in_place)
        active, _ = self.relu.forward(pooled, in_place=True)
        return active, (saved, active)

    def backward(self, grad: Tensor, saved: Any, sink: GradientSink, need_input: bool) -> Tensor:
        if isinstance(saved, Tensor):
            return relu_pool_backward(grad, saved)
        pool_saved, active = saved
        grad = self.relu.backward(grad, active, sink, need_input)
        return self.pool.backward(grad, pool_saved, sink, need_input)


class ConvReluPoolLayer(ConvLayer):
    """nn.Conv2d, nn.ReLU and 2×2 max-pooling, in one pass where the kernel has PyTorch's bits."""

    def __init__(self, layer: nn.Conv2d, pool: Any) -> None:
        super().__init__(layer)
        self.relu_pool = ReluPoolLayer(pool)

    def forward(self, value: Tensor, in_place: bool) -> tuple[Tensor, Any]:
        if can_convolve(value, self.weight):
            pooled, winner = convolve_relu_pool(value, self.weight, self.bias)
            return pooled, (value, winner)
        output, _ = super().forward(value, in_place)
        pooled, saved = self.relu_pool.forward(output, in_place=True)
        return pooled, (value, saved)

    def backward(self, grad: Tensor, saved: Any, sink: GradientSink, need_input: bool) -> Tensor:
        value, winner = saved
        # Without a kernel for the pooling either, PyTorch's operators saved something else.
        has_winner = isinstance(winner, Tensor)
        if not has_winner or not can_convolve_backward(value, self.weight, need_input):
            grad = self.relu_pool.backward(grad, winner, sink, need_input)
            return super().backward(grad, value, sink, need_input)
        input_grad, weight_grad, bias_grad = convolve_relu_pool_backward(
            grad, winner, value, self.weight, need_input
        )
        sink.add(self.weight, weight_grad)
        sink.add(self.bias, bias_grad)
        return grad if input_grad is None else input_grad


class FlattenLayer:
    """nn.Flatten from the second dimension on."""

    def forward(self, value: Tensor, in_place: bool) -> tuple[Tensor, Tensor]:
        return value.flatten(1), value

    def backward(self, grad: Tensor, saved: Tensor, sink: GradientSink, need_input: bool) -> Tensor:
        grad = grad.view(saved.shape)
        if saved.dim() == 4 and saved.is_contiguous(memory_format=torch.channels_last):
            grad = grad.contiguous(memory_format=torch.channels_last)
        return grad


class DropoutLayer:
    """nn.Dropout; draws from PyTorch's global generator, as nn.Dropout does."""

    def __init__(self, layer: nn.Dropout) -> None:
        self.p = layer.p

    def forward(self, value: Tensor, in_place: bool) -> tuple[Tensor, Tensor]:
        output, mask = torch.native_dropout(value, self.p, True)
        return output, mask

    def backward(self, grad: Tensor, saved: Tensor, sink: GradientSink, need_input: bool) -> Tensor:
        input_grad: Tensor = aten.native_dropout_backward(grad, saved, 1 / (1 - self.p))
        return input_grad


class ManualBackprop:
    """SGD steps and gradients of a sequential network with cross-entropy loss.

    Works on the module's own parameters, in place.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.is_random = any(isinstance(layer, DropoutLayer) and layer.p > 0 for layer in layers)
        """Whether a step draws random numbers."""
        self._parameters = [
            parameter
            for layer in layers
            if isinstance(layer, LinearLayer | ConvLayer)
            for parameter in (layer.weight, layer.bias)
        ]

    @torch.no_grad()
    def sgd_step(self, inputs: Tensor, labels: Tensor, rate: float) -> None:
        """Make one step of plain SGD in place."""
        # The backward pass is linear: scaling the output's gradient scales every gradient.
        self._backward(*self._forward(inputs), labels, rate, GradientSink(collect=False))

    @property
    def has_fused_pooling(self) -> bool:
        """Whether its outputs take less time than the module's own."""
        return any(isinstance(layer, ReluPoolLayer | ConvReluPoolLayer) for layer in self.layers)

    @torch.no_grad()
    def outputs(self, inputs: Tensor) -> Tensor:
        """Return what the module returns in evaluation mode, to the bit."""
        value = inputs
        for position, layer in enumerate(self.layers):
            if not isinstance(layer, DropoutLayer):
                value, _ = layer.forward(value, in_place=position > 0)
        return value

    @torch.no_grad()
    def gradients(self, inputs: Tensor, labels: Tensor) -> list[Tensor]:
        """Return the gradient of the batch's mean loss by each parameter."""
        sink = GradientSink(collect=True)
        self._backward(*self._forward(inputs), labels, 1.0, sink)
        return [sink.gradients[id(parameter)] for parameter in self._parameters]

    def _forward(self, inputs: Tensor) -> tuple[Tensor, list[Any]]:
        value, saved = inputs, []
        for position, layer in enumerate(self.layers):
            # No layer's backward pass reads its own output before an in-place ReLU.
            value, layer_saved = layer.forward(value, in_place=position > 0)
            saved.append(layer_saved)
        return value, saved

    def _backward(
        self, outputs: Tensor, saved: list[Any], labels: Tensor, scale: float, sink: GradientSink
    ) -> None:
        grad = outputs.softmax(1)
        minus_one = grad.new_full((1, 1), -1.0).expand(len(labels), 1)
        grad.scatter_add_(1, labels.unsqueeze(1), minus_one).mul_(scale / len(labels))
        lowest = next(k for k, layer in enumerate(self.layers) if hasattr(layer, "weight"))
        for k in range(len(self.layers) - 1, lowest - 1, -1):
            # pop() frees a layer's saved tensors before the next layer allocates memory.
            grad = self.layers[k].backward(grad, saved.pop(), sink, need_input=k > lowest)


LAYERS: dict[type[nn.Module], Callable[[Any], Layer]] = {
    nn.Linear: LinearLayer,
    nn.Conv2d: ConvLayer,
    nn.MaxPool2d: MaxPoolLayer,
    nn.ReLU: lambda layer: ReluLayer(),
    nn.Flatten: lambda layer: FlattenLayer(),
    nn.Dropout: DropoutLayer,
}


def manual_backprop(module: nn.Module) -> ManualBackprop | None:
    """Return the hand-written pass for a plain sequential network; None for other modules."""
    # Exact types: a subclass may do anything in its forward().
    children = list(module.children()) if type(module) is nn.Sequential else [module]
    trained = [p for p in module.parameters() if p.requires_grad]
    parametrised = [layer for layer in children if type(layer) in {nn.Linear, nn.Conv2d}]
    if (
        not children
        or not all(type(layer) in LAYERS and is_supported(layer) for layer in children)
        or type(children[-1]) is not nn.Linear
        # Every parameter is trained, and no layer is used twice, which would share parameters.
        or len(trained) != 2 * len(parametrised)
        or any(has_hooks(layer) for layer in (module, *children))
    ):
        return None
    return ManualBackprop(list(passes(children)))


def passes(children: Sequence[nn.Module]) -> Iterator[Layer]:
    """Yield the passes of the layers; ReLU and a 2×2 pooling side by side have one together.

    So has a convolution of 3×3 before them.
    """
    remaining = list(children)
    while remaining:
        if (pool := pool_beside_relu(remaining[:2])) is not None:
            yield ReluPoolLayer(pool)
            remaining = remaining[2:]
            continue
        layer, *remaining = remaining
        pool = pool_beside_relu(remaining[:2])
        if pool is not None and isinstance(layer, nn.Conv2d) and keeps_size(layer):
            yield ConvReluPoolLayer(layer, pool)
            remaining = remaining[2:]
        else:
            yield LAYERS[type(layer)](layer)


def pool_beside_relu(pair: Sequence[nn.Module]) -> nn.Module | None:
    """Return the pooling of 2×2 of two layers, if the other one is a ReLU."""
    pools = [layer for layer in pair if halves(layer)]
    kinds = {type(layer) for layer in pair}
    return pools[0] if len(pools) == 1 and kinds == {nn.ReLU, nn.MaxPool2d} else None


def keeps_size(layer: nn.Conv2d) -> bool:
    """Return whether a convolution is of 3×3 with a border of one, and there is a kernel for it."""
    geometry = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    return geometry == ((3, 3), (1, 1), (1, 1), (1, 1)) and has_convolution()


def halves(layer: nn.Module) -> bool:
    """Return whether a layer pools windows of 2×2 side by side, and there is a kernel for that."""
    if not isinstance(layer, nn.MaxPool2d) or not has_relu_pool():
        return False
    sizes = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    pairs = [(n, n) if isinstance(n, int) else tuple(n) for n in sizes]
    return pairs == [(2, 2), (2, 2), (0, 0), (1, 1)] and not layer.ceil_mode


def is_supported(layer: nn.Module) -> bool:
    """Return whether a layer of a supported type has supported options."""
    if isinstance(layer, nn.Conv2d):
        zeros = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return zeros and layer.groups == 1 and layer.bias is not None
    if isinstance(layer, nn.Linear):
        return layer.bias is not None
    if isinstance(layer, nn.MaxPool2d):
        return not layer.return_indices
    if isinstance(layer, nn.Flatten):
        return layer.start_dim == 1 and layer.end_dim == -1
    return not isinstance(layer, nn.Dropout) or layer.p < 1


def has_hooks(layer: nn.Module) -> bool:
    """Return whether hooks observe or change the forward or backward pass."""
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks
    return any(map(bool, (*hooks, layer._backward_pre_hooks)))
