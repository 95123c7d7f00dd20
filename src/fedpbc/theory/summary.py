"""Everything that the theory says of some links, in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedpbc.errors import InputError, Verbatim
from fedpbc.theory.arguments import Floats, array_of, count_of, number, steepest
from fedpbc.theory.convergence import gradient_bound, kappa, largest_step_size
from fedpbc.theory.empirical import EmpiricalLinks
from fedpbc.theory.independent_links import IndependentLinks
from fedpbc.theory.mixing import EXACT_CLIENTS
from fedpbc.theory.staleness import expected_staleness_bound

__all__ = ["Constants", "Theorem", "TheorySummary"]


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What Theorem 1 needs to know beside the links.

    Attributes:
        step_size: η.
        local_steps: s.
        rounds: T.
        lipschitz: L.
        sigma: σ.
        zeta: ζ.
        beta: β.
        gap: F(x̄⁰) − F*.
        assumed: which of them nobody gave and nothing told.

    Example:
        >>> Constants(step_size=0.05, local_steps=5, rounds=500).lipschitz
        1.0
    """

    step_size: float
    local_steps: int
    rounds: int
    lipschitz: float = 1.0
    sigma: float = 1.0
    zeta: float = 1.0
    beta: float = 0.0
    gap: float = 1.0
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        number("step_size", self.step_size, 0, above=True)
        for name in ("local_steps", "rounds"):
            count_of(name, getattr(self, name))
        steepest(self.lipschitz, 1)
        for name in ("sigma", "zeta", "beta", "gap"):
            number(name, getattr(self, name), 0)


@dataclass(frozen=True)
class Theorem:
    """What Theorem 1 says.

    Attributes:
        kappa: κ at the step size.
        largest_step_size: up to which it promises anything; None without a ρ below 1.
        within: whether the step size is.
        bound: its right-hand side at the step size.
        bound_at_largest: and at the largest.

    Example:
        >>> Theorem(1.0, 1e-4, False, 7.0, 9.0).within
        False
    """

    kappa: float
    largest_step_size: float | None
    within: bool
    bound: float | None
    bound_at_largest: float | None


