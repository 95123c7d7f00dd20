"""How far apart the clients' models are, and how far they can be (the lemma Consensus Error)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedpbc.errors import InputError, Verbatim
from fedpbc.theory.arguments import array_of, count_of, number, rate_below_one
from fedpbc.theory.mixing import one_minus_root

__all__ = ["consensus_bound", "consensus_error"]


def consensus_error(models: ArrayLike) -> float:
    """How far apart the clients' models are: (1/m) Σ‖x̄ − x_i‖².

    ``models`` has one row a client. 0 when all agree, as at the start of a run and after every
    round in which all links are up. Summed in double precision, whatever the models are stored in.

    Example:
        >>> consensus_error([[0.0, 0.0], [2.0, 4.0]])
        5.0
    """
    rows = array_of("models", models)
    if rows.ndim != 2 or not rows.size:
        raise InputError(
            "models", Verbatim(f"of shape {rows.shape}"), "clients × parameters, not empty"
        )
    centre = rows.mean(axis=0, dtype=np.float64)
    # Row by row: a second copy of every client's model may not fit into memory.
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
    """The Consensus Error lemma: how far apart the clients can be, expected, over the rounds.

    [12σ² + 54ζ² + 54(β²+1)·G] · ρη²s²/(1−√ρ)², to compare with :func:`consensus_error`. Holds up to
    :func:`largest_step_size`.

    Args:
        step_size: η.
        local_steps: s.
        rho: the mixing rate, below 1.
        sigma: σ, the deviation of a stochastic gradient.
        zeta: ζ, how far clients' gradients differ where ∇F = 0.
        beta: β, how far they differ in proportion to ∇F.
        mean_squared_gradient: G, the mean of ‖∇F(x̄^t)‖² over the rounds. The lemma as printed
            divides it by m once more; its proof, and the proof of Theorem 1, do not.

    Example:
        >>> bound = consensus_bound(step_size=0.01, local_steps=5, rho=0.25, sigma=1.0, zeta=0.0,
        ...                         beta=0.0, mean_squared_gradient=2.0)
        >>> print(f"{bound:.6f}")
        0.300000
    """
    step = number("step_size", step_size, 0, above=True)
    steps, rate = count_of("local_steps", local_steps), rate_below_one(rho)
    noise, spread = number("sigma", sigma, 0), number("zeta", zeta, 0)
    unlike = number("beta", beta, 0)
    slope = number("mean_squared_gradient", mean_squared_gradient, 0)
    pushed = 12 * noise * noise + 54 * spread * spread + 54 * (unlike * unlike + 1) * slope
    moved = step * steps / one_minus_root(rate)
    return rate * moved * moved * pushed
