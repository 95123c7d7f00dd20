"""The verdict of a comparison: which algorithm is clearly the best, or that it is undecided.

The rule, also in docs/statistics.md:

1. Ranked are the rows with a view that a server could deploy. Not ranked, but named, are those that
   diverged or failed with a seed that another one finished, and those whose server must know the
   links' probabilities (unless there is no other). The ceiling is not mentioned.
2. The best is the one with the highest mean over the seeds that all of them finished.
3. It is clearly the best if the 95 % interval of the paired difference of every other one to it is
   below 0. Otherwise the comparison is undecided between it and those that cannot be told apart
   from it, and the verdict says how many seeds would likely decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedpbc.experiments.paired import (
    Costs,
    Difference,
    EntryScores,
    Scores,
    difference_of,
    find_baseline,
)
from fedpbc.experiments.score_text import distance_text, score_text
from fedpbc.experiments.spread import mean_of
from fedpbc.text import listed

__all__ = ["Verdict", "verdict"]

MOST_SEEDS = 100
"""With a difference that needs more, nobody will wait for the answer."""


@dataclass(frozen=True)
class Verdict:
    """What a comparison says, in parts and as one sentence.

    Attributes:
        sentence: all of it, for people.
        baseline: what ``differences`` are to; None if nothing finished.
        best: who has the highest mean, of accuracies or of minus the losses; None if nobody is
            ranked. It need not be clearly the best, see ``winner``.
        within_noise: the best, and who cannot be told apart from it, the highest first; with one
            seed only the best, since nothing is known about noise.
        view: the best one's view to deploy.
        seeds: those that all who are ranked finished.
        tuned: whether step sizes were chosen for each algorithm.
        means: of each that is ranked, over these seeds.
        views: of each that is ranked.
        to_best: each other one's paired difference to the best, over these seeds.
        differences: each row's paired difference to the baseline, over the seeds of both.
        costs: of each row.
        not_ranked: the other rows but the ceiling, each with the reason.
    """

    sentence: str = ""
    baseline: str | None = None
    best: str | None = None
    within_noise: tuple[str, ...] = ()
    view: str | None = None
    seeds: tuple[int, ...] = ()
    has_classes: bool = True
    tuned: bool = False
    means: Mapping[str, float] = field(default_factory=dict)
    views: Mapping[str, str] = field(default_factory=dict)
    to_best: Mapping[str, Difference] = field(default_factory=dict)
    differences: Mapping[str, Difference] = field(default_factory=dict)
    costs: Mapping[str, Costs] = field(default_factory=dict)
    not_ranked: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.sentence

    @property
    def noise_known(self) -> bool:
        """Whether there are several seeds."""
        return len(self.seeds) > 1

    @property
    def winner(self) -> str | None:
        """Who is clearly better than all others; None if nobody is, or there is no other."""
        alone = self.noise_known and len(self.means) > 1 and len(self.within_noise) == 1
        return self.best if alone else None

    def as_dict(self) -> dict[str, Any]:
        """For ``comparison.json``."""
        return {**asdict(self), "winner": self.winner}


def verdict(scores: Scores, baseline: str | None = None) -> Verdict:
    """Who is clearly the best, or who is ahead and how many seeds would decide.

    Args:
        baseline: the name of a row; by default FedAvg, or else the first that finished.

    Example:
        >>> from fedpbc import Quadratic, compare
        >>> links = {"name": "bernoulli", "p": 0.5}
        >>> comparison = compare(lambda seed: Quadratic([[0.0], [9.0]], seed=seed),
        ...                      ["fedavg", "mifa"], links=links, rounds=50)
        >>> found = verdict(comparison.scores())
        >>> found.winner, found.best, found.within_noise
        (None, 'mifa', ('mifa', 'fedavg'))
    """
    reference, note = find_baseline(scores, baseline)
    ranked, not_ranked = _ranked(scores)
    shared = set.intersection(*(set(e.values) for e in ranked)) if ranked else set()
    to_baseline = ((e.name, difference_of(e, reference)) for e in scores.entries if e.values)
    found = Verdict(
        baseline=None if reference is None else reference.name,
        seeds=tuple(sorted(shared)),
        has_classes=scores.has_classes,
        tuned=scores.tuned,
        views={e.name: str(e.view) for e in ranked},
        differences={name: d for name, d in to_baseline if d is not None},
        costs={e.name: e.costs for e in scores.entries if e.costs is not None},
        not_ranked=not_ranked,
    )
    if shared:
        on_seeds = {e.name: {seed: e.values[seed] for seed in found.seeds} for e in ranked}
        means = {name: mean_of([*values.values()]) for name, values in on_seeds.items()}
        # Of equal means the baseline is first: nobody is told to change to what is no better.
        order = sorted(means, key=lambda name: (-means[name], name != found.baseline, name))
        best = order[0]
        to_best = {
            name: difference
            for name in order[1:]
            if (difference := Difference.of(name, on_seeds[name], best, on_seeds[best]))
        }
        tied = [n for n, d in to_best.items() if found.noise_known and not d.clearly_below]
        found = replace(
            found,
            best=best,
            within_noise=(best, *tied),
            view=found.views[best],
            means=means,
            to_best=to_best,
        )
    return replace(found, sentence=_sentence(found, note))


def _ranked(scores: Scores) -> tuple[list[EntryScores], dict[str, str]]:
    """The rows that can be the best, and why others cannot."""
    why: dict[str, str] = {}
    candidates = []
    for entry in (e for e in scores.entries if not e.is_ceiling):
        if entry.diverged:
            why[entry.name] = f"diverged with {_seeds(entry.diverged)}"
        elif not entry.values:
            nothing = len(entry.failed) == entry.runs
            why[entry.name] = "no run finished" if nothing else "no view that a server could deploy"
        elif not entry.allowed:
            why[entry.name] = "not allowed"
        else:
            candidates.append(entry)
    known = [e for e in candidates if e.needs_probabilities]
    if len(known) < len(candidates):
        candidates = [e for e in candidates if e not in known]
        why |= {e.name: "needs the links' probabilities" for e in known}
    # Who fails where another one finishes is not ranked, however good its other seeds are; unless
    # all have failed somewhere: then the seeds that all finished must do.
    finished = {seed for e in candidates for seed in e.values}
    reliable = [e for e in candidates if finished.isdisjoint(e.failed)]
    for entry in candidates if reliable else ():
        if entry not in reliable:
            why[entry.name] = f"not finished with {_seeds(finished.intersection(entry.failed))}"
    return reliable or candidates, why


def _seeds(numbers: Any) -> str:
    texts = [str(number) for number in sorted(numbers)]
    return f"seed{'' if len(texts) == 1 else 's'} {listed(texts)}"


def _sentence(found: Verdict, note: str) -> str:
    """All of a verdict in one sentence; ``note`` is about its baseline."""
    clauses = [_result(found), note]
    if len(found.means) > 1 and not found.tuned:
        clauses.insert(1, "step sizes are untuned (the same for all)")
    if found.not_ranked:
        reasons = [f"{name} ({why})" for name, why in found.not_ranked.items()]
        clauses.append(f"not ranked: {listed(reasons)}")
    return "; ".join(filter(None, clauses)) + "."


def _result(found: Verdict) -> str:
    if found.best is None:
        if found.views:
            return f"there is no seed that {listed(sorted(found.views))} all finished"
        if found.baseline is None:
            return "no run finished in a view that a server could deploy"
        return "there is nothing to rank"
    named = f"{found.best} (view {found.view})"
    mean = score_text(found.means[found.best], found.has_classes)
    over = f"over {len(found.seeds)} seed{'s' if found.noise_known else ''}"
    if len(found.means) == 1:
        return f"there is nothing to compare {named} with: {mean} {over}"
    above = found.differences.get(found.best)
    distance = "" if above is None else f", {distance_text(above, found.has_classes)}"
    if found.winner is not None:
        return f"{named} is clearly the best: {mean} {over}{distance}"
    ahead = f"{named} is ahead with {mean}{distance}"
    if not found.noise_known:
        return f"undecided, since one seed says nothing about noise: {ahead}"
    rivals = [found.to_best[name] for name in found.within_noise[1:]]
    names = listed([rival.name for rival in rivals])
    apart = [rival for rival in rivals if rival.tied < len(rival.seeds)]
    if not apart:
        equal = "equals" if len(rivals) == 1 else "equal"
        return f"undecided {over}: {ahead}, and {names} {equal} it with every seed"
    # As many as the closest one takes.
    needed = [rival.seeds_to_tell(MOST_SEEDS) or MOST_SEEDS + 1 for rival in apart]
    few = max(needed) <= MOST_SEEDS
    seeds = f"about {max(needed)}" if few else f"more than {MOST_SEEDS}"
    return (
        f"undecided {over}: {ahead}, but {names} cannot be told apart from it, which would likely "
        f"take {seeds} seeds"
    )
