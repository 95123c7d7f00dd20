"""Table 2: the first round in which each algorithm reaches an accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedpbc.errors import InputError
from fedpbc.experiments.comparison import Comparison
from fedpbc.paper.catalog import ExperimentRequest, ExperimentResult
from fedpbc.paper.like_for_like import DEPARTS, changed_settings, departures
from fedpbc.paper.plan import PAPER_DATA, PaperCondition, plan_conditions
from fedpbc.paper.published import published_rounds, published_thresholds
from fedpbc.paper.result_table import VIEWS_NOTE, ResultTable, shown_rows
from fedpbc.paper.results import figure_title, seeds_note, write_tables
from fedpbc.paper.step_sizes import run_conditions
from fedpbc.report.comparison_table import AIDED_NOTE, marked_name, marked_view, sent_unit
from fedpbc.report.plot import comparison_figure, save_figure

__all__ = ["first_round", "run", "thresholds_of"]

OPTIONS = ("data", "data_dir", "algorithms", "links", "seeds", "rounds", "jobs", "tuned")

SAMPLE_EVERY = 150
EVALUATE_EVERY = 50
"""More often than sampled, for the curves; an evaluation costs as much as a few rounds."""
QUICK_ROUNDS, QUICK_SAMPLE_EVERY = 300, 15
PAPER_LINKS = "bernoulli_varying"
COLUMNS = 8
"""The largest number of rounds in the table of accuracies."""


def run(request: ExperimentRequest) -> ExperimentResult:
    """Run the grid and write the tables."""
    quick = request.quick
    rounds = QUICK_ROUNDS if quick else None
    conditions = plan_conditions(request, PAPER_DATA, [PAPER_LINKS], rounds)
    every = QUICK_SAMPLE_EVERY if quick else SAMPLE_EVERY
    default = every if quick else EVALUATE_EVERY
    for key in ("evaluate_every", "evaluate_every_at_end"):
        given = request.settings.get(key, default)
        if not isinstance(given, int) or given < 1 or every % given:
            expected = f"a divisor of {every}: only every {every}th round is sampled"
            raise InputError(key, given, expected)
    sweep, notes = run_conditions("table2", request, conditions, evaluate_every=default)
    notes += [
        f"The mean of test accuracy over seeds is sampled every {every} rounds"
        + ("" if every == SAMPLE_EVERY else f" (the paper: every {SAMPLE_EVERY})")
        + "; never: not in the rounds that were run.",
        seeds_note(sweep),
        VIEWS_NOTE,
        AIDED_NOTE,
    ]
    tables, pictures, numbers = [], [], []
    for condition, comparison in sweep.comparisons:
        if not comparison.finished:
            continue
        reached = rounds_reached(condition, comparison, every)
        reached["not_like_the_paper"] = changed_settings(request.settings)
        numbers.append(reached)
        tables += [reached_table(condition, reached), accuracy_table(condition, comparison, every)]
        figure = comparison_figure(
            comparison, figure_title(condition.title, quick), levels=reached_levels(reached)
        )
        pictures += save_figure(figure, sweep.path / f"table2-{'-'.join(condition.key)}")
    return write_tables(
        "table2",
        request,
        sweep,
        tables=tables,
        notes=notes,
        numbers={"every": every, "groups": numbers},
        pictures=pictures,
        next="open report.html; 'fedpbc paper table1' shows where each ends on every link scheme",
    )


def first_round(
    rounds: Sequence[int], means: Sequence[float], percent: float, every: int
) -> int | None:
    """The first sampled round with at least this accuracy; None: never."""
    for round, mean in zip(rounds, means, strict=True):
        # Accuracies are ratios of integers: 45 % must not be missed by a rounding error.
        if round % every == 0 and 100 * mean >= percent - 1e-9:
            return round
    return None


def thresholds_of(
    condition: PaperCondition, comparison: Comparison
) -> tuple[tuple[float, ...], str]:
    """The accuracies to be reached, in per cent, and their origin."""
    published = published_thresholds(condition.data)
    if published:
        return published, "the paper's accuracies"
    rows = map(comparison.row, comparison.algorithms)
    best = 100 * max(row.test.mean for row in rows if row and row.test)
    # The paper rounds down to ten per cent.
    rounded = 10 * math.floor(best / 10) if best >= 10 else best
    quarters = tuple(round(rounded * k / 4, 2) for k in (1, 2, 3, 4))
    return quarters, (
        f"1/4, 1/2, 3/4 and 1 of the best accuracy found, {best:.1f} % in the paper's view, "
        f"rounded down to {rounded:g} %; the paper has none for {condition.data}"
    )


def rounds_reached(condition: PaperCondition, comparison: Comparison, every: int) -> dict[str, Any]:
    """When each algorithm and view reached each accuracy, here and in the paper."""
    thresholds, origin = thresholds_of(condition, comparison)
    rows = []
    for row in comparison.rows():
        rounds, means, _ = comparison.curve(row.algorithm, row.view)
        is_paper_view = row.view == comparison.paper_view(row.algorithm)
        paper = paper_rounds(condition, row.algorithm, thresholds) if is_paper_view else None
        rows.append(
            {
                "algorithm": row.algorithm,
                "view": row.view,
                "paper_view": is_paper_view,
                "best_deployable": row.best_deployable,
                "first_rounds": [first_round(rounds, means, p, every) for p in thresholds],
                "paper": paper,
            }
        )
    return {
        "data": condition.data,
        "links": condition.links,
        "rounds": condition.rounds,
        "thresholds": list(thresholds),
        "origin": origin,
        "rows": rows,
        "comparison": comparison.as_dict(),
    }


def paper_rounds(
    condition: PaperCondition, algorithm: str, thresholds: Sequence[float]
) -> list[int | None] | None:
    """The paper's rounds, if it has this data set, these links and this algorithm."""
    published = published_rounds()
    keys = [(condition.data, algorithm, percent) for percent in thresholds]
    if condition.links != PAPER_LINKS or not all(key in published for key in keys):
        return None
    return [published[key] for key in keys]


