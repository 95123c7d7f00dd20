"""Losses by name: what is minimised, what labels it needs, and what is measured besides.

A custom loss is any function of a batch's outputs and labels, the mean over the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedpbc.errors import InputError
from fedpbc.options import nearest
from fedpbc.tasks.inputs import logits_of
from fedpbc.tasks.loss_names import LossName

__all__ = [
    "IGNORED",
    "LOSSES",
    "LabelKind",
    "Loss",
    "NamedLoss",
    "find_loss",
    "hits_of",
    "loss_name",
    "model_loss",
]

Loss = Callable[[Any, Tensor], Tensor]
"""A function of a batch's outputs and labels; returns the mean over the batch."""
IGNORED = -100
"""A label in a sequence that does not count, as in PyTorch."""
LabelKind = Literal["classes", "flags", "numbers", "any"]


def next_token(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of [B, T, V] outputs; labels [B, T] are the tokens that follow."""
    if outputs.shape[:-1] != labels.shape:
        raise _misfit("next_token", outputs, labels, "one more axis than labels, of all tokens")
    return functional.cross_entropy(outputs.flatten(0, -2), labels.flatten(), ignore_index=IGNORED)


def binary_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of logits, one for each label that a sample may have."""
    if outputs.shape != labels.shape:
        raise _misfit("binary_cross_entropy", outputs, labels, "the labels' shape")
    return functional.binary_cross_entropy_with_logits(outputs, labels.to(outputs.dtype))


def squared(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean squared error."""
    return functional.mse_loss(_alike("squared", outputs, labels), labels)


def absolute(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean absolute error."""
    return functional.l1_loss(_alike("absolute", outputs, labels), labels)


def huber(outputs: Tensor, labels: Tensor) -> Tensor:
    """Huber's loss: squared up to an error of 1, and absolute from there on."""
    return functional.huber_loss(_alike("huber", outputs, labels), labels)


def model_loss(outputs: Any, labels: Tensor) -> Tensor:
    """The loss that the module itself returns, as Hugging Face's models do."""
    if not isinstance(loss := getattr(outputs, "loss", None), Tensor):
        kind = type(outputs).__name__
        raise InputError(
            f"module returns a {kind} without a loss, but loss='model' needs one: "
            "it is called with labels=…"
        )
    return loss


def _alike(name: str, outputs: Tensor, labels: Tensor) -> Tensor:
    """The outputs in the labels' shape: broadcasting would compare every pair of samples."""
    if outputs.shape == (*labels.shape, 1):
        return outputs.squeeze(-1)
    if outputs.shape != labels.shape:
        raise _misfit(name, outputs, labels, "the labels' shape, or one more axis of length 1")
    return outputs


def _misfit(name: str, outputs: Tensor, labels: Tensor, expected: str) -> InputError:
    return InputError(
        f"module has outputs of shape {tuple(outputs.shape)} for labels of shape "
        f"{tuple(labels.shape)}, but the loss '{name}' needs {expected}"
    )


def mae(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean absolute error."""
    return absolute(outputs.double(), labels.double())


def rmse(outputs: Tensor, labels: Tensor) -> Tensor:
    """The root of the mean squared error."""
    return squared(outputs.double(), labels.double()).sqrt()


def subset_accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The share of samples of which every label is right."""
    return ((outputs > 0) == (labels > 0)).flatten(1).all(1).double().mean()


def macro_f1(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean over labels of F1; 0 for a label that neither occurs nor is predicted."""
    given, predicted = labels.flatten(1) > 0, outputs.flatten(1) > 0
    both = (given & predicted).sum(0).double()
    total = given.sum(0) + predicted.sum(0)
    return (2 * both / total.clamp(min=1)).mean()


@dataclass(frozen=True)
class NamedLoss:
    """A loss with a name.

    Attributes:
        function: the loss.
        labels: what labels it needs: classes, flags (0 or 1), numbers, or any.
        metrics: further values of an evaluation, by name.
    """

    function: Loss
    labels: LabelKind
    metrics: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = field(default_factory=dict)


_ERRORS = {"mae": mae, "rmse": rmse}
LOSSES: dict[LossName, NamedLoss] = {
    "cross_entropy": NamedLoss(functional.cross_entropy, "classes"),
    "next_token": NamedLoss(next_token, "classes"),
    "binary_cross_entropy": NamedLoss(
        binary_cross_entropy, "flags", {"subset_accuracy": subset_accuracy, "macro_f1": macro_f1}
    ),
    "squared": NamedLoss(squared, "numbers", _ERRORS),
    "absolute": NamedLoss(absolute, "numbers", _ERRORS),
    "huber": NamedLoss(huber, "numbers", _ERRORS),
    "model": NamedLoss(model_loss, "any"),
}


def find_loss(loss: Loss | str) -> NamedLoss:
    """A loss by name; a function of the user's own takes any labels.

    Example:
        >>> find_loss("squared").labels
        'numbers'
    """
    if isinstance(loss, str):
        for name, named in LOSSES.items():
            if name == loss:
                return named
        raise InputError("loss", loss, nearest(loss, LOSSES))
    if not callable(loss):
        raise InputError("loss", loss, "a function of outputs and labels, or the name of one")
    for named in LOSSES.values():
        if named.function is loss:
            return named
    return NamedLoss(loss, "any")


def loss_name(loss: Loss) -> str:
    """How messages call a loss."""
    return str(getattr(loss, "__name__", type(loss).__name__))


def hits_of(loss: Loss, outputs: Any, labels: Tensor) -> Tensor | None:
    """What is right, one row per sample; None where there are no classes to be right about."""
    logits = logits_of(outputs)
    if not isinstance(logits, Tensor):
        return None
    if loss is binary_cross_entropy:
        return (logits > 0) == (labels > 0)
    if labels.is_floating_point() or logits.dim() != labels.dim() + 1:
        return None
    if loss is model_loss and labels.dim() > 1:
        return None  # Whether it shifts the labels is the model's own business.
    correct = logits.argmax(dim=-1 if loss is next_token else 1) == labels
    counts = labels != IGNORED
    if bool(counts.all()):
        return correct
    shares = (correct & counts).flatten(1).sum(1) / counts.flatten(1).sum(1).clamp(min=1)
    return shares.to(torch.float32)
