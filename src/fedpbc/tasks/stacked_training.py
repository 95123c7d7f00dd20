"""Local steps of many clients at once, with all their models in one tensor.

For dense networks with ReLU and cross-entropy loss. The steps are hand-written batched matrix
products: two to three times as fast as ``torch.func``, since gradients update the weights without
being stored. All matrices have the same alignment, so that a client's bits do not depend on the
other clients; ``torch.func`` on general modules cannot guarantee that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpbc.parallel import usable_cores
from fedpbc.tasks.local_training import LocalTraining
from fedpbc.tasks.losses import Loss
from fedpbc.tasks.parameter_layout import Layout

__all__ = ["StackAdvice", "advise", "on_all_cores", "stacked_steps"]

LARGE = 500_000
"""Above this many parameters, a single model's matrix products are efficient by themselves."""


@dataclass(frozen=True)
class StackAdvice:
    """Whether clients' models can be stacked, whether it pays, and why."""

    possible: bool
    worthwhile: bool
    why: str


def advise(module: nn.Module, loss: Loss) -> StackAdvice:
    """Return whether stacking this module is possible and worthwhile."""
    if loss is not functional.cross_entropy:
        return StackAdvice(False, False, "the loss is not cross-entropy")
    if not is_dense_network(module):
        why = "the model is not a plain sequence of dense layers and ReLU"
        return StackAdvice(False, False, why)
    count = sum(p.numel() for p in module.parameters())
    if count > LARGE:
        return StackAdvice(True, False, f"{count:,} parameters are too many to stack")
    return StackAdvice(True, True, f"a small dense model, {count:,} parameters")


def stacked_steps(
    training: LocalTraining,
    layout: Layout,
    models: Tensor,
    batches: Iterable[tuple[Tensor, Tensor]],
    rates: Tensor,
    correction: Tensor | None,
    min_rows: int = 2,
) -> None:
    """Make one step per batch [n, B, …] of dense layers with ReLU, in place on ``models`` [n, d].

    Smaller stacks are padded to ``min_rows``. The kernel of a batched product may depend on the
    number of matrices: on a CPU for 1, on a GPU for any number.
    """
    missing = min_rows - len(models)
    if missing > 0:
        padded = pad_rows(models, missing)
        padded_batches = ((pad_rows(x, missing), pad_rows(y, missing)) for x, y in batches)
        padded_correction = None if correction is None else pad_rows(correction, missing)
        padded_rates = pad_rows(rates, missing)
        stacked_steps(training, layout, padded, padded_batches, padded_rates, padded_correction)
        models.copy_(padded[: len(models)])
        return
    targets = layout.parts(models)
    parts = [aligned_zeros(part).copy_(part) for part in targets]
    if training.is_plain and correction is None:
        for inputs, labels in batches:
            sgd_step(parts, *pad_batch(inputs, labels), rates)
    else:
        corrections = [] if correction is None else layout.parts(correction)
        step = training.begin(parts, rates, corrections)
        for inputs, labels in batches:
            step(gradients(parts, *pad_batch(inputs, labels)))
    for target, part in zip(targets, parts, strict=True):
        target.copy_(part)


def pad_rows(rows: Tensor, missing: int) -> Tensor:
    """Append the first row ``missing`` times."""
    return torch.cat([rows, rows[:1].expand(missing, *rows.shape[1:])])


