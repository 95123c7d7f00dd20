"""Table 2: the first round in which each algorithm reaches an accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpbc.errors import InputError
from fedpbc.experiments.comparison import Comparison
from fedpbc.paper.experiment import ExperimentRequest, ExperimentResult
from fedpbc.paper.grid import run_planned
from fedpbc.paper.plan import PlotGroup, groups_of, planned, seeds_of
from fedpbc.paper.published import published_rounds, published_thresholds
from fedpbc.paper.result_table import AIDED_NOTE, VIEWS_NOTE, ResultTable, name_of, view_of
from fedpbc.paper.results import finish, scale_note, seeds_note
from fedpbc.paper.step_sizes import find_step_sizes

__all__ = ["first_round", "run", "thresholds_of"]

OPTIONS = ("data", "data_dir", "algorithms", "links", "seeds", "rounds", "jobs", "tuned")

SAMPLE_EVERY = 150
EVALUATE_EVERY = 50
"""Finer than the samples, for the curves; each costs as much as a few rounds."""
QUICK_ROUNDS, QUICK_SAMPLE_EVERY, QUICK_SEEDS = 300, 15, (0, 1)
PAPER_LINKS = "bernoulli_varying"
COLUMNS = 8
"""Of the sheet of accuracies: more rounds than these are not shown."""


def run(wanted: ExperimentRequest) -> ExperimentResult:
    """Run the grid, and write and show what came of it."""
    quick = wanted.quick
    data = ["fashion"] if quick else ["svhn", "cifar10", "cinic10"]
    groups = groups_of(wanted, data, [PAPER_LINKS], QUICK_ROUNDS if quick else None)
    seeds = seeds_of(wanted, QUICK_SEEDS if quick else (0, 1, 2))
    every = QUICK_SAMPLE_EVERY if quick else SAMPLE_EVERY
    sizes = find_step_sizes(wanted)
    runs = planned(
        wanted,
        groups,
        seeds,
        evaluate_every=every if quick else EVALUATE_EVERY,
        train=sizes.chosen,
    )
    evaluated = runs[0].config["evaluate_every"]
    if not isinstance(evaluated, int) or evaluated < 1 or every % evaluated:
        raise InputError("evaluate_every", evaluated, f"a divisor of {every}: that often is looked")
    outcome = run_planned("table2", wanted, runs)
    notes = [
        scale_note(wanted, runs),
        sizes.note(runs),
        f"The mean of test accuracy over seeds is looked at every {every} rounds"
        + ("" if every == SAMPLE_EVERY else f" (the paper: every {SAMPLE_EVERY})")
        + "; never: not in the rounds that were run.",
        seeds_note(runs),
        VIEWS_NOTE,
        AIDED_NOTE,
    ]
    sheets, pictures, numbers = [], [], []
    for group, comparison in outcome.groups:
        if not comparison.finished:
            continue
        found = rounds_reached(group, comparison, every)
        numbers.append(found)
        sheets += [reached_sheet(group, found), accuracy_sheet(group, comparison, every)]
        name = "table2-" + "-".join(group.key)
        pictures += draw(group, comparison, reached(found), outcome.path / name, quick)
    return finish(
        "table2",
        wanted,
        outcome,
        sheets=sheets,
        notes=notes,
        numbers={"every": every, "groups": numbers},
        pictures=pictures,
        next="open report.html; 'fedpbc paper table1' shows where each ends on every link scheme",
    )


def first_round(
    rounds: Sequence[int], means: Sequence[float], percent: float, every: int
) -> int | None:
    """The first round looked at whose accuracy is that many per cent; None: never.

    Example:
        >>> first_round([50, 100, 150, 200, 300], [0.2, 0.5, 0.3, 0.6, 0.5], 45, every=150)
        300
    """
    for round, mean in zip(rounds, means, strict=True):
        # An accuracy is a ratio of whole numbers: 45 % must not be missed by a rounding.
        if round % every == 0 and 100 * mean >= percent - 1e-9:
            return round
    return None


def thresholds_of(group: PlotGroup, comparison: Comparison) -> tuple[tuple[float, ...], str]:
    """The accuracies to be reached, in per cent, and where they come from."""
    known = published_thresholds(group.data)
    if known:
        return known, "the paper's accuracies"
    tests = [
        row.test.mean
        for row in comparison.rows()
        if row.test is not None and row.view == comparison.paper_view(row.algorithm)
    ]
    best = 100 * max(tests)
    # As the paper does it, which rounds to ten per cent below.
    whole = 10 * math.floor(best / 10) if best >= 10 else best
    quarters = tuple(round(whole * k / 4, 2) for k in (1, 2, 3, 4))
    return quarters, (
        f"1/4, 1/2, 3/4 and 1 of the best accuracy found, {best:.1f} % in the paper's view, "
        f"rounded down to {whole:g} %; the paper has none for {group.data}"
    )


def rounds_reached(group: PlotGroup, comparison: Comparison, every: int) -> dict[str, Any]:
    """For every algorithm and view, when each accuracy was reached, and when in the paper."""
    thresholds, origin = thresholds_of(group, comparison)
    rows = []
    for row in comparison.rows():
        rounds, means, _ = comparison.curve(row.algorithm, row.view)
        shown = row.view == comparison.paper_view(row.algorithm)
        rows.append(
            {
                "algorithm": row.algorithm,
                "view": row.view,
                "paper_view": shown,
                "best_deployable": row.best_deployable,
                "first_rounds": [first_round(rounds, means, p, every) for p in thresholds],
                "paper": paper_rounds(group, row.algorithm, thresholds) if shown else None,
            }
        )
    return {
        "data": group.data,
        "links": group.links,
        "rounds": group.rounds,
        "thresholds": list(thresholds),
        "origin": origin,
        "rows": rows,
        "comparison": comparison.as_dict(),
    }


def paper_rounds(
    group: PlotGroup, algorithm: str, thresholds: Sequence[float]
) -> list[int | None] | None:
    """The paper's, where it has this data, these links and this algorithm."""
    known = published_rounds()
    keys = [(group.data, algorithm, percent) for percent in thresholds]
    if group.links != PAPER_LINKS or not all(key in known for key in keys):
        return None
    return [known[key] for key in keys]


