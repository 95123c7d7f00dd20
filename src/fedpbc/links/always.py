"""All links up in every round."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedpbc.links.scheme import Probabilities, Row, Setting, link_scheme

__all__ = ["always"]


@link_scheme(independent=True)
def always(setting: Setting) -> Iterator[tuple[Row, Probabilities]]:
    """Every link is up in every round: an upper reference."""
    up, p = np.ones(setting.clients, dtype=np.bool_), np.ones(setting.clients)
    for _ in range(setting.rounds):
        yield up, p
