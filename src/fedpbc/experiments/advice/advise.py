"""Advice, step by step: the links, a tuned and paired comparison on them, a recommendation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fedpbc.errors import FedpbcError
from fedpbc.experiments.advice.directory import AdviceDirectory, with_schedule
from fedpbc.experiments.advice.link_facts import (
    LinkFacts,
    examine_links,
    excluded_algorithms,
    refuse_limits_that_nothing_keeps,
)
from fedpbc.experiments.advice.recommendation import Recommendation, recommend
from fedpbc.experiments.advice.request import BASELINE, TUNING_SEED, AdviceRequest
from fedpbc.experiments.advice.schedule import (
    EVALUATIONS,
    Schedule,
    affordable_finalists,
    choose_schedule,
)
from fedpbc.experiments.advice.schedule_text import left_out_text, schedule_text, time_text
from fedpbc.experiments.advice.speed import Stopwatch, measure_speeds
from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.comparison_plan import ComparisonPlan, plan_comparison
from fedpbc.experiments.conditions import CEILING, EVERY_LINK_UP, is_ceiling
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.entries import Entry, entries_of
from fedpbc.experiments.paired import Paired
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.sweep import DivergedReason, GridProgress
from fedpbc.experiments.tuning.choice import tuned_entry
from fedpbc.experiments.tuning.directory import TuningDirectory
from fedpbc.experiments.tuning.plan import START_SECONDS, TuningPlan, plan_tuning
from fedpbc.experiments.tuning.request import TuningRequest
from fedpbc.experiments.tuning.result import TuningResult
from fedpbc.parallel import one_core
from fedpbc.simulation.views import DEPLOYABLE
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.toml import toml_text
from fedpbc.text import listed

__all__ = ["Advice", "AdviceListener", "advise"]

FIRST_SEEDS = 2
"""Seeds of the comparison that are run before the clock is looked at."""
TEST_COST = 1.3
"""Evaluating on the test data takes longer than on the samples that are held out."""
PAGE_SECONDS = 4.0
"""Of the budget, for writing the page."""
MORE_SEEDS = 2
MOST_SEEDS = 10
"""What is left of the budget is spent on more seeds than were planned."""

OnProgress = Callable[[GridProgress], None]


class AdviceListener(Protocol):
    """Is told what happens."""

    def note(self, line: str) -> None:
        """A line for people."""

    def tuning(self, plan: TuningPlan) -> AbstractContextManager[OnProgress]:
        """The search begins."""

    def tuned(self, directory: TuningDirectory, result: TuningResult) -> None:
        """The search is done; its results may be written."""

    def comparing(self, plan: ComparisonPlan) -> AbstractContextManager[OnProgress]:
        """A part of the comparison begins."""


@dataclass(frozen=True)
class Advice:
    """The result: links, search, comparison and recommendation.

    Attributes:
        excluded: algorithms that break a constraint whatever the settings, with the reason.
        tuning: None where the settings were given.
        seconds: that it took.
        recommendation: None if nothing keeps the constraints.
    """

    request: AdviceRequest
    schedule: Schedule
    links: LinkFacts
    excluded: Mapping[str, str]
    tuning: TuningResult | None
    settings: Mapping[str, Mapping[str, Any]]
    comparison: Comparison
    recommendation: Recommendation | None
    seconds: float

    def paired(self) -> Paired:
        """The comparison with FedAvg, in views that keep the limits."""
        return self.comparison.paired(allowed=self.request.constraints.allows)


def advise(
    request: AdviceRequest,
    directory: AdviceDirectory,
    listener: AdviceListener,
    *,
    jobs: int,
    links: LinkFacts | None = None,
    schedule: Schedule | None = None,
    began: float | None = None,
    spent: float = 0.0,
) -> Advice:
    """Find out what to run; the directory must be opened.

    ``links`` are what :func:`examine_links` has returned, if it was called before. ``schedule`` is
    that of advice that is continued, and ``spent`` are the seconds of the budget that it had taken
    before; ``began`` is when this session began, by the monotonic clock, now by default.
    """
    began = (time.monotonic() if began is None else began) - spent
    deadline = began + 60 * request.minutes - PAGE_SECONDS
    listener.note("looking at the links, and measuring the speed")
    links = links or examine_links(request)
    excluded = excluded_algorithms(request, links)
    refuse_limits_that_nothing_keeps(request, links)
    costs = {name: cost for name, cost in links.costs.items() if name not in excluded}
    if schedule is None:
        watch = Stopwatch()
        # With several jobs, each run has one core.
        with one_core() if jobs > 1 else nullcontext():
            speeds, ceiling = measure_speeds(request, costs)
        schedule = choose_schedule(
            speeds,
            ceiling,
            rounds=request.values["rounds"],
            seconds=deadline - time.monotonic(),
            jobs=jobs,
            fixed_rounds=request.fixed_rounds,
            tuned=bool(request.tuned),
            slowdown=watch.slowdown(),
        )
        directory.keep_schedule(request, schedule)
    request = with_schedule(request, schedule)
    listener.note(schedule_text(schedule, request, jobs))
    if request.tuned and (line := left_out_text(schedule, list(costs))):
        listener.note(line)
    tuning, tables, ranked = _tuned(request, schedule, links, directory, listener, jobs)
    finalists = [BASELINE, *(name for name in ranked if name != BASELINE)]
    finalists = finalists[: schedule.finalists + 1]
    if tuning is not None:
        finalists, schedule = _affordable(
            finalists, schedule, links, directory, tuning, jobs, deadline - time.monotonic()
        )
    compared = {name: tables[name] for name in finalists}
    if schedule.ceiling and CEILING in tables:
        compared[CEILING] = tables[CEILING]
    comparison = _compared(request, schedule, compared, directory, listener, jobs, deadline)
    flat = {entry.label: _flat(entry) for entry in entries_of(tables)}
    recommendation = recommend(comparison, flat, request.constraints, links.parameters)
    if recommendation is not None:
        _write_recommended(directory, request, recommendation, tables)
    return Advice(
        request,
        schedule,
        links,
        excluded,
        tuning,
        flat,
        comparison,
        recommendation,
        time.monotonic() - began,
    )


Tables = dict[str, dict[str, Any]]


def _tuned(
    request: AdviceRequest,
    schedule: Schedule,
    links: LinkFacts,
    directory: AdviceDirectory,
    listener: AdviceListener,
    jobs: int,
) -> tuple[TuningResult | None, Tables, Sequence[str]]:
    """The search's result, each algorithm's settings as a table, and the names, the best first."""
    names = list(schedule.algorithms)
    if request.tuned or schedule.candidates == 1:
        tables = {name: dict(request.tuned.get(name, {})) for name in names}
        if CEILING in request.tuned:
            tables[CEILING] = dict(request.tuned[CEILING])
        return None, tables, names
    listener.note("tuning, scored on training samples that are held out")
    plan = _tuning_plan(request, schedule, links)
    tuning = directory.tuning
    with tuning.opened(plan) as opened, ExitStack() as display:
        result = tuning.run(
            opened, jobs, lambda settled: display.enter_context(listener.tuning(settled))
        )
        listener.tuned(tuning, result)
        tuning.remove_checkpoints()
    tables, scores = {}, {}
    for tuned in result.entries:
        if tuned.best is None or tuned.best.score is None:
            continue
        # A single one is the default: it was scored, but nothing was tuned.
        is_tuned = len(tuned.trials) > 1
        if not is_ceiling(tuned.label):
            table = _nested(tuned.best.settings) if is_tuned else {}
            # Chosen on the held-out samples, too: the test data is for the comparison.
            tables[tuned.label] = {**table, "deploy_view": tuned.best.score.view}
            scores[tuned.label] = tuned.best.score.value
        elif is_tuned:
            entry = result.plan.entries[tuned.label]
            chosen = tuned_entry(entry, tuned.best.settings)
            tables[tuned.label] = chosen.with_value("deploy_view", tuned.best.score.view).table()
    if BASELINE not in tables:
        raise FedpbcError(
            "FedAvg diverged with every step size: set a smaller one with --learning-rate"
        )
    return result, tables, sorted(scores, key=lambda name: -scores[name])


def _tuning_plan(request: AdviceRequest, schedule: Schedule, links: LinkFacts) -> TuningPlan:
    """The search, with as many candidates as were planned, or fewer if there is no time for them.

    Settings are chosen for a view that the server can afford, so only such views are scored.
    The speed was measured with one process on a machine that may be busy. So the first runs of the
    search, all cores at work, decide how many candidates there will be; the number is kept.
    """
    names = list(schedule.algorithms)
    tuning_request = TuningRequest(
        algorithms=names,
        candidates=schedule.candidates,
        seeds=(TUNING_SEED,),
        ceiling=schedule.ceiling_candidates > 0,
    )
    plan = plan_tuning(request.values, tuning_request)
    if (most := request.constraints.max_server_models) is not None:
        entries = dict(plan.entries)
        for name in names:
            # FedAvg is the baseline even if it has no such view.
            if views := links.costs[name].affordable_views(most):
                entries[name] = entries[name].with_value("views", views)
        plan = replace(plan, entries=entries)
    if schedule.ceiling_candidates:
        few = plan.candidates[CEILING][: schedule.ceiling_candidates]
        plan = replace(plan, candidates={**plan.candidates, CEILING: few})
    if not schedule.tuning_seconds:  # of advice that was begun before there was such a limit
        return plan
    planned = {label: list(plan.candidates[label][: plan.count]) for label in plan.candidates}
    return replace(plan, candidates=planned, count=0, minutes=schedule.tuning_seconds / 60)


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted key as a table of a comparison."""
    table: dict[str, Any] = {}
    for key, value in settings.items():
        section, _, option = key.partition(".")
        if section == "algorithm":
            table[option] = value
        else:
            table.setdefault(section, {})[option] = value
    return table