def on_all_cores(work: Callable[[slice], None], count: int, max_rows: int) -> None:
    """Call work on slices of ``count`` rows, at most ``max_rows`` (at least two) each, in threads.

    PyTorch uses one thread in each of them: a row's bits depend on neither cores nor neighbours.
    """
    cores, pieces = usable_cores(), max(1, -(-count // max(max_rows, 2)))
    # A multiple of the cores, so that no core waits for the last piece.
    pieces = min(-(-pieces // cores) * cores, max(1, count // 2))
    size = -(-count // pieces)
    slices = [slice(k, min(k + size, count)) for k in range(0, count, size)]
    in_threads = cores > 1 and len(slices) > 1
    for _ in threads(cores).map(work, slices) if in_threads else map(work, slices):
        continue


@lru_cache(maxsize=1)
def threads(count: int) -> ThreadPoolExecutor:
    """Return a cached pool of threads in each of which PyTorch uses one thread."""
    return ThreadPoolExecutor(count, "fedpbc-stack", torch.set_num_threads, (1,))


ALIGNMENT = 16
"""Floats per cache line. A matrix product's bits depend on its operands' alignment."""


def aligned_zeros(like: Tensor) -> Tensor:
    """Return zeros in which every client's matrix begins at a cache line."""
    size = like[0].numel()
    padded = like.new_zeros(len(like), -(-size // ALIGNMENT) * ALIGNMENT)
    return padded[:, :size].view(like.shape)


def pad_batch(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, int]:
    """Pad a batch with samples of weight 0, so that its matrices are aligned; return its size."""
    size = labels.shape[1]
    missing = -size % ALIGNMENT
    inputs = functional.pad(inputs.flatten(2), (0, 0, 0, missing)) if missing else inputs.flatten(2)
    return inputs, functional.pad(labels, (0, missing)) if missing else labels, size


def forward(parts: Sequence[Tensor], inputs: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the input of each layer, and the last layer's output."""
    value = inputs
    layer_inputs = []
    for k in range(0, len(parts), 2):
        if k:
            value = value.relu_()
        layer_inputs.append(value)
        value = torch.baddbmm(parts[k + 1].unsqueeze(1), value, parts[k].transpose(1, 2))
    return layer_inputs, value


def output_gradient(logits: Tensor, labels: Tensor, size: int) -> Tensor:
    """Return the gradient of the first ``size`` samples' mean cross-entropy by the logits."""
    grad = logits.softmax(2)
    minus_one = grad.new_full((1,), -1.0).expand(*labels.shape, 1)
    grad.scatter_add_(2, labels.unsqueeze(2), minus_one).div_(size)
    grad[:, size:] = 0
    return grad


def sgd_step(
    parts: Sequence[Tensor], inputs: Tensor, labels: Tensor, size: int, rates: Tensor
) -> None:
    """Make one step of plain SGD in place."""
    layer_inputs, logits = forward(parts, inputs)
    # The backward pass is linear: scaling the output's gradient scales every gradient.
    grad = output_gradient(logits, labels, size).mul_(rates.view(-1, 1, 1))
    for k in range(len(parts) - 2, -1, -2):
        weight, bias, value = parts[k], parts[k + 1], layer_inputs[k // 2]
        input_grad = torch.bmm(grad, weight).mul_(value > 0) if k else grad
        weight.baddbmm_(grad.transpose(1, 2), value, alpha=-1)
        bias.sub_(grad.sum(1))
        grad = input_grad


def gradients(parts: Sequence[Tensor], inputs: Tensor, labels: Tensor, size: int) -> list[Tensor]:
    """Return the gradient by each of the parameters."""
    layer_inputs, logits = forward(parts, inputs)
    grad = output_gradient(logits, labels, size)
    collected: list[Tensor] = []
    for k in range(len(parts) - 2, -1, -2):
        weight_grad = aligned_zeros(parts[k]).baddbmm_(grad.transpose(1, 2), layer_inputs[k // 2])
        collected = [weight_grad, grad.sum(1), *collected]
        if k:
            grad = torch.bmm(grad, parts[k]).mul_(layer_inputs[k // 2] > 0)
    return collected


def is_dense_network(module: nn.Module) -> bool:
    """Return whether a module is dense layers with ReLU in between, and nothing else."""
    # Exact types: a subclass may do anything in its forward().
    children = list(module.children()) if type(module) is nn.Sequential else [module]
    if type(children[0]) is nn.Flatten and children[0].start_dim == 1:
        children = children[1:]
    linear, between = children[::2], children[1::2]
    return (
        len(linear) == len(between) + 1
        and all(type(layer) is nn.Linear and layer.bias is not None for layer in linear)
        and all(type(layer) is nn.ReLU for layer in between)
        and all(p.requires_grad for p in module.parameters())
        # No layer is used twice, which would share parameters.
        and len(list(module.parameters())) == 2 * len(linear)
        and all(not layer._forward_hooks and not layer._forward_pre_hooks for layer in children)
    )
