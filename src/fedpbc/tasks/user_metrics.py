"""Custom metrics: functions of a module's outputs for all test samples and their labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedpbc.errors import InputError, one_line
from fedpbc.tasks.evaluation import CHUNK
from fedpbc.tasks.inputs import Inputs, logits_of
from fedpbc.tasks.task import Evaluation

__all__ = ["Metric", "check_metric_names", "metric_values", "outputs_of"]

Metric = Callable[[Tensor, Tensor], Any]
"""A function of the outputs for all test samples and their labels; returns a number."""

MAX_NAME = 40
"""Characters of a metric's name."""


@torch.no_grad()
def outputs_of(
    module: Callable[[Inputs], Any], prepare: Callable[[Inputs], Inputs], inputs: Inputs
) -> Tensor:
    """Return a module's outputs for all inputs, on the CPU."""
    chunks = (inputs[k : k + CHUNK] for k in range(0, len(inputs), CHUNK))
    outputs = [logits_of(module(prepare(chunk))) for chunk in chunks]
    if not isinstance(outputs[0], Tensor):
        kind = type(outputs[0]).__name__
        raise InputError("metrics", "given", f"left out: the module returns a {kind}, no tensor")
    return torch.cat([each.cpu() for each in outputs])


def check_metric_names(metrics: Mapping[str, Metric]) -> None:
    """Raise InputError unless these are functions under names that an evaluation does not have."""
    if not isinstance(metrics, Mapping):
        raise InputError("metrics", metrics, 'a table of functions, such as {"f1": f1}')
    for name, function in metrics.items():
        if not isinstance(name, str) or not name.isidentifier() or len(name) > MAX_NAME:
            raise InputError("the name of a metric", name, "letters, digits and underscores")
        if name in Evaluation.__dataclass_fields__:
            raise InputError("the name of a metric", name, "another: an evaluation has this one")
        if not callable(function):
            raise InputError(f"metrics[{name!r}]", function, "a function of outputs and labels")


def metric_values(
    metrics: Mapping[str, Metric], outputs: Tensor, labels: Tensor
) -> dict[str, float | None]:
    """Return the value of each metric; None for one that is not finite."""
    values: dict[str, float | None] = {}
    labels = labels.cpu()
    for name, function in metrics.items():
        try:
            value = float(function(outputs, labels))
        except Exception as error:
            raise InputError(
                f"metrics[{name!r}] failed: {one_line(error)}; it gets the outputs for all test "
                "samples and their labels, and should return a number"
            ) from error
        values[name] = value if math.isfinite(value) else None
    return values
