"""The verdict of a comparison: who is best within noise, by how much, and what it costs.

The rule, also in docs/statistics.md:

1. Candidates are the rows with a deployable view. The ceiling is none, nor is an algorithm whose
   server must know the links' probabilities (unless there is no other), nor one that failed with
   a seed that another finished. What is left out is named.
2. The best is the one with the highest mean over the seeds that all candidates finished.
3. Within noise are those whose paired difference to the best is not clearly below 0: the 95 %
   interval includes 0.
4. Practically equal are those of them whose mean is at most half a point below the best's. A wide
   interval alone is no evidence of equality: what few seeds cannot tell apart may well be worse.
5. The cheapest of these is the choice: the fewest local steps, then bytes up and down, then models
   on the server, then on a client. What costs less than 10 % more than the least counts as equal;
   among equals the higher mean decides.
6. What is cheaper still and within noise, but further below the best, is named as a gamble, with
   what it may lose and how many seeds would likely settle it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedpbc.experiments.candidates import candidates_of, cheapest_of
from fedpbc.experiments.intervals import score_interval
from fedpbc.experiments.paired import (
    Costs,
    Difference,
    Scored,
    Scores,
    difference_of,
    find_baseline,
)
from fedpbc.experiments.score_text import between, costs_text, listed, number_text, score_text
from fedpbc.experiments.spread import mean_of

__all__ = ["Verdict", "verdict"]

MARGIN = 0.005
"""Half a point of accuracy: what is further below the best is not chosen for its price. Of what is
within noise, nothing further below could have an interval that excludes a loss of a whole point."""
LOSS_MARGIN = 0.01
"""The same for losses, as a part of the best."""
MOST_SEEDS = 100
"""With a difference that needs more, nobody will wait for the answer."""

UNKNOWN = "needs the links' probabilities, which a server seldom knows"


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

    def as_dict(self) -> dict[str, Any]:
        """For ``comparison.json``."""
        return asdict(self)


def verdict(
    comparison: Scored,
    *,
    baseline: str | None = None,
    allowed: Callable[[Any], bool] | None = None,
) -> Verdict:
    """Who is best within noise, by how much over a baseline, and what it costs.

    Args:
        baseline: the name of a row; by default FedAvg, or else the first that finished.
        allowed: restricts the choice: whether a row (one view of one algorithm) may be chosen.

    Example:
        >>> from fedpbc import Quadratic, compare
        >>> found = compare(lambda seed: Quadratic([[0.0], [9.0]], seed=seed),
        ...                 ["fedavg", "mifa"], links={"name": "bernoulli", "p": 0.5}, rounds=50)
        >>> verdict(found).chosen, verdict(found).within_noise
        ('mifa', ('mifa', 'fedavg'))
    """
    scores = comparison.scores(allowed)
    reference, note = find_baseline(scores, baseline)
    candidates, left_out = candidates_of(scores)
    shared = set.intersection(*(set(e.values) for e in candidates)) if candidates else set()
    seeds = tuple(sorted(shared))
    finished = [e for e in scores.entries if e.costs is not None]
    to_baseline = ((e.name, difference_of(e, reference)) for e in finished)
    parts: dict[str, Any] = {
        "baseline": None if reference is None else reference.name,
        "seeds": seeds,
        "noise_known": len(seeds) > 1,
        "has_classes": scores.has_classes,
        "views": {e.name: e.view for e in candidates},
        "differences": {name: d for name, d in to_baseline if d is not None},
        "costs": {e.name: e.costs for e in finished},
        "needs_probabilities": tuple(
            e.name for e in scores.entries if e.needs_probabilities and e not in candidates
        ),
        "not_ranked": left_out,
    }
    if not seeds:
        return _worded(Verdict("", **parts), scores, note)
    means = {e.name: mean_of([e.values[seed] for seed in seeds]) for e in candidates}
    # Equal means: the cheaper, then the alphabet, so that the order of rows does not matter.
    ranked = sorted(candidates, key=lambda e: (-means[e.name], e.name))
    best = cheapest_of([e for e in ranked if means[e.name] == means[ranked[0].name]])[0]
    on_seeds = {e.name: {seed: e.values[seed] for seed in seeds} for e in candidates}
    to_best = {
        e.name: difference
        for e in ranked
        if e is not best
        if (difference := Difference.of(e.name, on_seeds[e.name], best.name, on_seeds[best.name]))
        is not None
    }
    within = [best]
    if len(seeds) > 1:
        within += [e for e in ranked if e is not best and not to_best[e.name].clearly_below]
    margin = _margin(means[best.name], scores.has_classes)
    close = [e for e in within if e is best or means[e.name] >= means[best.name] - margin]
    cheapest = cheapest_of(close)
    chosen = best if best in cheapest else cheapest[0]
    cheaper = cheapest_of(within)
    further = [e.name for e in cheaper if chosen not in cheaper and e not in close]
    found = Verdict(
        "",
        best=best.name,
        within_noise=tuple(e.name for e in within),
        close=tuple(e.name for e in close),
        cheapest=tuple(e.name for e in cheapest),
        chosen=chosen.name,
        gamble=further[0] if further else None,
        view=chosen.view,
        means=means,
        to_best=to_best,
        **parts,
    )
    return _worded(found, scores, note)


def _margin(best: float, has_classes: bool) -> float:
    return MARGIN if has_classes else LOSS_MARGIN * abs(best)


def _worded(found: Verdict, scores: Scores, note: str) -> Verdict:
    """The same with its sentence."""
    clauses = [_result(found, scores), *_asides(found, scores), note]
    return replace(found, sentence="; ".join(filter(None, clauses)) + ".")


def _result(found: Verdict, scores: Scores) -> str:
    if found.best is None or found.chosen is None:
        return _nothing(found, scores)
    best, chosen, has_classes = found.best, found.chosen, found.has_classes
    over = f"over {len(found.seeds)} seeds"
    named = f"{chosen} (view {found.view})"
    mean = score_text(found.means[chosen], has_classes)
    if len(found.means) == 1:
        return f"there is nothing to compare {named} with: {mean}{_alone(found, scores)}"
    costs = _costs(found, chosen)
    if not found.noise_known:
        above = _above(found, chosen)
        return (
            "from one seed nothing can be told about noise, so this is no more than a hint: "
            f"{named} is highest with {mean}{above}{costs}"
        )
    if found.within_noise == (best,):
        above = _above(found, chosen) or ", and all others are clearly below it"
        return f"{named} is best: {mean} {over}{above}{costs}"
    tied = [name for name in found.within_noise if name != best]
    highest = f"{best} (view {found.views[best]}) is highest with "
    highest += score_text(found.means[best], has_classes)
    apart = f"{listed(tied)} cannot be told apart from it {over}"
    gamble = _gamble(found)
    if chosen == best:
        above = _above(found, best)
        why = "" if gamble else ", since none of them is clearly cheaper"
        return f"{highest}{above}; {apart}; choose {best}{why}{costs}{gamble}"
    near = "those at most half a point below it" if has_classes else "those at most 1 % worse"
    why = f"the cheapest of {near}"
    if len(found.cheapest) > 1:
        why = f"the highest of the cheapest among {near}"
    behind = found.to_best[chosen]
    if not costs:  # It is the baseline: what the highest would cost is of interest.
        costs = _costs(found, best, who=f"{best} costs")
    above = "" if found.baseline == best else _above(found, chosen)
    distance = f"{_distance(behind, has_classes)}{_at_worst(behind, found)}"
    choice = f"choose {named}, {why}: {mean}{above}, {distance}{costs}"
    return f"{highest}; {apart}; {choice}{_seeds_needed(behind)}{gamble}"


def _at_worst(behind: Difference, found: Verdict) -> str:
    """What the choice may lose, where its interval includes twice the margin."""
    most = -behind.interval.low if behind.interval is not None else 0.0
    if found.best is None or most <= 2 * _margin(found.means[found.best], found.has_classes):
        return ""
    return f", so it may lose up to {number_text(most, found.has_classes)}"


def _gamble(found: Verdict) -> str:
    """Who is cheaper still, and why it was not chosen all the same; empty if nobody is."""
    if found.gamble is None:
        return ""
    behind, is_best = found.to_best[found.gamble], found.chosen == found.best
    # How far the best is above the baseline was said before.
    told = is_best and found.gamble == found.baseline
    distance = "" if told else f": {_distance(behind, found.has_classes)}"
    cheaper = f"is cheaper{'' if is_best else ' still'}, but a gamble"
    named = f"{found.gamble} (view {found.views[found.gamble]})"
    return f"; {named} {cheaper}{distance}{_seeds_needed(behind)}"


def _seeds_needed(difference: Difference) -> str:
    """How many seeds would likely show a difference as large as the one that was observed."""
    if difference.tied == len(difference.seeds):
        return ""
    needed = difference.seeds_to_tell(MOST_SEEDS)
    if needed is None:
        return f"; more than {MOST_SEEDS} seeds would be needed to show so small a difference"
    return f"; about {needed} seeds would likely show whether that is real"


def _nothing(found: Verdict, scores: Scores) -> str:
    if found.views:
        return f"there is no seed that {listed(sorted(found.views))} all finished"
    if found.baseline is None:
        return "no run finished in a view that a server could deploy"
    return "there is nothing to choose from"


def _alone(found: Verdict, scores: Scores) -> str:
    if not found.noise_known:
        return " with one seed, which says nothing about noise"
    entry = scores.find(found.chosen)
    values = [] if entry is None else [entry.values[s] for s in found.seeds]
    interval = score_interval(values, has_classes=found.has_classes)
    within = "" if interval is None else f", 95 % interval {between(interval, found.has_classes)}"
    return f" over {len(found.seeds)} seeds{within}"


def _above(found: Verdict, name: str) -> str:
    """How far it is above the baseline; empty for the baseline itself."""
    difference = found.differences.get(name)
    if difference is None:
        return ""
    won = f"{difference.won} of {len(difference.seeds)} seeds won"
    return f", {_distance(difference, found.has_classes, won)}"


def _distance(difference: Difference, has_classes: bool, more: str = "") -> str:
    """How far something is above or below another, with the interval of just that."""
    way, interval = "above" if has_classes else "better than", difference.interval
    if difference.mean < 0:
        way = "below" if has_classes else "worse than"
        interval = interval and interval.negated()
    text = f"{_size(difference, has_classes)} {way} {difference.baseline}"
    if interval is None:
        return text
    parts = [f"95 % interval {between(interval, has_classes)}", more]
    return f"{text} ({', '.join(filter(None, parts))})"


def _size(difference: Difference, has_classes: bool) -> str:
    size = number_text(abs(difference.mean), has_classes)
    return f"{size} points" if has_classes else f"{size} in loss"


def _costs(found: Verdict, name: str, who: str = "it costs") -> str:
    """What it costs relative to the baseline; empty for the baseline itself."""
    if found.baseline is None or name == found.baseline or found.baseline not in found.costs:
        return ""
    text = costs_text(found.costs[name], found.costs[found.baseline], found.baseline)
    return f"; {who} {text}" if text else ""


def _asides(found: Verdict, scores: Scores) -> Iterator[str]:
    """What a reader must know before following the verdict."""
    best, chosen = scores.find(found.best), scores.find(found.chosen)
    if chosen is not None and chosen.needs_probabilities:
        yield f"but {chosen.name} {UNKNOWN}"
    for entry in (e for e in scores.entries if e.name in found.needs_probabilities):
        ahead = difference_of(entry, best)
        if ahead is not None and ahead.mean > 0:
            yield f"{entry.name} is {_distance(ahead, found.has_classes)}, but {UNKNOWN}"
    if found.noise_known:
        equal = [name for name, d in found.to_best.items() if d.tied == len(d.seeds)]
        if equal:
            yield f"{listed([found.best or '', *equal])} are equal with every seed"
        constant = [n for n, d in found.to_best.items() if d.constant and n not in equal]
        if constant:
            yield (
                f"the difference of {listed(constant)} is the same with every seed, so noise "
                "cannot be told from it"
            )
    if found.not_ranked:
        reasons = [f"{name} ({why})" for name, why in found.not_ranked.items()]
        yield f"not ranked: {listed(reasons)}"