def _flat(entry: Entry) -> dict[str, Any]:
    """Options and step sizes by dotted key; that links are up is not one of them."""
    flat = {f"algorithm.{option}": value for option, value in entry.options.items()}
    for section, table in entry.settings.items():
        if isinstance(table, Mapping) and section not in EVERY_LINK_UP:
            flat |= {f"{section}.{option}": value for option, value in table.items()}
    return flat


def _affordable(
    finalists: Sequence[str],
    schedule: Schedule,
    links: LinkFacts,
    directory: AdviceDirectory,
    tuning: TuningResult,
    jobs: int,
    available: float,
) -> tuple[list[str], Schedule]:
    """The finalists that there is time for, by how long their runs have taken in the search.

    Of advice that is continued, those that it had begun with.
    """
    labels, _ = directory.comparison.planned()
    if labels:
        begun = [label for label in labels if not is_ceiling(label)]
        return begun, replace(schedule, ceiling=len(begun) < len(labels))
    seconds = {}
    for tuned in tuning.entries:
        number = next((k for k, trial in enumerate(tuned.trials) if trial is tuned.best), None)
        if number is not None:
            folder = f"{tuned.label}/candidate-{number}/seed-{TUNING_SEED}"
            lines = RunDirectory(directory.tuning.path / folder).metrics()
            of_round = lines[-1]["seconds"] / lines[-1]["round"]
            seconds[tuned.label] = TEST_COST * schedule.rounds * of_round + START_SECONDS
    # The plan may have left the ceiling out on a machine that was busier then. It is compared all
    # the same if that costs no planned seed.
    names, has_ceiling = affordable_finalists(
        finalists,
        seconds,
        available=0.85 * available,
        jobs=jobs,
        ceiling=seconds.get(CEILING, seconds[BASELINE] * links.work_of_ceiling),
        ceiling_seeds=FIRST_SEEDS if schedule.ceiling else schedule.seeds,
    )
    return names, replace(schedule, ceiling=has_ceiling)


