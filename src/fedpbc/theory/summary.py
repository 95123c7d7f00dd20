"""Everything that the theory says about some links, in one object."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedpbc.theory.arguments import Floats, largest_lipschitz, number, positive_integer, targets_of
from fedpbc.theory.convergence import gradient_bound, kappa, largest_step_size
from fedpbc.theory.empirical import EmpiricalLinks
from fedpbc.theory.independent_links import IndependentLinks
from fedpbc.theory.mixing import EXACT_CLIENTS, ROUNDING
from fedpbc.theory.staleness import expected_staleness_bound

__all__ = ["Constants", "Theorem", "TheorySummary"]


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The constants of Theorem 1; ``assumed`` names those that are neither given nor known."""

    step_size: float  # η
    local_steps: int  # s
    rounds: int  # T
    lipschitz: float = 1.0  # L
    sigma: float = 1.0  # σ
    zeta: float = 1.0  # ζ
    beta: float = 0.0  # β
    gap: float = 1.0  # F(x̄⁰) − F*
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        number("step_size", self.step_size, 0, above=True)
        for name in ("local_steps", "rounds"):
            positive_integer(name, getattr(self, name))
        largest_lipschitz(self.lipschitz, 1)
        for name in ("sigma", "zeta", "beta", "gap"):
            number(name, getattr(self, name), 0)


@dataclass(frozen=True)
class Theorem:
    """Theorem 1, evaluated; without a ρ below 1 it has neither a largest step size nor a bound."""

    kappa: float  # κ at the step size
    largest_step_size: float | None  # that the theorem covers
    within: bool  # whether the theorem covers the step size
    bound: float | None  # at the step size
    bound_at_largest: float | None  # at the largest step size


