"""Which algorithms an app can run, and what they must be told about its training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedpbc.algorithms import Algorithm, ClientResult, ClientWork, Round, ServerInit, Update
from fedpbc.errors import InputError

__all__ = ["check_known", "check_runs_in_apps", "needed_settings"]


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


def check_known(
    algorithm: type[Algorithm], options: Mapping[str, Any], known: Mapping[str, Any]
) -> None:
    """Raise InputError for what an algorithm must know but does not, or cannot make use of."""
    needed = needed_settings(algorithm, options)
    for name, value in known.items():
        if name in needed and value is None:
            raise InputError(f"{algorithm.name} computes with the app's {name}: give {name}=…")
        # An algorithm from elsewhere may use it in another round than the trial's.
        is_ours = algorithm.__module__.startswith("fedpbc.algorithms.")
        if is_ours and name not in needed and value is not None:
            raise InputError(
                f"{name} has no effect on {algorithm.name}, which does not compute with it: leave "
                "it out; the clients train with that of the app"
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
            received, state = algorithm.message(0), rule.initial_state(start.clone())
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
