"""Which rows of a comparison a verdict can choose, and which of them cost the least."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedpbc.experiments.paired import Costs, EntryScores, Scores
from fedpbc.text import listed

__all__ = ["MORE", "candidates_of", "cheapest_of"]

MORE = 10
"""Percent; what costs less than that more than the least counts as equal."""
CRITERIA: Sequence[Callable[[Costs], int | None]] = (
    lambda costs: costs.local_steps,
    lambda costs: costs.bytes_sent,
    lambda costs: costs.models_on_server,
    lambda costs: costs.models_on_client,
)
"""What is cheaper, the most important first."""


def candidates_of(scores: Scores) -> tuple[list[EntryScores], dict[str, str]]:
    """The rows that can be chosen, and why others cannot; the ceiling is not mentioned."""
    left_out: dict[str, str] = {}
    candidates = []
    for entry in scores.entries:
        if entry.is_ceiling:
            continue
        if not entry.values:
            nothing = len(entry.failed) == entry.runs
            why = "no run finished" if nothing else "no view that a server could deploy"
            left_out[entry.name] = why
        elif not entry.allowed:
            left_out[entry.name] = "not allowed"
        else:
            candidates.append(entry)
    # A server seldom knows how likely each client's link is to be up in a round.
    candidates = [e for e in candidates if not e.needs_probabilities] or candidates
    # An algorithm that fails where another finishes cannot be chosen, however good its other seeds
    # are; unless all have failed somewhere: then the seeds that all finished must do.
    finished = {seed for e in candidates for seed in e.values}
    reliable = [e for e in candidates if finished.isdisjoint(e.failed)]
    for entry in candidates if reliable else ():
        if entry not in reliable:
            numbers = sorted(finished.intersection(entry.failed))
            seeds = f"seed{'' if len(numbers) == 1 else 's'} {listed(list(map(str, numbers)))}"
            left_out[entry.name] = f"not finished with {seeds}"
    return reliable or candidates, left_out


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
