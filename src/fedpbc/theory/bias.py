"""The bias of FedAvg over unreliable uplinks (Proposition 1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedpbc.errors import InputError
from fedpbc.theory.arguments import Floats, probabilities, targets_of
from fedpbc.theory.quadrature import expected_shares

__all__ = ["fedavg_limit", "fedavg_weights"]


def fedavg_weights(p: ArrayLike) -> Floats:
    """The weight of each client's objective under FedAvg (Proposition 1).

    Over unreliable uplinks client i has the weight w_i = E[1{i∈A}/|A|] / P(A≠∅) instead of 1/m: a
    client that is up twice as often counts at least twice as much. The weights sum to 1. The index
    set printed in the proposition should leave out client i; this is the corrected formula.

    Example:
        >>> print(fedavg_weights([0.5, 0.25]).round(6))
        [0.7 0.3]
    """
    p = probabilities(p)
    if not p.any():
        raise InputError("p is 0 for every client, but should be above 0 for at least one client")
    shares = expected_shares(p)
    weights: Floats = shares / shares.sum()  # the shares sum to P(A≠∅)
    return weights


def fedavg_limit(p: ArrayLike, targets: ArrayLike) -> Floats:
    """The limit of FedAvg's expected model for objectives F_i(x) = ½‖x − u_i‖².

    The minimiser is the mean of the u_i, but FedAvg's expected model tends to Σ w_i u_i.
    ``targets`` has one row u_i per client, of any shape; the result has the shape of a row.

    Example:
        >>> print(f"{fedavg_limit([0.5, 0.25], [0, 100]):.6f}")
        30.000000
    """
    weights = fedavg_weights(p)
    limit = np.tensordot(weights, targets_of(targets, len(weights)), axes=1)
    return np.asarray(limit, dtype=np.float64)
