"""Independent links whose probability follows a sine, and is 0 wherever that is below a threshold.

v = p_i · [(1 − γ) + γ·sin(2πt/P)], and p_i^t = v if v ≥ cut, else 0: of rarely active clients, only
the crests of the sine remain.

Xiang, Ioannidis, Yeh, Joe-Wong, Su: Efficient Federated Learning against Heterogeneous and
Non-stationary Client Unavailability, NeurIPS 2024 (FedAWE).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from annotated_types import Ge, Le

from fedpbc.links.probabilities import varying
from fedpbc.links.scheme import Probabilities, Row, Setting, link_scheme

__all__ = ["interleaved_sine"]


@link_scheme(independent=True)
def interleaved_sine(
    setting: Setting,
    *,
    gamma: Annotated[float, Ge(0), Le(1)] = 0.3,
    period: Annotated[float, Ge(1)] = 20.0,
    cut: Annotated[float, Ge(0), Le(1)] = 0.1,
) -> Iterator[tuple[Row, Probabilities]]:
    """Independent, with a probability that follows a sine and is 0 wherever it is below a cut.

    ``gamma`` is γ, the share of p_i that varies; ``period`` is P, in rounds; ``cut`` is the
    smallest probability that is not set to 0.

    Example:
        >>> setting = Setting(seed=1, clients=2, rounds=16, base_probabilities=[0.5, 0.2])
        >>> [p.round(2).tolist() for up, p in interleaved_sine(setting)][::5]
        [[0.35, 0.14], [0.5, 0.2], [0.35, 0.14], [0.2, 0.0]]
    """
    for t in range(setting.rounds):
        p = varying(setting.p, t, gamma, period)
        p *= p >= cut  # by a factor of 0 or 1: faster than by a mask
        yield setting.uniform(t) < p, p