def reached_sheet(group: PlotGroup, found: dict[str, Any]) -> ResultTable:
    """When each accuracy was reached, the paper's beside it."""
    has_paper = any(row["paper"] for row in found["rows"])
    head = ["algorithm", "view"]
    for percent in found["thresholds"]:
        head += [f"{percent:g} %", "paper", "differs by"] if has_paper else [f"{percent:g} %"]
    rows = []
    for row in found["rows"]:
        line = [name_of(row["algorithm"]), view_of(row["view"], row["best_deployable"])]
        for k, measured in enumerate(row["first_rounds"]):
            line.append(_round(measured))
            if has_paper:
                paper = row["paper"][k] if row["paper"] else None
                both = measured is not None and paper is not None
                line.append(_round(paper) if row["paper"] else "")
                line.append(f"{measured - paper:+d}" if both else "")
        rows.append(line)
    notes = [f"First rounds to reach {found['origin']}."]
    if has_paper:
        notes.append(
            "paper: three seeds, 10,000 rounds (4,000 for SVHN), tuned step sizes; it looks at "
            "round 0 as well."
        )
    return ResultTable(f"{group.title}: first round to reach an accuracy", head, rows, notes)


def accuracy_sheet(group: PlotGroup, comparison: Comparison, every: int) -> ResultTable:
    """Test accuracy in the rounds that were looked at, and what they cost."""
    first = comparison.rows()[0]
    looked = [r for r in comparison.curve(first.algorithm, first.view)[0] if r % every == 0]
    step = max(1, math.ceil(len(looked) / COLUMNS))
    # Counted from the end, so that the last is among them.
    shown = looked[::-1][::step][::-1] or [comparison.rounds]
    rows = []
    for row in comparison.rows():
        rounds, means, deviations = comparison.curve(row.algorithm, row.view)
        at = dict(zip(rounds, zip(means, deviations, strict=True), strict=True))
        several = len(comparison.of(row.algorithm)) > 1
        rows.append(
            [
                name_of(row.algorithm),
                view_of(row.view, row.best_deployable),
                *(_percent(*at[r], several) if r in at else "–" for r in shown),
                f"{row.local_steps:,}",
                f"{row.uploads:,}",
            ]
        )
    head = ["algorithm", "view", *(f"round {r}" for r in shown), "local steps", "uploads"]
    return ResultTable(f"{group.title}: test accuracy, %", head, rows)


def _round(value: int | None) -> str:
    return "never" if value is None else str(value)


def _percent(mean: float, deviation: float, several: bool) -> str:
    return f"{100 * mean:.1f}" + (f" ± {100 * deviation:.1f}" if several else "")


def reached(found: dict[str, Any]) -> list[float]:
    """The accuracies that somebody reached."""
    rounds = zip(*(row["first_rounds"] for row in found["rows"]), strict=True)
    levels = zip(found["thresholds"], rounds, strict=True)
    return [percent for percent, firsts in levels if any(first is not None for first in firsts)]


def draw(
    group: PlotGroup, comparison: Comparison, levels: Sequence[float], place: Path, quick: bool
) -> list[Path]:
    """The curves, with the accuracies that were reached as thin lines."""
    from fedpbc.report.plot import comparison_figure, save_figure

    title = group.title + (" · quick, not the paper's scale" if quick else "")
    return save_figure(comparison_figure(comparison, title, levels=levels), place)
