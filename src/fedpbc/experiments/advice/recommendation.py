"""From a tuned, paired comparison to a recommendation, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedpbc.experiments.advice.choice import MARGIN, Choice, choose
from fedpbc.experiments.advice.constraints import Constraints
from fedpbc.experiments.advice.request import BASELINE
from fedpbc.experiments.comparison import Comparison, ComparisonRow
from fedpbc.experiments.intervals import Interval, score_interval
from fedpbc.experiments.paired import Costs, Difference, PairedRow
from fedpbc.experiments.score_text import between, number_text, score_text
from fedpbc.experiments.verdict import Verdict
from fedpbc.simulation.views import DEPLOYABLE
from fedpbc.text import listed

__all__ = ["Alternative", "Recommendation", "recommend"]

FLOAT_BYTES = 4
FEW_MODELS = 2
"""On the server: its model, and a moving average of it."""


@dataclass(frozen=True)
class Alternative:
    """What to run instead under a limit."""

    limit: str
    algorithm: str
    view: str
    mean: float
    loses: float


@dataclass(frozen=True)
class Recommendation:
    """What to run, and what it gives.

    Attributes:
        settings: step sizes and options, by dotted key.
        mean: expected test accuracy (or minus the loss), over the seeds of the comparison.
        interval: of this mean, at 95 %; None for one seed.
        over_baseline: the paired difference to FedAvg; None if FedAvg is recommended.
        recovered: the share of what failing links cost FedAvg that is gained back, with its
            interval; None without a ceiling or where it is not defined.
        costs: of the whole run.
        parameters: of the model.
        why: sentences for a reader.
        changes: what would change the answer, a sentence each.
        alternatives: the best under limits that the recommendation does not keep.
        verdict: of the comparison under the constraints.
    """

    algorithm: str
    view: str
    settings: Mapping[str, Any]
    mean: float
    interval: Interval | None
    over_baseline: Difference | None
    recovered: tuple[float, Interval | None] | None
    costs: Costs
    parameters: int
    has_classes: bool
    why: tuple[str, ...]
    changes: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    verdict: Verdict = field(repr=False)

    @property
    def server_bytes(self) -> int | None:
        """Memory of the vectors that the server keeps."""
        models = self.costs.models_on_server
        return None if models is None else FLOAT_BYTES * models * self.parameters

    @property
    def device_bytes(self) -> int | None:
        """Memory of the vectors that a device keeps between contacts."""
        models = self.costs.models_on_client
        return None if models is None else FLOAT_BYTES * models * self.parameters

    def as_dict(self) -> dict[str, Any]:
        """For advice.json."""
        content = asdict(self)
        content["verdict"] = self.verdict.sentence
        return {**content, "server_bytes": self.server_bytes, "device_bytes": self.device_bytes}


def recommend(
    comparison: Comparison,
    settings: Mapping[str, Mapping[str, Any]],
    constraints: Constraints,
    parameters: int,
) -> Recommendation | None:
    """The best under the constraints, or a cheaper one near it; None if no algorithm keeps them.

    Where failing links cost FedAvg hardly anything, FedAvg instead, unless it is more than half a
    point below: there is nothing to repair.
    """
    verdict = comparison.verdict(allowed=constraints.allows)
    # In the view that is recommended, which need not be the best without limits.
    paired = comparison.paired(allowed=constraints.allows)
    scores = comparison.scores(constraints.allows)
    choice = choose(verdict, scores)
    if choice is None:
        return None
    chosen = scores.find(BASELINE if _is_good_enough(verdict, paired.links_cost) else choice.name)
    if chosen is None:
        return None
    row = paired.row(chosen.name)
    assert row is not None
    assert chosen.view is not None
    assert chosen.costs is not None
    difference = verdict.differences.get(chosen.name)
    values = [chosen.values[seed] for seed in verdict.seeds]
    # A share of next to nothing would be a large number without a meaning.
    negligible = _negligible_cost(paired.links_cost, verdict.has_classes)
    return Recommendation(
        algorithm=chosen.name,
        view=chosen.view,
        settings=settings.get(chosen.name, {}),
        mean=verdict.means[chosen.name],
        interval=score_interval(values, has_classes=verdict.has_classes),
        over_baseline=None if chosen.name == BASELINE else difference,
        recovered=None if chosen.name == BASELINE or negligible else _recovered(row),
        costs=chosen.costs,
        parameters=parameters,
        has_classes=verdict.has_classes,
        why=tuple(_reasons(verdict, choice, chosen.name, paired.links_cost)),
        changes=tuple(_changes(comparison, verdict, chosen.name)),
        alternatives=tuple(_alternatives(comparison, verdict, chosen.costs, constraints)),
        verdict=verdict,
    )


def _recovered(row: PairedRow) -> tuple[float, Interval | None] | None:
    if row.recovered is None or row.recovered.value is None:
        return None
    return row.recovered.value, row.recovered.interval


def _negligible_cost(links_cost: Difference | None, has_classes: bool) -> Difference | None:
    """What failing links cost, if that is hardly anything.

    A large cost within noise is not small: few seeds do not show that there is nothing to repair.
    """
    if links_cost is None or links_cost.interval is None:
        return None
    return links_cost if links_cost.mean <= (MARGIN if has_classes else 0.0) else None


def _text(difference: Difference, has_classes: bool) -> str:
    """A difference with its interval."""
    assert difference.interval is not None
    interval = between(difference.interval, has_classes)
    return f"{number_text(difference.mean, has_classes)} (95 % interval {interval})"


def _is_good_enough(verdict: Verdict, links_cost: Difference | None) -> bool:
    """Whether FedAvg is practically equal to the best, on links that cost it hardly anything."""
    if BASELINE not in verdict.means or verdict.best is None or not verdict.has_classes:
        return False
    behind = verdict.means[verdict.best] - verdict.means[BASELINE]
    return behind <= MARGIN and _negligible_cost(links_cost, verdict.has_classes) is not None


def _reasons(
    verdict: Verdict, choice: Choice, chosen: str, links_cost: Difference | None
) -> Iterator[str]:
    has_classes, best = verdict.has_classes, verdict.best or ""
    over = f"over {len(verdict.seeds)} seed{'' if len(verdict.seeds) == 1 else 's'}"
    if not verdict.noise_known:
        yield "Only one seed fitted into the budget, so this is only a hint."
    if (costs := verdict.costs.get(chosen)) is not None and costs.bytes_up == 0:
        yield "No upload arrived in any run, so nothing was learned: choose more rounds."
    if chosen == BASELINE:
        if best == BASELINE:
            why = f"none of the {len(verdict.means)} compared has a higher mean {over}."
        elif choice.name == BASELINE or links_cost is None:
            why = f"{best} is not better by more than the noise or half a point {over}."
        else:
            gain = number_text(verdict.means[best] - verdict.means[BASELINE], has_classes)
            why = (
                f"with every link up it would be better by {_text(links_cost, has_classes)}, so "
                "there is nothing to repair. "
                f"{best} is better by {gain} {over}, at most half a point, for another reason than "
                "failing links, such as larger steps."
            )
        # Whether it is good enough is not known where nobody measured what links cost.
        finding = "Nothing compared is clearly better than plain FedAvg"
        if _negligible_cost(links_cost, has_classes) is not None:
            finding = "Plain FedAvg is good enough on these links"
        yield f"{finding}: {why}"
        if choice.name != BASELINE or links_cost is None or links_cost.interval is None:
            return
        if links_cost.clearly_above:
            size = number_text(links_cost.mean, has_classes)
            yield (
                f"Failing links cost it {size}{' points' if has_classes else ' in loss'} all the "
                f"same (95 % interval {between(links_cost.interval, has_classes)}): so much better "
                "is the same training with every link up, and nothing compared clearly gains that "
                "back."
            )
        return
    tied = [name for name in choice.close if name != chosen]
    unsure = [name for name in verdict.within_noise if name != chosen]
    if not unsure and verdict.noise_known:
        yield f"It is the best of {len(verdict.means)} {over}, by more than the noise."
    elif not tied:
        yield f"It has the highest mean of {len(verdict.means)} {over}."
        if unsure:
            are = "is" if len(unsure) == 1 else "are"
            yield (
                f"{listed(unsure)} {are} more than half a point below it, but that may be noise: "
                "so few seeds cannot tell them apart."
            )
    elif chosen == best:
        yield f"{listed(tied)} cannot be told apart from it {over}, and cost no less."
    else:
        yield (
            f"{listed(tied)} cannot be told apart from it {over} and cost more "
            f"({best} has the highest mean, {score_text(verdict.means[best], has_classes)})."
        )
    difference = verdict.differences.get(chosen)
    if difference is not None and difference.interval is not None:
        sign = "better" if difference.mean >= 0 else "worse"
        interval = between(difference.interval, has_classes)
        clear = "" if difference.clearly_above else ", which includes no gain"
        yield (
            f"It is {sign} than FedAvg with {difference.won} of {len(difference.seeds)} seeds; the "
            f"mean difference has the 95 % interval {interval}{clear}."
        )
    if negligible := _negligible_cost(links_cost, has_classes):
        what = "hardly anything" if negligible.clearly_above else "nothing that shows"
        yield (
            f"Failing links cost FedAvg {what}: with every link up it is better by "
            f"{_text(negligible, has_classes)}. So there is nothing to repair; "
            "what is better than FedAvg here is so for another reason, such as larger steps."
        )
    elif (
        links_cost is not None and links_cost.interval is not None and not links_cost.clearly_above
    ):
        yield (
            "With every link up FedAvg is better by "
            f"{_text(links_cost, has_classes)}: so few seeds cannot tell what failing links cost, "
            "and what is gained back of it is not known."
        )


def _changes(comparison: Comparison, verdict: Verdict, chosen: str) -> Iterator[str]:
    """Sentences on the horizon and on noise, computed from the same runs."""
    a_third = comparison.rounds // 3
    leader = _leader_at(comparison, verdict, a_third)
    if leader is not None and leader != chosen:
        yield (
            f"Fewer rounds: after {a_third:,} of {comparison.rounds:,} rounds {leader} is ahead. "
            "With many more rounds the order may change again; try --rounds."
        )
    tied = [name for name in verdict.within_noise if name != chosen]
    if tied and verdict.noise_known:
        yield (
            f"More seeds: {listed(tied)} {'is' if len(tied) == 1 else 'are'} within noise of the "
            "best; a larger budget (--minutes) may tell them apart."
        )


def _leader_at(comparison: Comparison, verdict: Verdict, rounds: int) -> str | None:
    """Who is ahead at the last evaluation up to a round, in the views that were compared."""
    means: dict[str, float] = {}
    for name, view in verdict.views.items():
        key, sign = ("test_accuracy", 1.0) if verdict.has_classes else ("test_loss", -1.0)
        at, values, _ = comparison.curve(name, view, key)
        before = [value for number, value in zip(at, values, strict=True) if number <= rounds]
        if before:
            means[name] = sign * before[-1]
    return max(means, key=lambda name: (means[name], name), default=None)


def _alternatives(
    comparison: Comparison, verdict: Verdict, costs: Costs, constraints: Constraints
) -> Iterator[Alternative]:
    """The best under each limit that the recommendation breaks."""
    best_mean = max(verdict.means.values())
    fedavg = verdict.costs.get(BASELINE)
    limits: dict[str, tuple[bool, Constraints]] = {
        f"at most {FEW_MODELS} models on the server": (
            (costs.models_on_server or 0) > FEW_MODELS,
            Constraints(max_server_models=FEW_MODELS),
        ),
        "no state on the devices": (
            bool(costs.models_on_client),
            Constraints(client_state=False),
        ),
    }
    if fedavg is not None:
        most = max(1, round(1.1 * fedavg.local_steps))
        limits["no more local steps than FedAvg"] = (
            costs.local_steps > most,
            Constraints(max_local_steps=most),
        )
    for text, (is_broken, limit) in limits.items():
        if not is_broken:
            continue

        def allowed(row: ComparisonRow, limit: Constraints = limit) -> bool:
            return limit.allows(row) and constraints.allows(row)

        under = comparison.verdict(allowed=allowed)
        if under.best is not None and under.views[under.best] in DEPLOYABLE:
            mean = under.means[under.best]
            yield Alternative(text, under.best, under.views[under.best], mean, best_mean - mean)
