"""The bias of FedAvg over unreliable uplinks (Proposition 1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedpbc.errors import InputError, Verbatim
from fedpbc.theory.arguments import Floats, array_of, probabilities
from fedpbc.theory.quadrature import shares

__all__ = ["fedavg_limit", "fedavg_weights"]


def fedavg_weights(p: ArrayLike) -> Floats:
    """How much each client's objective really counts under FedAvg (Proposition 1).

    FedAvg should weigh every client 1/m. Over unreliable uplinks client i gets
    w_i = E[1{i∈A}/|A|] / P(A≠∅) instead: a client that gets through twice as often counts at least
    twice as much. The weights sum to 1. The index set printed in the
    proposition should leave out client i; this is the corrected formula.

    Example:
        >>> print(fedavg_weights([0.5, 0.25]).round(6))
        [0.7 0.3]
    """
    links = probabilities(p)
    if not links.any():
        raise InputError("p", Verbatim("0 for every client"), "above 0 for at least one client")
    own = shares(links)
    weights: Floats = own / own.sum()  # the shares add up to P(A≠∅)
    return weights


def fedavg_limit(p: ArrayLike, targets: ArrayLike) -> Floats:
    """Where FedAvg ends up, in expectation, when client i pulls towards ``targets[i]``.

    For objectives F_i(x) = ½‖x − u_i‖² the minimiser is the plain mean of the u_i, but FedAvg's
    expected model tends to Σ w_i u_i. ``targets`` has one row a client, of any shape; the result
    has the shape of a row (no dimension when each u_i is a number).

    Example:
        >>> print(f"{fedavg_limit([0.5, 0.25], [0, 100]):.6f}")
        30.000000
    """
    weights = fedavg_weights(p)
    goals = array_of("targets", targets).astype(np.float64)
    if goals.ndim == 0 or len(goals) != len(weights):
        raise InputError(
            "targets",
            Verbatim(f"of shape {goals.shape}"),
            f"one row for each of {len(weights)} clients",
        )
    return np.asarray(np.tensordot(weights, goals, axes=1), dtype=np.float64)
