"""Refuses uploads that are far larger than those of others: finite, but of no use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

__all__ = ["NormBound"]

RECENT = 100
"""How many norms of each vector are remembered."""
ENOUGH = 3
"""With fewer norms there is no telling which of them is the strange one."""


class NormBound:
    """A bound on the norm of what is uploaded, per round of local work.

    Attributes:
        factor: how many times the median of the last norms is allowed; 0 disables it.
        largest: the largest norm allowed at all; 0 disables it.

    Example:
        >>> bound = NormBound(factor=10.0, largest=0.0)
        >>> bound.count([{"model": 1.0}, {"model": 2.0}, {"model": 3.0}])
        >>> bound.problem({"model": 25.0}, [])
        'the norm of model is 25 per round, above 20'
        >>> bound.problem({"model": 15.0}, []) is None
        True
    """

    def __init__(self, factor: float, largest: float) -> None:
        self.factor, self.largest = factor, largest
        self._recent: dict[str, list[float]] = {}

    def problem(
        self, norms: Mapping[str, float], current: Sequence[Mapping[str, float]]
    ) -> str | None:
        """Why an upload with these norms is refused; ``current`` are all uploads of its round."""
        for name, norm in norms.items():
            bound = self._bound(name, [each[name] for each in current if name in each])
            if norm > bound:
                return f"the norm of {name} is {norm:.3g} per round, above {bound:.3g}"
        return None

    def _bound(self, name: str, current: list[float]) -> float:
        bound = self.largest or float("inf")
        known = self._recent.get(name) or current
        if self.factor and len(known) >= ENOUGH and (usual := median(known)) > 0:
            bound = min(bound, self.factor * usual)
        return bound

    def count(self, uploads: Sequence[Mapping[str, float]]) -> None:
        """Remember the norms of the uploads that a round counted."""
        for norms in uploads:
            for name, norm in norms.items():
                self._recent[name] = [*self._recent.get(name, []), norm][-RECENT:]

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {name: list(norms) for name, norms in self._recent.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state`."""
        self._recent = {str(name): list(map(float, norms)) for name, norms in state.items()}
