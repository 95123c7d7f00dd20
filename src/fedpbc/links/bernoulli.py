"""Independent links with constant probabilities: up in round t with probability p_i."""

from __future__ import annotations

from collections.abc import Iterator

from fedpbc.links.scheme import Probabilities, Row, Setting, link_scheme

__all__ = ["bernoulli"]


@link_scheme(independent=True)
def bernoulli(setting: Setting) -> Iterator[tuple[Row, Probabilities]]:
    """Independent in every round, with probability p_i."""
    for t in range(setting.rounds):
        yield setting.uniform(t) < setting.p, setting.p
