"""Local steps of many clients at once: all their models as one tensor.

``torch.func`` does it for any module that is a plain function of its parameters. For dense networks
with ReLU the same steps are written out as batched matrix products, which is a good deal faster,
since gradients go into the weights without being stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedpbc.models.flat import Layout
from fedpbc.tasks.local import LocalTraining

__all__ = ["DenseStack", "FunctionalStack", "Stack", "StackAdvice", "advise", "make_stack"]

Loss = Callable[[Tensor, Tensor], Tensor]
Batch = tuple[Tensor, Tensor]

RANDOM_LAYERS = (nn.modules.dropout._DropoutNd, nn.RReLU)
LARGE = 500_000
"""Above this many parameters a model's own matrix products are large enough to be efficient."""


@dataclass(frozen=True)
class StackAdvice:
    """Whether clients' models can be stacked, whether it pays, and why.

    Example:
        >>> advise(nn.Linear(3, 2)).worthwhile
        True
    """

    possible: bool
    worthwhile: bool
    why: str


def advise(module: nn.Module) -> StackAdvice:
    """What to expect of stacking this module."""
    if any(isinstance(layer, RANDOM_LAYERS) for layer in module.modules()):
        return StackAdvice(False, False, "the model draws random numbers (dropout)")
    count = sum(p.numel() for p in module.parameters())
    holders = [layer for layer in module.modules() if list(layer.parameters(recurse=False))]
    if not all(isinstance(layer, nn.Linear) for layer in holders):
        return StackAdvice(True, False, "the model is not purely dense")
    if count > LARGE:
        return StackAdvice(True, False, f"{count:,} parameters are too many to stack")
    return StackAdvice(True, True, f"a small dense model, {count:,} parameters")


class Stack(Protocol):
    """How one round of local steps is made for a stack of models."""

    def local_steps(
        self, models: Tensor, batches: Iterable[Batch], rates: Tensor, correction: Tensor | None
    ) -> None:
        """The steps on ``batches``, each [n, B, …], in place on ``models`` [n, d]."""


def make_stack(module: nn.Module, layout: Layout, loss: Loss, training: LocalTraining) -> Stack:
    """The fastest stack that can do it."""
    layers = dense_layers(module)
    if layers and loss is functional.cross_entropy:
        return DenseStack(layout, training)
    return FunctionalStack(module, layout, loss, training)


class FunctionalStack:
    """Any module that is a function of its parameters, with ``torch.func``.

    Example:
        >>> from fedpbc.models import layout_of
        >>> module = nn.Linear(3, 2)
        >>> layout = layout_of(module)
        >>> stack = FunctionalStack(module, layout, functional.mse_loss, LocalTraining())
        >>> models = torch.zeros(4, 8)
        >>> batch = torch.ones(4, 5, 3), torch.ones(4, 5, 2)
        >>> stack.local_steps(models, [batch], torch.full((4,), 0.1), None)
        >>> bool((models > 0).all())
        True
    """

    def __init__(
        self, module: nn.Module, layout: Layout, loss: Loss, training: LocalTraining
    ) -> None:
        self.layout, self.training = layout, training

        def of_one(parameters: tuple[Tensor, ...], inputs: Tensor, labels: Tensor) -> Tensor:
            named = dict(zip(layout.names, parameters, strict=True))
            return loss(functional_call(module, named, (inputs,)), labels)

        self.gradients = vmap(grad(of_one))

    def local_steps(
        self, models: Tensor, batches: Iterable[Batch], rates: Tensor, correction: Tensor | None
    ) -> None:
        """One gradient of every client at once for each batch."""
        parts = self.layout.parts(models)
        terms = [] if correction is None else self.layout.parts(correction)
        step = self.training.begin(parts, rates, terms)
        for inputs, labels in batches:
            step(self.gradients(tuple(parts), inputs, labels))


