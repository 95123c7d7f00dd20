from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedpbc import theory
from fedpbc.errors import InputError
from tests.theory.cases import CONSENSUS, GRADIENT


@pytest.mark.parametrize(
    "p",
    [
        [],
        0.5,
        [[0.5]],
        [1.1],
        [-0.1, 0.5],
        [math.nan],
        [math.inf],
        ["a"],
        [[0.1], [0.1, 0.2]],
        None,
    ],
)
@pytest.mark.parametrize(
    "function",
    [
        theory.fedavg_weights,
        theory.mean_square_mixing,
        theory.mixing_rate,
        lambda p: theory.fedavg_limit(p, [1.0]),
    ],
)
def test_wrong_probabilities(function: Callable[[Any], Any], p: Any) -> None:
    with pytest.raises(InputError, match=r"^p is ") as caught:
        function(p)
    assert "\n" not in str(caught.value)


def test_no_link_ever_up_leaves_fedavg_undefined() -> None:
    with pytest.raises(InputError, match="0 for every client"):
        theory.fedavg_weights([0.0, 0.0])
    with pytest.raises(InputError, match="0 for every client"):
        theory.fedavg_limit([0.0], [1.0])


def test_the_message_names_the_client() -> None:
    with pytest.raises(InputError, match=r"p is 1\.5 for client 2, but should be a probability"):
        theory.fedavg_weights([0.1, 0.2, 1.5])


@pytest.mark.parametrize("targets", [1.0, [1.0], [1.0, math.nan], [[1.0, 2.0]], ["a", "b"]])
def test_wrong_targets(targets: Any) -> None:
    with pytest.raises(InputError, match=r"^targets is "):
        theory.fedavg_limit([0.5, 0.5], targets)


@pytest.mark.parametrize("active", [[3], [-1], [0, 0], [0.5], [True, False, True], None, ["a"]])
def test_wrong_active_clients(active: Any) -> None:
    with pytest.raises(InputError, match=r"^active is "):
        theory.mixing_matrix(active, 3)


@pytest.mark.parametrize("clients", [0, -1, 2.5, None])
def test_wrong_client_counts(clients: Any) -> None:
    with pytest.raises(InputError, match=r"^clients is "):
        theory.mixing_matrix([], clients)
    with pytest.raises(InputError, match=r"^clients is "):
        theory.mixing_rate_bound(0.5, clients)


@pytest.mark.parametrize("c", [-0.1, 1.1, math.nan, None, "a"])
def test_wrong_lowest_probabilities(c: Any) -> None:
    with pytest.raises(InputError, match=r"^c is "):
        theory.mixing_rate_bound(c, 3)
    with pytest.raises(InputError, match=r"^c is "):
        theory.expected_staleness_bound(c)


def test_a_link_that_may_never_be_up_has_no_staleness_bound() -> None:
    with pytest.raises(InputError, match="above 0 and at most 1"):
        theory.expected_staleness_bound(0)


@pytest.mark.parametrize(
    "timetable", [[], [[]], [True], [[0, 2]], [[0.5]], [[math.nan]], [["a"]], np.zeros((0, 3))]
)
def test_wrong_timetables(timetable: Any) -> None:
    with pytest.raises(InputError, match=r"^timetable is "):
        theory.staleness(timetable)


@pytest.mark.parametrize("models", [[], [1.0], [[]], [[math.inf]], [["a"]], [[1.0], [1.0, 2.0]]])
def test_wrong_models(models: Any) -> None:
    with pytest.raises(InputError, match=r"^models is "):
        theory.consensus_error(models)


@pytest.mark.parametrize("lipschitz", [[], [[1.0]], [1.0, -1.0], math.nan, "a", None])
def test_wrong_lipschitz_constants(lipschitz: Any) -> None:
    for call in (
        lambda: theory.kappa(0.1, lipschitz, 3),
        lambda: theory.largest_step_size(0.5, lipschitz, 3),
        lambda: theory.gradient_bound(**{**GRADIENT, "lipschitz": lipschitz}),
    ):
        with pytest.raises(InputError, match=r"^lipschitz is "):
            call()


def test_the_theorem_assumes_a_lipschitz_constant_of_at_least_one() -> None:
    with pytest.raises(InputError, match="L ≥ 1"):
        theory.largest_step_size(0.5, 0.9, 3)
    with pytest.raises(InputError, match="L ≥ 1"):
        theory.gradient_bound(**{**GRADIENT, "lipschitz": [0.5, 0.9]})


@pytest.mark.parametrize("rho", [1, 1.5, -0.1, math.nan, None])
def test_wrong_rates(rho: Any) -> None:
    for call in (
        lambda: theory.largest_step_size(rho, 1.0, 3),
        lambda: theory.gradient_bound(**{**GRADIENT, "rho": rho}),
        lambda: theory.consensus_bound(**{**CONSENSUS, "rho": rho}),
    ):
        with pytest.raises(InputError, match=r"^rho is "):
            call()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *[(name, bad) for name in ("step_size", "local_steps", "rounds") for bad in (0, -1, None)],
        *[
            (name, bad)
            for name in ("gap", "sigma", "zeta")
            for bad in (-1, math.nan, math.inf, "a")
        ],
        ("local_steps", 1.5),
    ],
)
def test_wrong_arguments_of_the_gradient_bound(name: str, wrong: Any) -> None:
    with pytest.raises(InputError, match=f"^{name} is "):
        theory.gradient_bound(**{**GRADIENT, name: wrong})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *[(name, bad) for name in ("step_size", "local_steps") for bad in (0, -1, None)],
        *[
            (name, bad)
            for name in ("sigma", "zeta", "beta", "mean_squared_gradient")
            for bad in (-1, math.nan, math.inf)
        ],
    ],
)
def test_wrong_arguments_of_the_consensus_bound(name: str, wrong: Any) -> None:
    with pytest.raises(InputError, match=f"^{name} is "):
        theory.consensus_bound(**{**CONSENSUS, name: wrong})


def test_wrong_arguments_of_kappa_and_the_step_size() -> None:
    with pytest.raises(InputError, match=r"^step_size is 0"):
        theory.kappa(0, 1.0, 3)
    with pytest.raises(InputError, match=r"^local_steps is 0"):
        theory.kappa(0.1, 1.0, 0)
    with pytest.raises(InputError, match=r"^local_steps is "):
        theory.largest_step_size(0.5, 1.0, 0)
    with pytest.raises(InputError, match=r"^beta is "):
        theory.largest_step_size(0.5, 1.0, 3, -1)
