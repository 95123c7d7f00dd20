"""Which algorithms can do with something else than means of unclipped updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpbc.aggregation import Aggregation
from fedpbc.algorithms.algorithm import Algorithm, ServerInit
from fedpbc.errors import InputError

__all__ = ["check_aggregation"]


def check_aggregation(
    kind: type[Algorithm], options: Mapping[str, Any], aggregation: Aggregation
) -> None:
    """Raise InputError if an algorithm cannot be combined with how its uploads are aggregated.

    Example:
        >>> from fedpbc.algorithms import FedAU
        >>> check_aggregation(FedAU, {}, Aggregation(name="median"))
        Traceback (most recent call last):
        fedpbc.errors.InputError: aggregation is 'median', but fedau weights or sums up what ...
    """
    if aggregation.is_mean and not aggregation.clip:
        return
    option, value = "aggregation", repr(aggregation.name)
    if aggregation.is_mean:
        option, value = "aggregation.clip", f"{aggregation.clip:g}"
    if (rule := _trial(kind, options).client_rule()) is not None and (
        rule.keeps or "model" not in rule.uploads
    ):
        raise InputError(
            f"{option} is {value}, but clients of {kind.name} upload how something that they keep "
            "has changed, which a server cannot alter: leave it out, or choose another algorithm"
        )
    if not aggregation.is_mean and not kind.robust_means:
        raise InputError(
            f"{option} is {value}, but {kind.name} weights or sums up what clients send instead of "
            "averaging it: leave it out, or choose another algorithm, such as fedpbc"
        )


def _trial(kind: type[Algorithm], options: Mapping[str, Any]) -> Algorithm:
    import torch  # Late: a client needs no torch for its rule.

    return kind(ServerInit(torch.zeros(1), clients=1), **options)
