"""The sentence of a verdict: who to choose, why, and what to know before doing so."""

from __future__ import annotations

from collections.abc import Iterator

from fedpbc.experiments.intervals import score_interval
from fedpbc.experiments.paired import Difference, Scores, difference_of
from fedpbc.experiments.score_text import between, costs_text, number_text, score_text
from fedpbc.experiments.verdict_result import Verdict
from fedpbc.text import listed

__all__ = ["sentence_of"]

MOST_SEEDS = 100
"""With a difference that needs more, nobody will wait for the answer."""

UNKNOWN = "needs the links' probabilities, which a server seldom knows"


def sentence_of(verdict: Verdict, scores: Scores, note: str) -> str:
    """All of a verdict in one sentence; ``note`` is about its baseline."""
    clauses = [_result(verdict, scores), *_caveats(verdict, scores), note]
    return "; ".join(filter(None, clauses)) + "."


def _result(verdict: Verdict, scores: Scores) -> str:
    if verdict.best is None or verdict.chosen is None:
        return _nothing(verdict)
    best, chosen, has_classes = verdict.best, verdict.chosen, verdict.has_classes
    over = f"over {len(verdict.seeds)} seeds"
    named = f"{chosen} (view {verdict.view})"
    mean = score_text(verdict.means[chosen], has_classes)
    if len(verdict.means) == 1:
        return f"there is nothing to compare {named} with: {mean}{_alone(verdict, scores)}"
    costs = _costs(verdict, chosen)
    if not verdict.noise_known:
        above = _above(verdict, chosen)
        return (
            "with one seed the noise is unknown, so this is only a hint: "
            f"{named} is highest with {mean}{above}{costs}"
        )
    if verdict.within_noise == (best,):
        above = _above(verdict, chosen) or ", and all others are clearly below it"
        return f"{named} is best: {mean} {over}{above}{costs}"
    tied = [name for name in verdict.within_noise if name != best]
    highest = f"{best} (view {verdict.views[best]}) is highest with "
    highest += score_text(verdict.means[best], has_classes)
    apart = f"{listed(tied)} cannot be told apart from it {over}"
    gamble = _gamble(verdict)
    if chosen == best:
        above = _above(verdict, best)
        why = "" if gamble else ", since none of them is clearly cheaper"
        return f"{highest}{above}; {apart}; choose {best}{why}{costs}{gamble}"
    near = "those at most half a point below it" if has_classes else "those at most 1 % worse"
    why = f"the cheapest of {near}"
    if len(verdict.cheapest) > 1:
        why = f"the highest of the cheapest among {near}"
    behind = verdict.to_best[chosen]
    if not costs:  # It is the baseline: what the highest would cost is of interest.
        costs = _costs(verdict, best, who=f"{best} costs")
    above = "" if verdict.baseline == best else _above(verdict, chosen)
    distance = f"{_distance(behind, has_classes)}{_at_worst(behind, verdict)}"
    choice = f"choose {named}, {why}: {mean}{above}, {distance}{costs}"
    return f"{highest}; {apart}; {choice}{_seeds_needed(behind)}{gamble}"


def _at_worst(behind: Difference, verdict: Verdict) -> str:
    """What the choice may lose, where its interval includes twice the margin."""
    most = -behind.interval.low if behind.interval is not None else 0.0
    if most <= 2 * verdict.margin:
        return ""
    return f", so it may lose up to {number_text(most, verdict.has_classes)}"


def _gamble(verdict: Verdict) -> str:
    """Who is cheaper still, and why it was not chosen all the same; empty if nobody is."""
    if verdict.gamble is None:
        return ""
    behind, is_best = verdict.to_best[verdict.gamble], verdict.chosen == verdict.best
    # How far the best is above the baseline was said before.
    told = is_best and verdict.gamble == verdict.baseline
    distance = "" if told else f": {_distance(behind, verdict.has_classes)}"
    cheaper = f"is cheaper{'' if is_best else ' still'}, but a gamble"
    named = f"{verdict.gamble} (view {verdict.views[verdict.gamble]})"
    return f"; {named} {cheaper}{distance}{_seeds_needed(behind)}"


def _seeds_needed(difference: Difference) -> str:
    """How many seeds would likely show a difference as large as the one that was observed."""
    if difference.tied == len(difference.seeds):
        return ""
    needed = difference.seeds_to_tell(MOST_SEEDS)
    if needed is None:
        return f"; more than {MOST_SEEDS} seeds would be needed to show so small a difference"
    return f"; about {needed} seeds would likely show whether that is real"


def _nothing(verdict: Verdict) -> str:
    if verdict.views:
        return f"there is no seed that {listed(sorted(verdict.views))} all finished"
    if verdict.baseline is None:
        return "no run finished in a view that a server could deploy"
    return "there is nothing to choose from"


def _alone(verdict: Verdict, scores: Scores) -> str:
    if not verdict.noise_known:
        return " with one seed, which says nothing about noise"
    entry = scores.find(verdict.chosen)
    values = [] if entry is None else [entry.values[s] for s in verdict.seeds]
    interval = score_interval(values, has_classes=verdict.has_classes)
    within = "" if interval is None else f", 95 % interval {between(interval, verdict.has_classes)}"
    return f" over {len(verdict.seeds)} seeds{within}"


def _above(verdict: Verdict, name: str) -> str:
    """How far it is above the baseline; empty for the baseline itself."""
    difference = verdict.differences.get(name)
    if difference is None:
        return ""
    won = f"{difference.won} of {len(difference.seeds)} seeds won"
    return f", {_distance(difference, verdict.has_classes, won)}"


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


def _costs(verdict: Verdict, name: str, who: str = "it costs") -> str:
    """What it costs relative to the baseline; empty for the baseline itself."""
    if (
        verdict.baseline is None
        or name == verdict.baseline
        or verdict.baseline not in verdict.costs
    ):
        return ""
    text = costs_text(verdict.costs[name], verdict.costs[verdict.baseline], verdict.baseline)
    return f"; {who} {text}" if text else ""


def _caveats(verdict: Verdict, scores: Scores) -> Iterator[str]:
    """What a reader must know before following the verdict."""
    best, chosen = scores.find(verdict.best), scores.find(verdict.chosen)
    if chosen is not None and chosen.needs_probabilities:
        yield f"but {chosen.name} {UNKNOWN}"
    for entry in (e for e in scores.entries if e.name in verdict.needs_probabilities):
        ahead = difference_of(entry, best)
        if ahead is not None and ahead.mean > 0:
            yield f"{entry.name} is {_distance(ahead, verdict.has_classes)}, but {UNKNOWN}"
    if verdict.noise_known:
        equal = [name for name, d in verdict.to_best.items() if d.tied == len(d.seeds)]
        if equal:
            yield f"{listed([verdict.best or '', *equal])} are equal with every seed"
        constant = [n for n, d in verdict.to_best.items() if d.constant and n not in equal]
        if constant:
            yield (
                f"the difference of {listed(constant)} is the same with every seed, so noise "
                "cannot be told from it"
            )
    if verdict.not_ranked:
        reasons = [f"{name} ({why})" for name, why in verdict.not_ranked.items()]
        yield f"not ranked: {listed(reasons)}"