@dataclass(frozen=True)
class TheorySummary:
    """Everything that the theory says of some links.

    Attributes:
        links: what they are called.
        clients: m.
        expected: what is exact, where links are independent; None where they are not.
        measured: what a timetable of them was like; None without one.
        constants: for Theorem 1.
        targets: u_i of quadratics, [m, …], if there are any.
        remarks: what else a reader must know, a line each.

    Example:
        >>> from fedpbc.theory.independent_links import expect
        >>> p, constants = np.array([0.5, 0.25]), Constants(step_size=0.1, local_steps=1, rounds=9)
        >>> found = TheorySummary("p", 2, expect([p] * 9), None, constants, np.array([0.0, 100.0]))
        >>> round(float(found.limits["expected"]), 6)
        30.0
    """

    links: str
    clients: int
    expected: IndependentLinks | None
    measured: EmpiricalLinks | None
    constants: Constants
    targets: Floats | None = None
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.targets is None:
            return
        goals = array_of("targets", self.targets).astype(np.float64)
        if goals.ndim == 0 or len(goals) != self.clients:
            given = Verbatim(f"of shape {goals.shape}")
            raise InputError("targets", given, f"one row for each of {self.clients} clients")
        object.__setattr__(self, "targets", goals)

    @property
    def weights(self) -> dict[str, Floats]:
        """How much each client counts under FedAvg: expected, measured, or both."""
        known = {"expected": self.expected, "measured": self.measured}
        return {k: v.weights for k, v in known.items() if v is not None and v.weights is not None}

    @property
    def total_variation(self) -> dict[str, float]:
        """How far those are from 1/m: half the sum of the differences."""
        return {k: float(np.abs(w - 1 / self.clients).sum() / 2) for k, w in self.weights.items()}

    @property
    def limits(self) -> dict[str, Floats]:
        """Where FedAvg ends up on quadratics with these targets, beside the optimum."""
        if self.targets is None:
            return {}
        found = {k: np.tensordot(w, self.targets, axes=1) for k, w in self.weights.items()}
        return {**found, "optimum": self.targets.mean(axis=0)}

    @property
    def rho(self) -> tuple[float | None, str]:
        """ρ as far as it can be known, and how: exact, bound or measured."""
        if self.expected is not None:
            if self.expected.mixing_rate is None:
                return self.expected.mixing_rate_bound, "bound"
            exact = self.expected.mixing_rate_attained
            return self.expected.mixing_rate, "exact" if exact else "bound"
        assert self.measured is not None
        rate = self.measured.mixing_rate
        # Rounding may leave a little of a gap that is not there.
        return 1.0 if rate is not None and rate > 1 - 1e-13 else rate, "measured"

    @property
    def staleness_bound(self) -> float | None:
        """1/c, where links are independent and none is ever certainly down."""
        if self.expected is None or not self.expected.lowest.min() > 0:
            return None
        return expected_staleness_bound(float(self.expected.lowest.min()))

    @cached_property
    def theorem(self) -> Theorem:
        """κ, the largest step size and Theorem 1's bound."""
        own, (rho, _) = self.constants, self.rho
        amplified = kappa(own.step_size, own.lipschitz, own.local_steps)
        if rho is None or rho == 1:
            return Theorem(amplified, None, False, None, None)
        largest = largest_step_size(rho, own.lipschitz, own.local_steps, own.beta)
        at_given, at_largest = (
            gradient_bound(
                gap=own.gap,
                step_size=step,
                local_steps=own.local_steps,
                rounds=own.rounds,
                lipschitz=own.lipschitz,
                rho=rho,
                sigma=own.sigma,
                zeta=own.zeta,
            )
            for step in (own.step_size, largest)
        )
        return Theorem(amplified, largest, own.step_size <= largest, at_given, at_largest)

    def notes(self) -> list[str]:
        """What a reader must know about these numbers, a line each."""
        found, expected = [], self.expected
        if expected is None:
            assert self.measured is not None
            found.append(
                f"these links are not known to be independent: weights, ρ and staleness are "
                f"measured from {self.measured.rounds:,} rounds, no expectations; the bounds on ρ "
                "and on staleness do not apply"
            )
        elif expected.constant:
            found.append("links are independent: expected weights, ρ and staleness are exact")
        else:
            found.append(
                "p changes over the rounds: weights are exact for the rounds together "
                "(Proposition 1 is for constant p; FedAvg ends there for small steps), ρ is the "
                "largest of any round, c the lowest p of any"
            )
            if not expected.mixing_rate_attained:
                found.append("ρ is at every client's lowest p, which no round's ρ exceeds")
        if self.clients > EXACT_CLIENTS:
            found.append(
                f"ρ itself is for up to {EXACT_CLIENTS:,} clients; "
                + ("its bound stands for it" if expected else "nothing stands for it")
            )
        rho, kind = self.rho
        if rho == 1:
            why = "a link may always be down" if expected else "not all clients ever met"
            found.append(f"ρ = 1: {why}, and Theorem 1 says nothing")
        elif rho is not None:
            found.append(self._about_the_step(kind))
        found.extend(self.remarks)
        if self.constants.assumed:
            own = ((name, getattr(self.constants, name)) for name in self.constants.assumed)
            named = ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in own)
            found.append(f"assumed, for want of better: {named}")
        return found

    def _about_the_step(self, kind: str) -> str:
        step, largest = self.constants.step_size, self.theorem.largest_step_size
        if kind == "measured":
            return (
                "the largest step size and Theorem 1's bound are for the measured ρ: the theorem "
                "needs independent links, and promises nothing here"
            )
        if self.theorem.within:
            return f"the step size {step:g} is within what Theorem 1 covers"
        return (
            f"the step size {step:g} is above the {largest:.3g} that Theorem 1 covers: there its "
            "bound is only a formula"
        )

    def rows(self) -> list[dict[str, float | int | None]]:
        """A line for each client."""
        expected, measured = self.expected, self.measured
        columns: dict[str, Any] = {
            "client": range(self.clients),
            "p": None if expected is None else expected.p,
            "share_of_rounds": None if measured is None else measured.shares,
            "uniform": np.full(self.clients, 1 / self.clients),
            "weight": None if expected is None else expected.weights,
            "measured_weight": None if measured is None else measured.weights,
            "staleness_limit": None if expected is None else expected.staleness_limit,
            "staleness": None if expected is None else expected.staleness,
            "measured_staleness": None if measured is None else measured.staleness,
        }
        filled = {k: [None] * self.clients if v is None else v for k, v in columns.items()}
        return [
            {"client": i} | {k: plain(v[i]) for k, v in filled.items() if k != "client"}
            for i in range(self.clients)
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what is not there, or not finite, is None."""
        expected, measured, own = self.expected, self.measured, self.constants
        rho, kind = self.rho
        theorem = self.theorem
        return {
            "links": self.links,
            "clients": self.clients,
            "independent": expected is not None,
            "constant": None if expected is None else expected.constant,
            "weights": {
                "uniform": 1 / self.clients,
                **{k: plain(w) for k, w in self.weights.items()},
            },
            "total_variation": self.total_variation,
            "limit": {k: plain(x) for k, x in self.limits.items()} or None,
            "rho": {
                "value": rho,
                "kind": kind,
                "bound": None if expected is None else expected.mixing_rate_bound,
                "measured": None if measured is None else measured.mixing_rate,
            },
            "staleness": {
                "bound": self.staleness_bound,
                "expected": None if expected is None else plain(expected.staleness.mean()),
                "measured": None if measured is None else plain(measured.staleness.mean()),
                "measured_max": None if measured is None else measured.staleness_max,
            },
            "theorem": {
                **{k: v for k, v in vars(own).items() if k != "assumed"},
                "assumed": list(own.assumed),
                **{k: v if isinstance(v, bool) else plain(v) for k, v in vars(theorem).items()},
            },
            "per_client": self.rows(),
            "notes": self.notes(),
        }


def plain(value: Any) -> Any:
    """Numbers as JSON has them: neither arrays nor infinities."""
    if value is None:
        return None
    if isinstance(value, np.ndarray) and value.ndim:
        return [plain(item) for item in value]
    return float(value) if math.isfinite(value) else None
