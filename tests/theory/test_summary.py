from __future__ import annotations

import json
import math

import numpy as np
import pytest

from fedpbc import theory
from fedpbc.errors import InputError
from fedpbc.theory.empirical import EmpiricalLinks
from fedpbc.theory.independent_links import IndependentLinks
from fedpbc.theory.summary import Constants, TheorySummary

CONSTANTS = Constants(step_size=0.1, local_steps=2, rounds=100)
P = np.array([0.5, 0.25])
TABLE = np.array([[1, 0], [1, 1], [0, 0], [0, 1]], dtype=bool)


def probability_summary(p: np.ndarray = P, **options: object) -> TheorySummary:
    return TheorySummary(
        "p", len(p), IndependentLinks.from_probabilities([p] * 100), None, CONSTANTS, **options
    )


def table_summary(**options: object) -> TheorySummary:
    return TheorySummary("table", 2, None, EmpiricalLinks.from_rows(TABLE), CONSTANTS, **options)


def test_weights_and_limits_of_probabilities_by_hand() -> None:
    summary = probability_summary(targets=np.array([0.0, 100.0]))
    np.testing.assert_allclose(summary.weights["expected"], [0.7, 0.3], rtol=1e-14)
    assert summary.total_variation == {"expected": pytest.approx(0.2, rel=1e-13)}
    assert float(summary.limits["expected"]) == pytest.approx(30, rel=1e-14)
    assert float(summary.limits["optimum"]) == 50
    assert summary.rho == (pytest.approx(1 - 0.125), "exact")
    assert summary.staleness_bound == 4


def test_a_timetable_is_measured_and_its_bounds_do_not_apply() -> None:
    summary = table_summary(targets=np.array([[0.0, 1.0], [100.0, 1.0]]))
    # 1, 1/2 and 0 of the three rounds that were not empty.
    np.testing.assert_allclose(summary.weights["measured"], [0.5, 0.5])
    assert summary.total_variation == {"measured": 0}
    np.testing.assert_allclose(summary.limits["measured"], [50, 1])
    assert summary.rho == (pytest.approx(1 - 2 * 0.5 / 4), "measured")
    assert summary.staleness_bound is None
    assert any("not known to be independent" in note for note in summary.notes())
    assert any("not guarantees" in note for note in summary.notes())


def test_the_theorem_agrees_with_the_functions() -> None:
    rho = theory.mixing_rate(P)
    summary = probability_summary().theorem
    assert summary.kappa == theory.kappa(0.1, 1.0, 2) == 1
    assert summary.largest_step_size == theory.largest_step_size(rho, 1.0, 2)
    assert not summary.within
    arguments = {"gap": 1.0, "local_steps": 2, "rounds": 100, "lipschitz": 1.0, "rho": rho}
    arguments |= {"sigma": 1.0, "zeta": 1.0}
    assert summary.bound == theory.gradient_bound(step_size=0.1, **arguments)
    largest = theory.largest_step_size(rho, 1.0, 2)
    assert summary.bound_at_largest == theory.gradient_bound(step_size=largest, **arguments)


def test_the_note_says_whether_the_step_size_is_covered() -> None:
    small = Constants(step_size=1e-6, local_steps=2, rounds=100)
    summary = TheorySummary("p", 2, IndependentLinks.from_probabilities([P]), None, small)
    assert summary.theorem.within
    assert any("Theorem 1 covers the step size" in note for note in summary.notes())
    assert any("is above" in note for note in probability_summary().notes())


def test_a_link_that_is_never_up_leaves_no_bound() -> None:
    summary = probability_summary(np.array([0.5, 0.0]))
    assert summary.rho[0] == 1
    assert summary.theorem.largest_step_size is None
    assert summary.theorem.bound is None
    assert summary.staleness_bound is None
    assert any("Theorem 1 gives no bound" in note for note in summary.notes())
    assert json.loads(json.dumps(summary.as_dict(), allow_nan=False))["staleness"]["bound"] is None


def test_varying_links_are_noted() -> None:
    varying = IndependentLinks.from_probabilities([np.array([0.2, 0.9]), np.array([0.9, 0.2])])
    notes = TheorySummary("p", 2, varying, None, CONSTANTS).notes()
    assert any("p changes over the rounds" in note for note in notes)
    assert any("no round's ρ exceeds" in note for note in notes)
    assert TheorySummary("p", 2, varying, None, CONSTANTS).rho[1] == "bound"


def test_many_clients_are_bounded() -> None:
    summary = probability_summary(np.full(1001, 0.5))
    assert summary.rho == (theory.mixing_rate_bound(0.5, 1001), "bound")
    assert any("up to 1,000 clients" in note for note in summary.notes())
    assert summary.theorem.largest_step_size > 0
    many = EmpiricalLinks.from_rows(np.ones((2, 1001), dtype=bool), mixing=False)
    table = TheorySummary("table", 1001, None, many, CONSTANTS)
    assert table.rho == (None, "measured")
    assert table.theorem.bound is None


def test_assumed_constants_are_noted() -> None:
    constants = Constants(step_size=0.1, local_steps=2, rounds=9, assumed=("sigma", "local_steps"))
    notes = TheorySummary(
        "p", 2, IndependentLinks.from_probabilities([P]), None, constants, remarks=("and this",)
    ).notes()
    assert "and this" in notes
    assert notes[-1] == "assumed, since not given: sigma 1, local-steps 2"


def test_json_has_everything_and_no_infinities() -> None:
    table = table_summary()
    both = TheorySummary(
        "both",
        2,
        IndependentLinks.from_probabilities([P] * 4),
        EmpiricalLinks.from_rows(TABLE),
        CONSTANTS,
        np.ones((2, 3)),
    )
    for summary in (probability_summary(), table, both, probability_summary(np.zeros(3))):
        line = json.loads(json.dumps(summary.as_dict(), allow_nan=False))
        assert line["clients"] == summary.clients == len(line["per_client"])
        assert line["notes"]
    assert line["weights"] == {"uniform": 1 / 3}
    assert both.as_dict()["limit"]["optimum"] == [1, 1, 1]
    assert math.isclose(sum(both.as_dict()["weights"]["expected"]), 1)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *[(name, bad) for name in ("step_size", "local_steps", "rounds") for bad in (0, -1)],
        *[(name, bad) for name in ("sigma", "zeta", "beta", "gap") for bad in (-1, math.nan)],
        ("lipschitz", 0.5),
    ],
)
def test_wrong_constants(name: str, wrong: float) -> None:
    arguments = {"step_size": 0.1, "local_steps": 2, "rounds": 9, name: wrong}
    with pytest.raises(InputError, match=f"^{name} is "):
        Constants(**arguments)


@pytest.mark.parametrize("targets", [np.ones(3), np.array(1.0), np.array([1.0, math.nan])])
def test_wrong_targets(targets: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"^targets is "):
        probability_summary(targets=targets)
