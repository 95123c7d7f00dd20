"""Checks of a strategy's options, and of what an algorithm must be told about an app's training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Gt

from fedpbc.algorithms import Algorithm, ClientResult, ClientWork, Round, ServerInit, Update
from fedpbc.errors import InputError
from fedpbc.options import check_type

__all__ = ["check_folders", "check_numbers", "check_runs_in_apps", "needed_settings"]


def check_numbers(
    *, clients: Any, local_steps: Any, rate: Any, global_lr: Any, norm_factor: Any, norm_bound: Any
) -> None:
    """Raise InputError for a number that is out of bounds."""
    check_type("clients", clients, Annotated[int, Ge(1)] | None)
    check_type("local_steps", local_steps, Annotated[int, Ge(1)] | None)
    check_type("global_lr", global_lr, Annotated[float, Gt(0)])
    check_type("norm_factor", norm_factor, Annotated[float, Ge(0)])
    check_type("norm_bound", norm_bound, Annotated[float, Ge(0)])
    if not callable(rate):
        check_type("learning_rate", rate, Annotated[float, Gt(0)] | None)


def check_folders(**files: str | Path | None) -> None:
    """Raise InputError for a file that could not be written after the first round."""
    for name, file in files.items():
        if file is not None and not Path(file).absolute().parent.is_dir():
            raise InputError(name, str(file), "a file in a folder that exists")


def check_runs_in_apps(algorithm: type[Algorithm], options: Mapping[str, Any]) -> None:
    """Raise InputError for an algorithm that an app's ``train`` cannot run."""
    if algorithm.needs_probabilities:
        raise InputError(
            f"{algorithm.name} needs the probabilities of the links, which no server knows: "
            "it runs in simulations only"
        )
    rule = algorithm(ServerInit(torch.zeros(2), clients=2), **options).client_rule()
    if rule is not None and rule.has_own_steps:
        raise InputError(
            f"{algorithm.name} takes local steps of its own, which the train function of an app "
            "cannot: use `fedpbc fleet`"
        )


def needed_settings(algorithm: type[Algorithm], options: Mapping[str, Any]) -> list[str]:
    """Which of ``learning_rate`` and ``local_steps`` an algorithm computes with.

    Found by a trial round in which they are unknown: then the result is no number.

    Example:
        >>> from fedpbc.algorithms import FedPBC, MIFA, Scaffold
        >>> needed_settings(FedPBC, {}), needed_settings(MIFA, {"rescale": True})
        ([], ['learning_rate'])
        >>> needed_settings(Scaffold, {})
        ['learning_rate', 'local_steps']
    """
    trials = {"learning_rate": (math.nan, 1), "local_steps": (1.0, 0)}
    return [name for name, trial in trials.items() if not _is_finite(algorithm, options, *trial)]


def _is_finite(
    kind: type[Algorithm], options: Mapping[str, Any], rate: float, local_steps: int
) -> bool:
    start, end = torch.zeros(2), torch.ones(2)
    algorithm = kind(ServerInit(start, clients=2), **options)
    rule, result = algorithm.client_rule(), ClientResult()
    try:
        if rule is not None:
            received, state = algorithm.message(0), rule.initial_state(start)
            work = ClientWork(
                0, start, received, state, 0, (rate,), local_steps, loss=lambda model: 1.0
            )
            result = rule.finish(work, end)
        has_model = rule is None or "model" in rule.uploads
        update = Update(0, start, end if has_model else None, result.upload)
        algorithm.aggregate(Round(0, np.array([0]), rate, local_steps), [update])
    except ZeroDivisionError:
        return False
    vectors = [algorithm.x, *result.upload.values(), *result.state.values()]
    return all(bool(torch.isfinite(vector).all()) for vector in vectors)
