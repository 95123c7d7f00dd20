from __future__ import annotations

import math

import numpy as np
import pytest

from fedpbc import theory
from tests.theory.cases import CONSENSUS


def test_consensus_error_by_hand() -> None:
    assert theory.consensus_error([[1.0, 2.0]]) == 0
    assert theory.consensus_error(np.full((5, 3), 0.1)) == pytest.approx(0, abs=1e-30)
    assert theory.consensus_error([[1, 0], [-1, 0], [0, 3], [0, -3]]) == 5


def test_consensus_error_of_single_precision_models_keeps_its_digits() -> None:
    models = np.array([[1e4], [1e4 + 1 / 128]], dtype=np.float32)
    assert theory.consensus_error(models) == 1 / 256**2


def test_consensus_error_is_the_papers_matrix_form() -> None:
    models = np.random.default_rng(0).normal(size=(6, 4))
    centring = np.eye(6) - np.full((6, 6), 1 / 6)
    expected = np.linalg.norm(models.T @ centring) ** 2 / 6
    assert theory.consensus_error(models) == pytest.approx(expected, rel=1e-13)


def test_consensus_bound_by_hand() -> None:
    # ρη²s²/(1-√ρ)² = 0.25·0.0009/0.25; times 12 + 54·4 + 54·10·0.5
    assert theory.consensus_bound(**CONSENSUS) == pytest.approx(0.0009 * 498, rel=1e-13)
    assert theory.consensus_bound(**{**CONSENSUS, "rho": 0.0}) == 0


def test_fedpbc_on_quadratics_stays_within_both_bounds() -> None:
    """Exact gradients on ½‖x − u_i‖²: L = 1, σ = 0, and ∇F_i − ∇F = ū − u_i, so β = 0."""
    rng = np.random.default_rng(1)
    m, steps, rounds, p = 10, 3, 2000, np.linspace(0.2, 0.9, 10)
    targets = rng.normal(size=(m, 4)) + np.arange(m)[:, None]
    centre = targets.mean(axis=0)
    zeta = math.sqrt(np.square(targets - centre).sum(axis=1).mean())
    rho = theory.mixing_rate(p)
    step = theory.largest_step_size(rho, 1.0, steps)
    models, errors, gradients = np.zeros((m, 4)), [], []
    for active in rng.random((rounds, m)) < p:
        errors.append(theory.consensus_error(models))
        gradients.append(float(np.square(models.mean(axis=0) - centre).sum()))
        models = targets + (1 - step) ** steps * (models - targets)
        models = theory.mixing_matrix(np.flatnonzero(active).tolist(), m) @ models
    assert np.mean(gradients) <= theory.gradient_bound(
        gap=gradients[0] / 2,
        step_size=step,
        local_steps=steps,
        rounds=rounds,
        lipschitz=1.0,
        rho=rho,
        sigma=0.0,
        zeta=zeta,
    )
    assert np.mean(errors) <= theory.consensus_bound(
        step_size=step,
        local_steps=steps,
        rho=rho,
        sigma=0.0,
        zeta=zeta,
        beta=0.0,
        mean_squared_gradient=float(np.mean(gradients)),
    )
