"""The verdict of a comparison: who is best within noise, by how much, and what it costs.

The rule, also in docs/statistics.md:

1. Candidates are the rows with a deployable view. The ceiling is not one, nor is an algorithm whose
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

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedpbc.experiments.candidates import candidates_of, cheapest_of
from fedpbc.experiments.paired import (
    Difference,
    Scored,
    Scores,
    difference_of,
    find_baseline,
)
from fedpbc.experiments.spread import mean_of
from fedpbc.experiments.verdict_result import Verdict, margin_of
from fedpbc.experiments.verdict_text import sentence_of

__all__ = ["Verdict", "verdict"]


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
        >>> links = {"name": "bernoulli", "p": 0.5}
        >>> comparison = compare(lambda seed: Quadratic([[0.0], [9.0]], seed=seed),
        ...                      ["fedavg", "mifa"], links=links, rounds=50)
        >>> verdict(comparison).chosen, verdict(comparison).within_noise
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
        return _with_sentence(Verdict("", **parts), scores, note)
    means = {e.name: mean_of([e.values[seed] for seed in seeds]) for e in candidates}
    # Equal means: the cheaper, then the baseline, then the alphabet: the order of rows does not
    # matter, and nobody is told to change to what is no better.
    ranked = sorted(candidates, key=lambda e: (-means[e.name], e is not reference, e.name))
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
    margin = margin_of(means[best.name], scores.has_classes)
    close = [e for e in within if e is best or means[e.name] >= means[best.name] - margin]
    cheapest = cheapest_of(close)
    chosen = best if best in cheapest else cheapest[0]
    cheaper = cheapest_of(within)
    further = [e.name for e in cheaper if chosen not in cheaper and e not in close]
    unworded = Verdict(
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
    return _with_sentence(unworded, scores, note)


def _with_sentence(verdict: Verdict, scores: Scores, note: str) -> Verdict:
    return replace(verdict, sentence=sentence_of(verdict, scores, note))
