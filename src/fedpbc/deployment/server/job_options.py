"""The options of a job's server, which must stay the same when it is resumed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fedpbc.aggregation import Aggregation
from fedpbc.algorithms.algorithm import Algorithm
from fedpbc.options import options_of

__all__ = ["aggregation_options", "algorithm_options"]


def algorithm_options(algorithm: Algorithm) -> dict[str, Any]:
    """The options of the server's rule, by their names in ``fleet.toml``.

    Example:
        >>> import torch
        >>> from fedpbc.algorithms import FedAU, ServerInit
        >>> options = algorithm_options(FedAU(ServerInit(torch.zeros(1), clients=2), cutoff=9))
        >>> options["algorithm.cutoff"], options["aggregation.name"]
        (9, 'mean')
    """
    options: dict[str, Any] = {"train.global_learning_rate": algorithm.global_lr}
    options |= aggregation_options(algorithm.aggregation)
    for name in options_of(type(algorithm).__init__):
        if hasattr(algorithm, name):
            options[f"algorithm.{name}"] = getattr(algorithm, name)
    plain = bool | int | float | str
    return {name: v if isinstance(v, plain) else str(v) for name, v in options.items()}


def aggregation_options(aggregation: Aggregation) -> dict[str, Any]:
    """The same for how uploads are combined."""
    return {f"aggregation.{name}": value for name, value in asdict(aggregation).items()}
