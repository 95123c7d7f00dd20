"""The consensus error of the clients' models, and its bound (lemma Consensus Error)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedpbc.theory.arguments import array_of, number, positive_integer, rate_below_one, wrong_shape
from fedpbc.theory.mixing import one_minus_root

__all__ = ["consensus_bound", "consensus_error"]


def consensus_error(models: ArrayLike) -> float:
    """The consensus error (1/m) Σ‖x̄ − x_i‖²; ``models`` has one row per client.

    It is 0 at the start of a run and after every round in which all links are up. Computed in
    double precision.

    Example:
        >>> consensus_error([[0.0, 0.0], [2.0, 4.0]])
        5.0
    """
    rows = array_of("models", models)
    if rows.ndim != 2 or not rows.size:
        raise wrong_shape("models", rows, "clients × parameters, not empty")
    # Row by row: a second copy of all models may not fit into memory.
    with np.errstate(over="ignore"):
        centre = rows.mean(axis=0, dtype=np.float64)
        return sum(float(np.square(row - centre).sum()) for row in rows) / len(rows)


def consensus_bound(
    *,
    step_size: float,
    local_steps: int,
    rho: float,
    sigma: float,
    zeta: float,
    beta: float,
    mean_squared_gradient: float,
) -> float:
    """The lemma Consensus Error: a bound on the mean of the expected consensus error over rounds.

    [12σ² + 54ζ² + 54(β²+1)·G] · ρη²s²/(1−√ρ)², valid up to :func:`largest_step_size`. σ is the
    standard deviation of a stochastic gradient; ζ and β bound the dissimilarity of the clients'
    gradients, where ∇F = 0 and in proportion to ∇F. G, ``mean_squared_gradient``, is the mean of
    ‖∇F(x̄^t)‖² over the rounds. The lemma as printed also divides G by m; the proofs do not.

    Example:
        >>> bound = consensus_bound(step_size=0.01, local_steps=5, rho=0.25, sigma=1.0, zeta=0.0,
        ...                         beta=0.0, mean_squared_gradient=2.0)
        >>> print(f"{bound:.6f}")
        0.300000
    """
    step_size = number("step_size", step_size, 0, above=True)
    local_steps, rho = positive_integer("local_steps", local_steps), rate_below_one(rho)
    sigma, zeta, beta = number("sigma", sigma, 0), number("zeta", zeta, 0), number("beta", beta, 0)
    gradient = number("mean_squared_gradient", mean_squared_gradient, 0)
    constants = 12 * sigma * sigma + 54 * zeta * zeta + 54 * (beta * beta + 1) * gradient
    movement = step_size * local_steps / one_minus_root(rho)
    return rho * movement * movement * constants
