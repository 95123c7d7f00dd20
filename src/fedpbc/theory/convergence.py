"""Theorem 1: the bound on the gradient, and the step sizes that it covers."""

from __future__ import annotations

from numpy.typing import ArrayLike

from fedpbc.theory.arguments import largest_lipschitz, number, positive_integer, rate_below_one
from fedpbc.theory.mixing import one_minus_root

__all__ = ["gradient_bound", "kappa", "largest_step_size"]


def kappa(step_size: float, lipschitz: ArrayLike, local_steps: int) -> float:
    """κ, by how much s local steps amplify a client's drift.

    κ = max_i [(1+ηL_i)^s − 1 − sηL_i] / [C(s,2)(ηL_i)²]: 0 for one local step, 1 for two, then
    growing with η. Evaluated as the series Σ_{k≥2} C(s,k)(ηL)^(k−2) / C(s,2) of positive terms,
    since the quotient loses all digits when ηL is small. Infinite if it overflows. ``lipschitz`` is
    one number for all clients, or L_i for each.

    Example:
        >>> print(kappa(0.5, 3.0, 2), kappa(0.5, [1.0, 3.0], 3))
        1.0 1.5
    """
    step_size = number("step_size", step_size, 0, above=True)
    local_steps = positive_integer("local_steps", local_steps)
    return _kappa(step_size, largest_lipschitz(lipschitz, 0), local_steps)


def largest_step_size(
    rho: float, lipschitz: ArrayLike, local_steps: int, beta: float = 0.0
) -> float:
    """The largest step size that Theorem 1 covers.

    η ≤ (1−√ρ) / [108 L² s³ (β²+1)(1+κ²L²)]. κ depends on η, so the equation is solved by bisection
    to the last bit. The result is far below the step sizes that work in practice: the factor 108
    comes from the proof. ``lipschitz`` is L ≥ 1, or every client's L_i (the largest counts);
    β is that of the bounded dissimilarity between clients.

    Example:
        >>> print(f"{largest_step_size(rho=0.25, lipschitz=1.0, local_steps=2, beta=0.0):.6f}")
        0.000289
    """
    gap, largest_l = one_minus_root(rate_below_one(rho)), largest_lipschitz(lipschitz, 1)
    local_steps, beta = positive_integer("local_steps", local_steps), number("beta", beta, 0)
    constant = 108 * largest_l * largest_l * float(local_steps) ** 3 * (beta * beta + 1)

    def allowed(step_size: float) -> float:
        amplified = _kappa(step_size, largest_l, local_steps) * largest_l
        return gap / (constant * (1 + amplified * amplified))

    # The right-hand side decreases in η, so its value at η = 0 is an upper bound.
    low, high = 0.0, allowed(0.0)
    if high <= allowed(high):
        return high
    while low < (middle := (low + high) / 2) < high:
        if middle <= allowed(middle):
            low = middle
        else:
            high = middle
    return low


def gradient_bound(
    *,
    gap: float,
    step_size: float,
    local_steps: int,
    rounds: int,
    lipschitz: ArrayLike,
    rho: float,
    sigma: float,
    zeta: float,
) -> float:
    """Theorem 1: a bound on the mean of E‖∇F(x̄^t)‖² over the rounds of FedPBC.

    6·gap/(ηsT) + 54ηsL(κ²L² + 1 + 1/(1−√ρ))(σ²+ζ²). The first term is the remainder of the start
    and falls with the rounds. The second is the noise that a constant step size keeps, and grows as
    links get worse. The formula is evaluated for any step size, but the theorem holds only up to
    :func:`largest_step_size`. x̄ is the mean over all clients, not the server's model.

    gap is F(x̄⁰) − F*; ``lipschitz`` is as in :func:`largest_step_size`; σ is the standard deviation
    of a stochastic gradient, ζ the dissimilarity of the clients' gradients where ∇F = 0.

    Example:
        >>> bound = gradient_bound(gap=1.0, step_size=0.01, local_steps=1, rounds=600,
        ...                        lipschitz=1.0, rho=0.25, sigma=1.0, zeta=0.0)
        >>> print(f"{bound:.6f}")
        2.620000
    """
    gap, step_size = number("gap", gap, 0), number("step_size", step_size, 0, above=True)
    local_steps = positive_integer("local_steps", local_steps)
    rounds = positive_integer("rounds", rounds)
    largest_l, mixing_gap = largest_lipschitz(lipschitz, 1), one_minus_root(rate_below_one(rho))
    sigma, zeta = number("sigma", sigma, 0), number("zeta", zeta, 0)
    # Products, not powers: a float power raises where a product returns infinity.
    noise = sigma * sigma + zeta * zeta
    start_term = 6 * gap / (step_size * local_steps * rounds)
    if noise == 0:  # otherwise 0·∞ = NaN where κ overflows
        return start_term
    amplified = _kappa(step_size, largest_l, local_steps) * largest_l
    drift = amplified * amplified + 1 + 1 / mixing_gap
    return start_term + 54 * step_size * local_steps * largest_l * drift * noise


def _kappa(step_size: float, largest_l: float, local_steps: int) -> float:
    """The series of :func:`kappa` at the largest L_i, where it is largest as every term grows."""
    if local_steps == 1:
        return 0.0
    total = term = 1.0
    for k in range(2, local_steps):
        term *= step_size * largest_l * (local_steps - k) / (k + 1)
        # The terms rise to one peak and then fall, so a negligible term is past the peak.
        if total + term == total:
            break
        total += term
    return total
