"""What the FedPBC paper proves, as numbers: bias, mixing, staleness and Theorem 1.

"Empowering Federated Learning with Implicit Gossiping" (Xiang, Ioannidis, Yeh, Joe-Wong, Su).
Notation: m clients, client i's uplink is up with probability p_i independently of the others, A is
the set of clients whose uplink is up in a round, s local steps a round, step size η.

Two expectations over A carry everything here, and both are integrals of a polynomial because
1/|A| = ∫₀¹ z^(|A|-1) dz. Gauss-Legendre quadrature integrates polynomials without error, so no
subset is enumerated and nothing is sampled: the results are exact up to rounding.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpbc.errors import InputError, Words

__all__ = [
    "consensus_bound",
    "consensus_error",
    "expected_staleness_bound",
    "fedavg_limit",
    "fedavg_weights",
    "gradient_bound",
    "kappa",
    "largest_step_size",
    "mean_square_mixing",
    "mixing_matrix",
    "mixing_rate",
    "mixing_rate_bound",
    "staleness",
]

Floats = NDArray[np.float64]


# Bias of FedAvg


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
    links = _probabilities(p)
    if not links.any():
        raise InputError("p", Words("0 for every client"), "above 0 for at least one client")
    shares = _shares(links)
    weights: Floats = shares / shares.sum()  # the shares add up to P(A≠∅)
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
    goals = _array("targets", targets).astype(np.float64)
    if goals.ndim == 0 or len(goals) != len(weights):
        raise InputError(
            "targets",
            Words(f"of shape {goals.shape}"),
            f"one row for each of {len(weights)} clients",
        )
    return np.asarray(np.tensordot(weights, goals, axes=1), dtype=np.float64)


# Mixing: how fast implicit gossiping brings the clients together


def mixing_matrix(active: Iterable[int], clients: int) -> Floats:
    """What one round's average does to the clients' models, as a matrix W (Eq. 5).

    The active clients all take their mean, the others keep what they have: row i of W @ models is
    client i's next model. W is symmetric, doubly stochastic and a projection (W² = W), so the mean
    over all clients never changes.

    Args:
        active: the numbers of the clients whose uplink is up, from 0; possibly none.
        clients: how many clients there are.

    Example:
        >>> print(mixing_matrix([0, 2], 3))
        [[0.5 0.  0.5]
         [0.  1.  0. ]
         [0.5 0.  0.5]]
    """
    count = _count("clients", clients)
    right = f"different client numbers from 0 to {count - 1}"
    try:
        numbers = list(active)
        # A mask of True and False would silently read as clients 1 and 0.
        if any(isinstance(number, bool | np.bool_) for number in numbers):
            raise TypeError
        numbers = [operator.index(number) for number in numbers]
    except TypeError:
        raise InputError("active", active, right) from None
    if len(set(numbers)) < len(numbers) or any(not 0 <= number < count for number in numbers):
        raise InputError("active", numbers, right)
    matrix = np.eye(count)
    if numbers:
        matrix[np.ix_(numbers, numbers)] = 1 / len(numbers)
    return matrix


def mean_square_mixing(p: ArrayLike) -> Floats:
    """The expected mixing of a round, M = E[W²].

    M_ij is how much of client j's model is expected in client i's after one round: E[1{i,j∈A}/|A|]
    off the diagonal, and rows sum to 1. As W is a projection, M = E[W] too. Entries are above 0
    wherever both clients can get through at all.

    Example:
        >>> print(mean_square_mixing([0.5, 0.8]).round(6))
        [[0.8 0.2]
         [0.2 0.8]]
    """
    links = _probabilities(p)
    mixed = _exchange(links)
    np.fill_diagonal(mixed, 1 - links + _shares(links))
    return mixed


def mixing_rate(p: ArrayLike) -> float:
    """The factor ρ = λ₂(M) by which a round shrinks disagreement between clients, in expectation.

    0: one round makes all clients agree; 1: somebody never hears of the others (some p_i = 0).
    Without further training the expected consensus error falls at least as fast as ρ^t. Where p
    changes from round to round, the theory takes the largest ρ over the rounds. A single client
    always agrees with itself: 0.

    Example:
        >>> print(f"{mixing_rate([0.5, 0.8]):.6f}")
        0.600000
    """
    links = _probabilities(p)
    if len(links) == 1:
        return 0.0
    # I - M is a graph Laplacian. Its eigenvalues keep their digits when p is small and ρ nearly 1.
    laplacian = -_exchange(links)
    np.fill_diagonal(laplacian, -laplacian.sum(axis=1))
    gap = float(np.linalg.eigvalsh(laplacian)[1])
    return min(max(1 - gap, 0.0), 1.0)


def mixing_rate_bound(c: float, clients: int) -> float:
    """What the Ergodicity lemma guarantees for ρ when every link is up with probability ≥ ``c``.

    ρ ≤ 1 − c⁴[1−(1−c)^m]²/8. Safe but loose: compare :func:`mixing_rate`, which is exact.

    Example:
        >>> print(mixing_rate_bound(0.5, 2))
        0.99560546875
    """
    lowest = _number("c", c, 0, 1)
    some = 1 - (1 - lowest) ** _count("clients", clients)
    return 1 - lowest**4 * some**2 / 8


# Staleness and consensus


def staleness(timetable: ArrayLike) -> NDArray[np.int64]:
    """How many rounds ago each client last got through: t − τ_i(t) for t = 0 … T.

    ``timetable`` is rounds × clients, true where the uplink is up. Row t of the result looks back
    from the start of round t, so it has one row more than the timetable. τ_i is the last round
    before t in which i was active, −1 before the first: a client that never got through counts from
    the common start, and row 0 is all 1. A client that was up in the last round has 1 too.

    Example:
        >>> print(staleness([[True, False], [False, False], [True, True]]))
        [[1 1]
         [1 2]
         [2 3]
         [1 1]]
    """
    table = _array("timetable", timetable)
    if table.ndim != 2 or not table.size:
        raise InputError(
            "timetable", Words(f"of shape {table.shape}"), "rounds × clients, not empty"
        )
    if not np.isin(table, (0, 1)).all():
        raise InputError("timetable", Words("not only 0 and 1"), "true where an uplink is up")
    rounds, clients = table.shape
    last = np.full((rounds + 1, clients), -1, dtype=np.int64)
    last[1:] = np.where(table == 1, np.arange(rounds)[:, None], -1)
    np.maximum.accumulate(last, axis=0, out=last)
    ages: NDArray[np.int64] = np.arange(rounds + 1)[:, None] - last
    return ages


def expected_staleness_bound(c: float) -> float:
    """What staleness can be in expectation at most: 1/c rounds.

    Holds when, whatever happened before, a link is up with probability at least ``c``. Links that
    are certainly down for part of the time, such as cyclic ones, have no such c.

    Example:
        >>> expected_staleness_bound(0.02)
        50.0
    """
    return 1 / _number("c", c, 0, 1, above=True)


def consensus_error(models: ArrayLike) -> float:
    """How far apart the clients' models are: (1/m) Σ‖x̄ − x_i‖².

    ``models`` has one row a client. 0 when all agree, as at the start of a run and after every
    round in which all links are up. Summed in double precision, whatever the models are stored in.

    Example:
        >>> consensus_error([[0.0, 0.0], [2.0, 4.0]])
        5.0
    """
    rows = _array("models", models)
    if rows.ndim != 2 or not rows.size:
        raise InputError(
            "models", Words(f"of shape {rows.shape}"), "clients × parameters, not empty"
        )
    centre = rows.mean(axis=0, dtype=np.float64)
    # Row by row: a second copy of every client's model may not fit into memory.
    return sum(float(np.square(row - centre).sum()) for row in rows) / len(rows)


# Theorem 1


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
    step = _number("step_size", step_size, 0, above=True)
    return _kappa(step, _lipschitz(lipschitz, 0), _count("local_steps", local_steps))


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
    room, steep = _one_minus_root(_rho(rho)), _lipschitz(lipschitz, 1)
    steps, unlike = _count("local_steps", local_steps), _number("beta", beta, 0)
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
    start, step = _number("gap", gap, 0), _number("step_size", step_size, 0, above=True)
    steps, total = _count("local_steps", local_steps), _count("rounds", rounds)
    steep, room = _lipschitz(lipschitz, 1), _one_minus_root(_rho(rho))
    noise, spread = _number("sigma", sigma, 0), _number("zeta", zeta, 0)
    # Products, not powers: a float power raises where a product gives infinity.
    amplified = _kappa(step, steep, steps) * steep
    drift = amplified * amplified + 1 + 1 / room
    kept = noise * noise + spread * spread
    first = 6 * start / (step * steps * total)
    if kept == 0:  # exact gradients and like clients: nothing to amplify, even infinitely
        return first
    return first + 54 * step * steps * steep * drift * kept


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
    step = _number("step_size", step_size, 0, above=True)
    steps, rate = _count("local_steps", local_steps), _rho(rho)
    noise, spread = _number("sigma", sigma, 0), _number("zeta", zeta, 0)
    unlike = _number("beta", beta, 0)
    slope = _number("mean_squared_gradient", mean_squared_gradient, 0)
    pushed = 12 * noise * noise + 54 * spread * spread + 54 * (unlike * unlike + 1) * slope
    moved = step * steps / _one_minus_root(rate)
    return rate * moved * moved * pushed


# The integrals


def _quadrature(links: Floats) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Nodes z and weights for ∫₀¹, and 1 − p_k + p_k·z [clients, nodes], a block of nodes a time.

    ⌈m/2⌉ nodes integrate polynomials up to degree m − 1 without error.
    """
    nodes, weights = _gauss_legendre((len(links) + 1) // 2)
    block = max(1, 2**21 // len(links))
    for start in range(0, len(nodes), block):
        z, weight = nodes[start : start + block], weights[start : start + block]
        yield z, weight, 1 - links[:, None] * (1 - z)


def _gauss_legendre(count: int) -> tuple[Floats, Floats]:
    """The Gauss-Legendre rule on (0, 1), by Newton's method on the Legendre recurrence.

    NumPy's ``leggauss`` loses three digits at 500 nodes.
    """
    x = -np.cos(np.pi * (np.arange(count) + 0.75) / (count + 0.5))
    for _ in range(5):
        before, value = np.ones(count), x
        for k in range(2, count + 1):
            before, value = value, ((2 * k - 1) * x * value - (k - 1) * before) / k
        slope = count * (before - x * value) / ((1 - x) * (1 + x))
        x = x - value / slope
    return (1 + x) / 2, 1 / ((1 - x) * (1 + x) * slope**2)


def _shares(links: Floats) -> Floats:
    """E[1{i∈A}/|A|] = p_i ∫ Π_{j≠i}(1−p_j+p_j z) dz for every client i."""
    shares = np.zeros_like(links)
    for _, weight, factors in _quadrature(links):
        # Dividing by one's own factor is safe: nodes lie strictly inside (0, 1), so no factor is 0
        # even where p = 1. If the product underflows, less than 1e-290 is lost of at least 1/m.
        shares += (weight * factors.prod(axis=0) / factors).sum(axis=1)
    return links * shares


def _exchange(links: Floats) -> Floats:
    """E[1{i,j∈A}/|A|] = p_i p_j ∫ z Π_{k≠i,j}(1−p_k+p_k z) dz off the diagonal, 0 on it."""
    mixed = np.zeros((len(links), len(links)))
    for z, weight, factors in _quadrature(links):
        part = links[:, None] / factors * np.sqrt(weight * z * factors.prod(axis=0))
        mixed += part @ part.T
    np.fill_diagonal(mixed, 0)
    return mixed


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


def _one_minus_root(rho: float) -> float:
    """1 − √ρ, with all its digits where ρ is nearly 1."""
    return (1 - rho) / (1 + math.sqrt(rho))


# Wrong input


def _array(name: str, given: ArrayLike) -> NDArray[Any]:
    try:
        array = np.asarray(given)
    except (TypeError, ValueError):
        raise InputError(name, Words("ragged or not numbers"), "an array of numbers") from None
    if array.dtype.kind not in "biuf":
        raise InputError(name, Words(f"of type {array.dtype}"), "an array of numbers")
    if not np.isfinite(array).all():
        raise InputError(name, Words("not finite everywhere"), "an array of finite numbers")
    return array


def _probabilities(p: ArrayLike) -> Floats:
    links: Floats = _array("p", p).astype(np.float64)
    right = "a probability from 0 to 1 for every client"
    if links.ndim != 1 or not links.size:
        raise InputError("p", Words(f"of shape {links.shape}"), right)
    wrong = np.flatnonzero((links < 0) | (links > 1))
    if wrong.size:
        raise InputError("p", Words(f"{links[wrong[0]]} for client {wrong[0]}"), right)
    return links


def _number(
    name: str, given: float, low: float, high: float = math.inf, above: bool = False
) -> float:
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and low <= number <= high and (number > low or not above)):
        bounds = f"above {low:g}" if above else f"at least {low:g}"
        raise InputError(name, given, f"a number {bounds}" + f" and at most {high:g}" * (high == 1))
    return number


def _count(name: str, given: int) -> int:
    try:
        number = operator.index(given)
    except TypeError:
        number = 0
    if number < 1:
        raise InputError(name, given, "a whole number of at least 1")
    return number


def _rho(given: float) -> float:
    rho = _number("rho", given, 0, 1)
    if rho == 1:
        raise InputError(
            "rho", given, "below 1: with a client that never gets through, no bound holds"
        )
    return rho


def _lipschitz(given: ArrayLike, low: int) -> float:
    constants = _array("lipschitz", given).astype(np.float64)
    right = "one number of at least 0, or one a client"
    if constants.ndim > 1 or not constants.size:
        raise InputError("lipschitz", Words(f"of shape {constants.shape}"), right)
    if constants.min() < 0:
        raise InputError("lipschitz", float(constants.min()), right)
    largest = float(constants.max())
    if largest < low:
        raise InputError(
            "lipschitz", largest, "at least 1 for some client: the theorem assumes L ≥ 1"
        )
    return largest
