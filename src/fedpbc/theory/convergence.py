"""What Theorem 1 promises, and up to which step size."""

from __future__ import annotations

from numpy.typing import ArrayLike

from fedpbc.theory.arguments import count_of, number, rate_below_one, steepest
from fedpbc.theory.mixing import one_minus_root

__all__ = ["gradient_bound", "kappa", "largest_step_size"]


def kappa(step_size: float, lipschitz: ArrayLike, local_steps: int) -> float:
    """How much s local steps amplify a client's own drift, κ.

    κ = max_i [(1+ηL_i)^s − 1 − sηL_i] / [C(s,2)(ηL_i)²]: 0 for one local step, 1 for two, and from
    there growing with η. Evaluated as the series Σ_{k≥2} C(s,k)(ηL)^(k−2) / C(s,2) of positive
    terms, since the quotient cancels to nothing when ηL is small. Infinite if it overflows.

    Args:
        step_size: η, above 0.
        lipschitz: L_i, one for all clients or one a client.
        local_steps: s.

    Example:
        >>> print(kappa(0.5, 3.0, 2), kappa(0.5, [1.0, 3.0], 3))
        1.0 1.5
    """
    step = number("step_size", step_size, 0, above=True)
    return _kappa(step, steepest(lipschitz, 0), count_of("local_steps", local_steps))


def largest_step_size(
    rho: float, lipschitz: ArrayLike, local_steps: int, beta: float = 0.0
) -> float:
    """The largest step size for which Theorem 1 promises anything.

    η ≤ (1−√ρ) / [108 L² s³ (β²+1)(1+κ²L²)]. κ itself grows with η, so this is solved by bisection
    to the last bit. It is far below the step sizes that work in practice: 108 comes from the
    proof. The paper assumes L ≥ 1, and so does this.

    Args:
        rho: the mixing rate, below 1.
        lipschitz: L, or every client's L_i, of which the largest counts.
        local_steps: s.
        beta: β of the bounded dissimilarity between clients.

    Example:
        >>> print(f"{largest_step_size(rho=0.25, lipschitz=1.0, local_steps=2, beta=0.0):.6f}")
        0.000289
    """
    room, steep = one_minus_root(rate_below_one(rho)), steepest(lipschitz, 1)
    steps, unlike = count_of("local_steps", local_steps), number("beta", beta, 0)
    fixed = 108 * steep * steep * float(steps) ** 3 * (unlike * unlike + 1)

    def allowed(step: float) -> float:
        amplified = _kappa(step, steep, steps) * steep
        return room / (fixed * (1 + amplified * amplified))

    # The allowance falls as η grows: what is allowed at η = 0 is too large or just right.
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
    """Theorem 1: how large ‖∇F(x̄)‖² can be under FedPBC, expected and averaged over the rounds.

    6·gap/(ηsT) + 54ηsL(κ²L² + 1 + 1/(1−√ρ))(σ²+ζ²). The first term is what is left of the start
    and falls with the rounds; the second is the noise that a constant step size keeps, and grows as
    the links get worse. This is the right-hand side whatever the step size; the theorem stands
    behind it only up to :func:`largest_step_size`. The model it speaks of is the mean over all
    clients, not the server's.

    Args:
        gap: F(x̄⁰) − F*, how far the start is from the lowest value of F.
        step_size: η.
        local_steps: s.
        rounds: T.
        lipschitz: L, or every client's L_i, of which the largest counts; at least 1.
        rho: the mixing rate, below 1.
        sigma: σ, the deviation of a stochastic gradient.
        zeta: ζ, how far clients' gradients differ where ∇F = 0.

    Example:
        >>> bound = gradient_bound(gap=1.0, step_size=0.01, local_steps=1, rounds=600,
        ...                        lipschitz=1.0, rho=0.25, sigma=1.0, zeta=0.0)
        >>> print(f"{bound:.6f}")
        2.620000
    """
    start, step = number("gap", gap, 0), number("step_size", step_size, 0, above=True)
    steps, total = count_of("local_steps", local_steps), count_of("rounds", rounds)
    steep, room = steepest(lipschitz, 1), one_minus_root(rate_below_one(rho))
    noise, spread = number("sigma", sigma, 0), number("zeta", zeta, 0)
    # Products, not powers: a float power raises where a product gives infinity.
    amplified = _kappa(step, steep, steps) * steep
    drift = amplified * amplified + 1 + 1 / room
    kept = noise * noise + spread * spread
    first = 6 * start / (step * steps * total)
    if kept == 0:  # exact gradients and like clients: nothing to amplify, even infinitely
        return first
    return first + 54 * step * steps * steep * drift * kept


def _kappa(step: float, steep: float, steps: int) -> float:
    """The series of :func:`kappa` at the largest L_i, where it is largest as every term grows."""
    if steps == 1:
        return 0.0
    total = term = 1.0
    for k in range(2, steps):
        term *= step * steep * (steps - k) / (k + 1)
        # The terms rise to one peak and then fall: one that no longer counts is past it.
        if total + term == total:
            break
        total += term
    return total
