from __future__ import annotations

import numpy as np
import pytest

from fedpbc.theory import quadrature


@pytest.mark.parametrize("clients", [101, 150, 400, 1000])
@pytest.mark.parametrize("low", [0.0, 0.3, 0.999])
def test_few_nodes_do_as_well_as_half_of_all_clients(
    monkeypatch: pytest.MonkeyPatch, clients: int, low: float
) -> None:
    """5√m nodes against ⌈m/2⌉, which are exact by the degree of the polynomial."""
    p = np.random.default_rng(clients).uniform(low, 1, size=clients)
    few = quadrature.expected_shares(p), quadrature.expected_exchange(p)
    monkeypatch.setattr("math.ceil", lambda _: clients)
    all_nodes = quadrature.expected_shares(p), quadrature.expected_exchange(p)
    for one, other in zip(few, all_nodes, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-12, atol=0)