@dataclass(frozen=True)
class TheorySummary:
    """Everything that the theory says about some links."""

    links: str  # a description
    clients: int  # m
    expected: IndependentLinks | None  # exact expectations, if links are independent
    measured: EmpiricalLinks | None  # statistics of a timetable, if there is one
    constants: Constants  # for Theorem 1
    targets: Floats | None = None  # u_i of quadratics, [m, …], if there are any
    remarks: tuple[str, ...] = ()  # further notes for the reader

    def __post_init__(self) -> None:
        if self.targets is not None:
            object.__setattr__(self, "targets", targets_of(self.targets, self.clients))

    @property
    def weights(self) -> dict[str, Floats]:
        """Each client's weight under FedAvg: expected, measured, or both."""
        sources = {"expected": self.expected, "measured": self.measured}
        return {k: v.weights for k, v in sources.items() if v is not None and v.weights is not None}

    @property
    def total_variation(self) -> dict[str, float]:
        """The total variation distance of the weights from 1/m."""
        return {k: float(np.abs(w - 1 / self.clients).sum() / 2) for k, w in self.weights.items()}

    @property
    def limits(self) -> dict[str, Floats]:
        """The limit of FedAvg on quadratics with these targets, and the optimum."""
        if self.targets is None:
            return {}
        limits = {k: np.tensordot(w, self.targets, axes=1) for k, w in self.weights.items()}
        return {**limits, "optimum": self.targets.mean(axis=0)}

    @property
    def rho(self) -> tuple[float | None, str]:
        """ρ, and what it is: exact, bound or measured."""
        if self.expected is not None:
            if self.expected.mixing_rate is None:
                return self.expected.mixing_rate_bound, "bound"
            exact = self.expected.mixing_rate_attained
            return self.expected.mixing_rate, "exact" if exact else "bound"
        assert self.measured is not None
        rate = self.measured.mixing_rate
        # A gap this small is rounding.
        return 1.0 if rate is not None and rate > 1 - ROUNDING else rate, "measured"

    @property
    def staleness_bound(self) -> float | None:
        """1/c, if links are independent and none is ever certainly down."""
        if self.expected is None or not self.expected.lowest.min() > 0:
            return None
        return expected_staleness_bound(float(self.expected.lowest.min()))

    @cached_property
    def theorem(self) -> Theorem:
        """κ, the largest step size and the bound of Theorem 1."""
        constants, (rho, _) = self.constants, self.rho
        amplification = kappa(constants.step_size, constants.lipschitz, constants.local_steps)
        if rho is None or rho == 1:
            return Theorem(amplification, None, False, None, None)
        largest = largest_step_size(rho, constants.lipschitz, constants.local_steps, constants.beta)
        bound, bound_at_largest = (
            gradient_bound(
                gap=constants.gap,
                step_size=step_size,
                local_steps=constants.local_steps,
                rounds=constants.rounds,
                lipschitz=constants.lipschitz,
                rho=rho,
                sigma=constants.sigma,
                zeta=constants.zeta,
            )
            if step_size
            else None  # The largest step size is too small for a number.
            for step_size in (constants.step_size, largest)
        )
        within = constants.step_size <= largest
        return Theorem(amplification, largest, within, bound, bound_at_largest)

    def notes(self) -> list[str]:
        """What a reader must know about these numbers, one line each."""
        notes, expected = [], self.expected
        if expected is None:
            assert self.measured is not None
            notes.append(
                "these links are not known to be independent: weights, ρ and staleness are "
                f"measured on {self.measured.rounds:,} rounds, not expectations, and the bounds on "
                "ρ and on staleness do not apply"
            )
        elif expected.constant:
            notes.append("links are independent: expected weights, ρ and staleness are exact")
        else:
            notes.append(
                "p changes over the rounds: weights are exact for all rounds together "
                "(Proposition 1 is for constant p; FedAvg with small steps has this limit), ρ is "
                "the largest of any round, c the lowest p of any round"
            )
            if not expected.mixing_rate_attained:
                notes.append("ρ is at every client's lowest p; no round's ρ exceeds it")
        if self.clients > EXACT_CLIENTS:
            substitute = "its bound is used instead" if expected else "it is left out"
            notes.append(f"ρ is computed for up to {EXACT_CLIENTS:,} clients; {substitute}")
        rho, kind = self.rho
        if rho == 1:
            reason = "a link may always be down" if expected else "some clients were never averaged"
            notes.append(f"ρ = 1: {reason}, so Theorem 1 gives no bound")
        elif rho is not None:
            notes.append(self._step_size_note(kind))
        notes.extend(self.remarks)
        if self.constants.assumed:
            values = ((name, getattr(self.constants, name)) for name in self.constants.assumed)
            listed = ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in values)
            notes.append(f"assumed, since not given: {listed}")
        return notes

    def _step_size_note(self, kind: str) -> str:
        step_size, largest = self.constants.step_size, self.theorem.largest_step_size
        if kind == "measured":
            return (
                "the largest step size and the bound of Theorem 1 use the measured ρ: the theorem "
                "needs independent links, so they are not guarantees"
            )
        if self.theorem.within:
            return f"Theorem 1 covers the step size {step_size:g}"
        return (
            f"the step size {step_size:g} is above {largest:.3g}, the largest that Theorem 1 "
            "covers: its bound is not a guarantee there"
        )

    def rows(self) -> list[dict[str, float | int | None]]:
        """One row per client."""
        expected, measured = self.expected, self.measured
        columns: dict[str, Any] = {
            "p": None if expected is None else expected.p,
            "share_of_rounds": None if measured is None else measured.shares,
            "uniform": np.full(self.clients, 1 / self.clients),
            "weight": None if expected is None else expected.weights,
            "measured_weight": None if measured is None else measured.weights,
            "staleness_limit": None if expected is None else expected.staleness_limit,
            "staleness": None if expected is None else expected.staleness,
            "measured_staleness": None if measured is None else measured.staleness,
        }
        return [
            {"client": i} | {k: None if v is None else plain(v[i]) for k, v in columns.items()}
            for i in range(self.clients)
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: values that are missing or not finite are None."""
        expected, measured = self.expected, self.measured
        rho, kind = self.rho
        return {
            "links": self.links,
            "clients": self.clients,
            "independent": expected is not None,
            "constant": None if expected is None else expected.constant,
            "weights": {"uniform": 1 / self.clients} | plain(self.weights),
            "total_variation": self.total_variation,
            "limit": plain(self.limits) or None,
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
                **vars(self.constants),
                "assumed": list(self.constants.assumed),
                **plain(vars(self.theorem)),
            },
            "per_client": self.rows(),
            "notes": self.notes(),
        }


def plain(value: Any) -> Any:
    """A value for JSON, which has neither arrays nor infinities."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray) and value.ndim:
        return [plain(item) for item in value]
    return float(value) if math.isfinite(value) else None
