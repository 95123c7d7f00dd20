"""Which algorithm to recommend of those that a comparison cannot tell apart: the cheapest near the
best.

A verdict leaves it undecided; who asks for advice has to run something. Within noise alone would
not do: what few seeds cannot tell apart may well be worse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedpbc.experiments.paired import Costs, EntryScores, Scores
from fedpbc.experiments.verdict import Verdict

__all__ = ["MARGIN", "Choice", "cheapest_of", "choose"]

MARGIN = 0.005
"""Half a point of accuracy: what is further below the best is not chosen for its price. Of what is
within noise, nothing further below could have an interval that excludes a loss of a whole point."""
LOSS_MARGIN = 0.01
"""The same for losses, as a part of the best."""
MORE = 10
"""Percent; what costs less than that more than the least counts as equal."""
CRITERIA: Sequence[Callable[[Costs], int | None]] = (
    lambda costs: costs.local_steps,
    lambda costs: costs.bytes_sent,
    lambda costs: costs.models_on_server,
    lambda costs: costs.models_on_client,
)
"""What is cheaper, the most important first."""


@dataclass(frozen=True)
class Choice:
    """Who is chosen, and who is practically equal to the best: within noise and the margin."""

    name: str
    close: tuple[str, ...]


def choose(verdict: Verdict, scores: Scores) -> Choice | None:
    """The best, or the cheapest of those practically equal to it; None if nobody is ranked."""
    if verdict.best is None:
        return None
    highest = verdict.means[verdict.best]
    margin = MARGIN if verdict.has_classes else LOSS_MARGIN * abs(highest)
    close = [
        name
        for name in verdict.within_noise
        if name == verdict.best or verdict.means[name] >= highest - margin
    ]
    entries = [entry for name in close if (entry := scores.find(name)) is not None]
    cheapest = [entry.name for entry in cheapest_of(entries)]
    return Choice(verdict.best if verdict.best in cheapest else cheapest[0], tuple(close))


def cheapest_of(entries: Sequence[EntryScores]) -> list[EntryScores]:
    """Those that cost the least, by one criterion after another."""
    for cost in CRITERIA:
        counts = [None if e.costs is None else cost(e.costs) for e in entries]
        known = [count for count in counts if count is not None]
        if len(known) < len(counts):
            continue  # It was not counted for all, so it decides nothing.
        least = min(known)
        pairs = zip(entries, known, strict=True)
        entries = [e for e, count in pairs if count == least or 100 * count < (100 + MORE) * least]
    return list(entries)
