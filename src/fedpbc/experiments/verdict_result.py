"""What a verdict holds; the rule that decides it is in ``verdict.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedpbc.experiments.paired import Costs, Difference

__all__ = ["MARGIN", "Verdict", "margin_of"]

MARGIN = 0.005
"""Half a point of accuracy: what is further below the best is not chosen for its price. Of what is
within noise, nothing further below could have an interval that excludes a loss of a whole point."""
LOSS_MARGIN = 0.01
"""The same for losses, as a part of the best."""


@dataclass(frozen=True)
class Verdict:
    """What a comparison says, in parts and as one sentence.

    Attributes:
        sentence: all of it, for people.
        baseline: what ``differences`` are to; None if nothing finished.
        best: the candidate with the highest mean; None if there is none.
        within_noise: the best, and who is not clearly below it, the highest first; with one seed
            only the best, since nothing is known about noise.
        close: those of them that are at most half a point below the best; practically equal.
        cheapest: those of ``close`` that cost the least.
        chosen: the highest of these.
        gamble: who is within noise and cheaper than the choice, but further below the best; None
            if there is none.
        view: the view of the choice to deploy.
        seeds: those that all candidates finished.
        noise_known: whether there are several seeds.
        means: of each candidate, over these seeds.
        views: of each candidate.
        to_best: each other candidate's paired difference to the best, over these seeds.
        differences: each row's paired difference to the baseline, over the seeds of both.
        costs: of each row.
        needs_probabilities: rows that could not be chosen, since a server does not know the
            links' probabilities.
        not_ranked: other rows that could not be chosen, each with the reason.
    """

    sentence: str
    baseline: str | None
    best: str | None = None
    within_noise: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    cheapest: tuple[str, ...] = ()
    chosen: str | None = None
    gamble: str | None = None
    view: str | None = None
    seeds: tuple[int, ...] = ()
    noise_known: bool = False
    has_classes: bool = True
    means: Mapping[str, float] = field(default_factory=dict)
    views: Mapping[str, str] = field(default_factory=dict)
    to_best: Mapping[str, Difference] = field(default_factory=dict)
    differences: Mapping[str, Difference] = field(default_factory=dict)
    costs: Mapping[str, Costs] = field(default_factory=dict)
    needs_probabilities: tuple[str, ...] = ()
    not_ranked: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.sentence

    @property
    def margin(self) -> float:
        """How far below the best a mean may be to be practically equal."""
        return 0.0 if self.best is None else margin_of(self.means[self.best], self.has_classes)

    def as_dict(self) -> dict[str, Any]:
        """For ``comparison.json``."""
        return asdict(self)


def margin_of(best: float, has_classes: bool) -> float:
    """How far below this mean of the best another one may be to be practically equal."""
    return MARGIN if has_classes else LOSS_MARGIN * abs(best)
