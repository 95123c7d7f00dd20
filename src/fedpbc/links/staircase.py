"""Independent links whose probability has two steps: p_i, then low·p_i, half a period each.

Xiang, Ioannidis, Yeh, Joe-Wong, Su: Efficient Federated Learning against Heterogeneous and
Non-stationary Client Unavailability, NeurIPS 2024 (FedAWE).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from annotated_types import Ge, Le

from fedpbc.links.scheme import Probabilities, Row, Setting, link_scheme

__all__ = ["staircase"]


@link_scheme(independent=True)
def staircase(
    setting: Setting,
    *,
    low: Annotated[float, Ge(0), Le(1)] = 0.4,
    period: Annotated[float, Ge(1)] = 20.0,
) -> Iterator[tuple[Row, Probabilities]]:
    """Independent, with probability p_i in one half of each period and low·p_i in the other.

    ``period`` is in rounds, and begins with p_i; ``low`` is the factor of its second half.

    Example:
        >>> setting = Setting(seed=1, clients=1, rounds=6, base_probabilities=[0.5])
        >>> [float(p[0]) for up, p in staircase(setting, period=4.0)]
        [0.5, 0.5, 0.2, 0.2, 0.5, 0.5]
    """
    lowered = low * setting.p
    for t in range(setting.rounds):
        p = setting.p if t % period < period / 2 else lowered
        yield setting.uniform(t) < p, p
