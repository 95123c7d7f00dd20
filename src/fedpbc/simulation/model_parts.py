"""The parts of a model: what the algorithm sees, running statistics, and layers that clients keep.

Running statistics are averaged over the clients that got through, whatever the algorithm does with
the parameters: a sum of differences, or a step that is amplified, could make a variance negative.
Layers that stay on a client are a part of its state, which only a simulation has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpbc.aggregation import mean
from fedpbc.algorithms.client import ClientRule, Vectors
from fedpbc.engines.segment import KEPT_LAYERS
from fedpbc.tasks.parameter_layout import Layout

__all__ = ["ModelParts", "initial_state", "joined", "mean_layers"]


@dataclass(frozen=True, eq=False)
class ModelParts:
    """An initial model in its parts.

    Attributes:
        x0: the parameters that clients share.
        statistics: the running statistics that are averaged; None without any.
        kept_layers: the layers that each client keeps to itself; None without any.

    Example:
        >>> layout = Layout(("weight", "mean"), ((2,), (1,)), statistics=1)
        >>> ModelParts.of(torch.tensor([1.0, 2.0, 3.0]), layout).statistics
        tensor([3.])
    """

    x0: Tensor
    statistics: Tensor | None = None
    kept_layers: Tensor | None = None

    @classmethod
    def of(cls, model: Tensor, layout: Layout) -> ModelParts:
        """Split a model of that layout."""
        trained = layout.trained
        if trained == layout.dimension:
            return cls(model)
        x0, rest = model[:trained].clone(), model[trained:].clone()
        return cls(x0, kept_layers=rest) if layout.kept else cls(x0, statistics=rest)


def joined(parameters: Tensor, statistics: Tensor | None) -> Tensor:
    """A model of parameters and statistics; the parameters themselves if there are none."""
    if statistics is None or not len(statistics):
        return parameters
    return torch.cat([parameters.to(statistics.dtype), statistics])


def initial_state(rule: ClientRule | None, x0: Tensor, kept_layers: Tensor | None) -> Vectors:
    """What a client keeps before its first counted upload."""
    state = {} if rule is None else rule.initial_state(x0.clone())
    if kept_layers is None or not len(kept_layers):
        return state
    return {**state, KEPT_LAYERS: kept_layers}


def mean_layers(states: Iterable[Vectors]) -> Tensor:
    """The mean of the layers that clients keep, for evaluations."""
    layers: Tensor = mean(state[KEPT_LAYERS] for state in states)
    return layers