def _compared(
    request: AdviceRequest,
    schedule: Schedule,
    tables: Tables,
    directory: AdviceDirectory,
    listener: AdviceListener,
    jobs: int,
    deadline: float,
) -> Comparison:
    """Compare on the test data, with more seeds as long as there is time for them."""
    shared = {
        **request.values,
        "algorithms": tables,
        "ceiling": schedule.ceiling,
        # A budget is better spent on seeds than on views that no server has.
        "views": list(DEPLOYABLE),
    }
    shared.setdefault("evaluate_every", max(1, schedule.rounds // EVALUATIONS))
    # Of advice that is continued, the seeds that it had come to.
    _, begun = directory.comparison.planned()
    first = max(min(FIRST_SEEDS, schedule.seeds), len(begun))
    while True:
        began = time.monotonic()
        seeds = list(range(TUNING_SEED + 1, TUNING_SEED + 1 + first))
        left = deadline - time.monotonic()
        listener.note(
            f"comparing {listed(list(tables), len(tables))} on the test data, "
            f"{first} seeds; "
            + (f"{time_text(left)} of the budget left" if left > 0 else "the budget is used up")
        )
        plan = plan_comparison({**shared, "seeds": seeds}, lenient=True)
        with (
            directory.comparison.opened(plan) as full_plan,
            listener.comparing(full_plan) as on_progress,
        ):
            comparison = directory.comparison.run(full_plan, jobs, on_progress)
        for failed in comparison.failed:
            if not isinstance(failed.failure, DivergedReason):
                # A full disk, say: it must not decide what is recommended.
                raise FedpbcError(
                    f"{failed.label} with seed {failed.seed} failed: {failed.failure}; resume the "
                    "advice when that is fixed"
                )
        added = len(seeds) - (0 if first <= FIRST_SEEDS else first - MORE_SEEDS)
        # Runs of an earlier session took no time now, but others will take as long as they did.
        trained = sum(run.metrics[-1]["seconds"] for run in comparison.finished if run.metrics)
        compared = len({run.seed for run in comparison.finished})
        per_seed = max((time.monotonic() - began) / max(1, added), trained / jobs / compared)
        if first >= max(schedule.seeds, MOST_SEEDS):
            return comparison
        if time.monotonic() + 1.2 * MORE_SEEDS * per_seed > deadline:
            if first < schedule.seeds:
                listener.note(f"the time is up after {first} of {schedule.seeds} seeds")
            return comparison
        first = min(first + MORE_SEEDS, max(schedule.seeds, MOST_SEEDS))


def _write_recommended(
    directory: AdviceDirectory,
    request: AdviceRequest,
    recommendation: Recommendation,
    tables: Tables,
) -> None:
    """Write a configuration with the recommended algorithm, its settings and its view."""
    [entry] = entries_of({recommendation.algorithm: tables[recommendation.algorithm]})
    values = {**entry.applied_to(request.values), "deploy_view": recommendation.view}
    nested, _ = Config.from_dict(values, lenient=True).self_contained()
    for key in ("seed", "views"):
        nested.pop(key, None)
    write_atomically(directory.recommended_path, toml_text(nested))
