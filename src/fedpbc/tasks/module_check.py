"""Whether a module, its data, its loss and its metrics fit together: found out before training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpbc.errors import InputError, one_line
from fedpbc.tasks.client_data import ClientData
from fedpbc.tasks.inputs import Forward, Inputs, logits_of, tensors_in
from fedpbc.tasks.losses import Loss, find_loss, loss_name, model_loss
from fedpbc.tasks.user_metrics import Metric, check_metric_names, metric_values, outputs_of

__all__ = [
    "check_metrics",
    "check_module",
    "check_training_batch",
    "fit_precision",
    "refuse_one_hot",
]


def fit_precision(module: nn.Module, forward: Forward, data: ClientData, loss: Loss) -> None:
    """Convert inputs and labels to the module's precision where it takes no other.

    NumPy's default is double precision, PyTorch's is single. What a module or a loss takes as it
    is stays as it is.
    """
    parameters = [p for p in module.parameters() if p.is_floating_point()]
    dtypes = {p.dtype for p in parameters}
    if len(dtypes) != 1:
        return
    [dtype], device = dtypes, parameters[0].device

    def outputs() -> Tensor:
        module.eval()
        with torch.no_grad():
            for inputs in (data.inputs, data.test_inputs):
                logits = logits_of(forward(data.prepare(inputs[:2]).to(device)))
        assert isinstance(logits, Tensor)
        return logits

    groups = [tensors_in(inputs) for inputs in (data.inputs, data.test_inputs)]
    # One input must be a number to be converted; of several, those that are.
    floating = [[x.dtype for x in group if x.is_floating_point()] for group in groups]
    if all(floating) and {each for group in floating for each in group} != {dtype}:
        try:
            outputs()
        except Exception:  # A module may raise anything; if it is not this, it is said later.
            data.convert_inputs(dtype)
    if not data.has_classes and loss is not functional.cross_entropy:
        try:
            logits = outputs().detach().requires_grad_()
            labels = data.labels[:2].to(device)
            if labels.dtype != logits.dtype:
                torch.autograd.grad(loss(logits, labels), logits)
        except Exception:
            data.convert_labels(dtype)


def check_module(module: nn.Module, forward: Forward, data: ClientData, loss: Loss) -> None:
    """Raise InputError if the module does not accept the inputs or has too few outputs."""
    module.eval()
    for name, inputs in (("test inputs", data.test_inputs), ("inputs", data.inputs)):
        try:
            with torch.no_grad():
                outputs = logits_of(forward(data.prepare(inputs[:2])))
                if rows := _extremes(inputs):
                    # A token that an Embedding does not have may be anywhere.
                    forward(data.prepare(inputs[rows]))
        except Exception as error:
            expected = f"one that takes {name} of shape {_shape(inputs)}"
            if isinstance(inputs, Tensor) and not inputs.is_floating_point():
                kind = str(inputs.dtype).removeprefix("torch.")
                expected += f" and type {kind}; layers other than Embedding need floats"
            reason = f"{expected} ({one_line(error)})"
            raise InputError("module", type(module).__name__, reason) from error
    named = find_loss(loss)
    if not isinstance(outputs, Tensor) and (named.labels != "any" or loss is model_loss):
        raise InputError(
            f"module returns a {type(outputs).__name__}, but should return a tensor, or an object "
            "with logits"
        )
    classes = data.classes if named.labels == "classes" else 0
    axis = 1 if loss is functional.cross_entropy else -1
    if classes and (outputs.dim() < 2 or outputs.shape[axis] < classes):
        raise InputError(
            f"module has outputs of shape {tuple(outputs.shape)}, "
            f"but should have one output for each of {classes} classes"
        )
    if loss is not functional.cross_entropy:
        _check_loss(forward, data, loss)
    elif outputs.dim() != data.labels.dim() + 1:
        refuse_one_hot(data.labels)
        raise InputError(
            f"labels of a sample have shape {tuple(data.labels.shape[1:])} for outputs of shape "
            f"{tuple(outputs.shape[1:])}, but cross-entropy needs one class number for each row "
            "of outputs"
        )


def refuse_one_hot(labels: Tensor) -> None:
    """Raise InputError if labels are rows with a single 1 in place of class numbers."""
    if labels.dim() == 2 and labels.shape[1] > 1:
        is_one = labels == 1
        if bool((is_one | (labels == 0)).all()) and bool((is_one.sum(1) == 1).all()):
            raise InputError("one-hot labels; give class numbers: labels.argmax(dim=1)")


def _extremes(inputs: Inputs) -> list[int]:
    """The samples with the smallest and the largest tokens, with another one for each."""
    rows: set[int] = set()
    for tensor in tensors_in(inputs):
        if tensor.dtype in (torch.int32, torch.int64) and tensor.numel():
            size = tensor[0].numel()
            rows |= {int(tensor.argmin()) // size, int(tensor.argmax()) // size}
    # Some layers take no single sample.
    return sorted(rows | {0, min(1, len(inputs) - 1)}) if rows else []


def _shape(inputs: Inputs) -> str:
    """The shape of one sample's inputs."""
    return f"{tuple(inputs.shape[1:])}" if isinstance(inputs, Tensor) else inputs.shapes


def check_training_batch(module: nn.Module, forward: Forward, data: ClientData) -> None:
    """Raise InputError if the smallest client's batches are too small for running statistics."""
    client = int(np.minimum(data.batches.sizes, data.batches.batch_size).argmin())
    size = data.batches.size(client)
    before = [buffer.clone() for buffer in module.buffers()]
    module.train()
    try:
        # Dropout draws from the generator of whoever made the task.
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            forward(data.take(data.parts[client][:size], client, 0)[0])
    except ValueError as error:
        raise InputError(
            f"client {client} trains on batches of {size}: {one_line(error)}; use "
            "GroupNorm, or more samples"
        ) from error
    finally:
        with torch.no_grad():
            for buffer, value in zip(module.buffers(), before, strict=True):
                buffer.copy_(value)


def _check_loss(forward: Forward, data: ClientData, function: Loss) -> None:
    """Raise InputError if the user's loss cannot be minimised."""
    try:
        function(forward(data.prepare(data.test_inputs[:3])), data.test_labels[:3])
        for count in (3, 2):  # Two samples fit two outputs by chance.
            outputs = forward(data.prepare(data.inputs[:count]))
            loss = function(outputs, data.labels[:count])
    except InputError:
        raise
    except Exception as error:
        expected = f"one that takes outputs and labels ({one_line(error)})"
        raise InputError("loss", loss_name(function), expected) from error
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        kind = type(loss).__name__
        if isinstance(loss, Tensor):
            kind = f"tensor of shape {tuple(loss.shape)}"
            kind += "" if loss.requires_grad else " without a gradient"
        raise InputError(
            f"loss returns a {kind}, but should return the mean over the batch, one number "
            "that depends on the outputs"
        )


def check_metrics(
    module: nn.Module, forward: Forward, data: ClientData, metrics: Mapping[str, Metric]
) -> None:
    """Raise InputError if a metric cannot be computed for the initial model."""
    check_metric_names(metrics)
    if metrics:
        module.eval()
        outputs = outputs_of(forward, data.prepare, data.test_inputs)
        metric_values(metrics, outputs, data.test_labels)