class DenseStack:
    """Dense layers with ReLU between them and cross-entropy, as batched matrix products.

    Example:
        >>> from fedpbc.models import layout_of
        >>> layout = layout_of(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
        >>> stack = DenseStack(layout, LocalTraining())
        >>> models = torch.zeros(5, layout.dimension)
        >>> batch = torch.ones(5, 7, 3), torch.ones(5, 7, dtype=torch.long)
        >>> stack.local_steps(models, [batch], torch.full((5,), 0.1), None)
        >>> models[0, -2:]
        tensor([-0.0500,  0.0500])
    """

    def __init__(self, layout: Layout, training: LocalTraining) -> None:
        self.layout, self.training = layout, training

    def local_steps(
        self, models: Tensor, batches: Iterable[Batch], rates: Tensor, correction: Tensor | None
    ) -> None:
        """Forward and backward by hand; plain SGD adds each gradient to its weight at once."""
        # Matrix products on separate tensors are half as fast again as on slices of one.
        parts = [part.contiguous() for part in self.layout.parts(models)]
        plain = self.training.optimizer == "sgd" and not self.training.proximal
        if plain and correction is None:
            for inputs, labels in batches:
                descend(parts, inputs, labels, rates)
        else:
            terms = [] if correction is None else self.layout.parts(correction)
            step = self.training.begin(parts, rates, terms)
            for inputs, labels in batches:
                step(gradients(parts, inputs, labels))
        for own, part in zip(self.layout.parts(models), parts, strict=True):
            own.copy_(part)


def forward(parts: Sequence[Tensor], inputs: Tensor) -> tuple[list[Tensor], Tensor]:
    """What goes into each layer, and the last layer's output."""
    value = inputs.flatten(2)
    into = []
    for k in range(0, len(parts), 2):
        if k:
            value = value.relu_()
        into.append(value)
        value = torch.baddbmm(parts[k + 1].unsqueeze(1), value, parts[k].transpose(1, 2))
    return into, value


def output_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    """The gradient of the mean cross-entropy by the logits."""
    slope = logits.softmax(2)
    minus_one = slope.new_full((1,), -1.0).expand(*labels.shape, 1)
    return slope.scatter_add_(2, labels.unsqueeze(2), minus_one).div_(labels.shape[1])


def descend(parts: Sequence[Tensor], inputs: Tensor, labels: Tensor, rates: Tensor) -> None:
    """One step of SGD in place."""
    into, logits = forward(parts, inputs)
    # Everything behind is linear in this slope: scaling it here scales every gradient.
    slope = output_gradient(logits, labels).mul_(rates.view(-1, 1, 1))
    for k in range(len(parts) - 2, -1, -2):
        weight, bias, value = parts[k], parts[k + 1], into[k // 2]
        below = torch.bmm(slope, weight).mul_(value > 0) if k else slope
        weight.baddbmm_(slope.transpose(1, 2), value, alpha=-1)
        bias.sub_(slope.sum(1))
        slope = below


def gradients(parts: Sequence[Tensor], inputs: Tensor, labels: Tensor) -> list[Tensor]:
    """The gradient by each of the parameters."""
    into, logits = forward(parts, inputs)
    slope = output_gradient(logits, labels)
    found: list[Tensor] = []
    for k in range(len(parts) - 2, -1, -2):
        found = [torch.bmm(slope.transpose(1, 2), into[k // 2]), slope.sum(1), *found]
        if k:
            slope = torch.bmm(slope, parts[k]).mul_(into[k // 2] > 0)
    return found


def dense_layers(module: nn.Module) -> list[nn.Linear]:
    """The layers of a plain dense network with ReLU between them; empty for anything else."""
    if isinstance(module, nn.Linear):
        children: list[nn.Module] = [module]
    elif isinstance(module, nn.Sequential):
        children = list(module)
    else:
        return []
    if children and type(children[0]) is nn.Flatten and children[0].start_dim == 1:
        children = children[1:]
    linear, between = children[::2], children[1::2]
    fits = (
        len(linear) == len(between) + 1
        and all(type(layer) is nn.Linear and layer.bias is not None for layer in linear)
        and all(type(layer) is nn.ReLU for layer in between)
        and all(p.requires_grad for p in module.parameters())
    )
    return [layer for layer in linear if isinstance(layer, nn.Linear)] if fits else []