def reached_levels(reached: Mapping[str, Any]) -> list[float]:
    """The accuracies that at least one algorithm reached."""
    rounds = zip(*(row["first_rounds"] for row in reached["rows"]), strict=True)
    levels = zip(reached["thresholds"], rounds, strict=True)
    return [percent for percent, firsts in levels if any(first is not None for first in firsts)]


def reached_table(condition: PaperCondition, reached: Mapping[str, Any]) -> ResultTable:
    """When each accuracy was reached, beside the paper's rounds."""
    has_paper = any(row["paper"] for row in reached["rows"])
    head = ["algorithm", "view"]
    other = reached.get("not_like_the_paper", "")
    beside = ["paper", *([] if other else ["differs by"])] if has_paper else []
    for percent in reached["thresholds"]:
        head += [f"{percent:g} %", *beside]
    rows, reasons = [], []
    for row in reached["rows"]:
        if not (row["paper_view"] or row["best_deployable"]):
            continue
        line = [marked_name(row["algorithm"]), marked_view(row["view"], row["best_deployable"])]
        departed = departures(row["algorithm"], {"name": condition.links}) if row["paper"] else []
        reasons += departed
        for k, measured in enumerate(row["first_rounds"]):
            line.append(_round_or_never(measured))
            paper = row["paper"][k] if row["paper"] else None
            both = measured is not None and paper is not None
            mark = f" {DEPARTS}" if departed else ""
            cells = [
                f"{_round_or_never(paper)}{mark}" if row["paper"] else "",
                f"{measured - paper:+d}" if both else "",
            ]
            line += cells[: len(beside)]
        rows.append(line)
    notes = [f"First rounds to reach {reached['origin']}."]
    if has_paper:
        notes.append(
            "paper: three seeds, 10,000 rounds (4,000 for SVHN), tuned step sizes; it samples "
            "round 0 as well."
        )
        if other:
            notes.append(f"No difference to the paper is shown: this has {other}.")
        notes += [f"{DEPARTS} {reason} (the released code)." for reason in dict.fromkeys(reasons)]
    return ResultTable(f"{condition.title}: first round to reach an accuracy", head, rows, notes)


def _round_or_never(round: int | None) -> str:
    return "never" if round is None else str(round)


def accuracy_table(condition: PaperCondition, comparison: Comparison, every: int) -> ResultTable:
    """Test accuracy in the sampled rounds, and the costs."""
    first = comparison.rows()[0]
    sampled = [r for r in comparison.curve(first.algorithm, first.view)[0] if r % every == 0]
    step = max(1, math.ceil(len(sampled) / COLUMNS))
    # Counted from the end, so that the last round is among them.
    columns = sampled[::-1][::step][::-1] or [comparison.rounds]
    rows, unit = [], sent_unit(shown_rows(comparison))
    for row in shown_rows(comparison):
        several = len(comparison.of(row.algorithm)) > 1
        accuracies = {
            round: f"{100 * mean:.1f}" + (f" ± {100 * deviation:.1f}" if several else "")
            for round, mean, deviation in zip(
                *comparison.curve(row.algorithm, row.view), strict=True
            )
        }
        rows.append(
            [
                marked_name(row.algorithm),
                marked_view(row.view, row.best_deployable),
                *(accuracies.get(round, "–") for round in columns),
                f"{row.local_steps:,}",
                unit.shown(row.bytes_up),
                unit.shown(row.bytes_down),
            ]
        )
    head = ["algorithm", "view", *(f"round {r}" for r in columns)]
    head += ["local steps", f"{unit.name} up", f"{unit.name} down"]
    return ResultTable(f"{condition.title}: test accuracy, %", head, rows)
