"""Table 1: accuracy of every algorithm over every link scheme on every data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedpbc.experiments.comparison import Comparison, Spread
from fedpbc.paper.bar_chart import BarCluster, BarPanel, draw_bars
from fedpbc.paper.catalog import ExperimentRequest, ExperimentResult
from fedpbc.paper.grid import WINDOW, ConditionResult
from fedpbc.paper.like_for_like import DEPARTS, changed_settings, departures, share_of_rounds
from fedpbc.paper.plan import PAPER_DATA, PaperCondition, plan_conditions
from fedpbc.paper.published import Accuracy, published_accuracies
from fedpbc.paper.result_table import (
    RANK_NOTE,
    VIEWS_NOTE,
    ResultTable,
    TableEntry,
    deployable_cells,
    rank_rows,
)
from fedpbc.paper.results import window_note, write_tables
from fedpbc.paper.step_sizes import run_conditions
from fedpbc.report.comparison_table import TRAIN_NOTE, marked_name

__all__ = ["LINKS", "run"]

OPTIONS = ("data", "data_dir", "algorithms", "links", "seeds", "rounds", "jobs", "tuned")
LINKS = ("bernoulli", "bernoulli_varying", "markov", "markov_varying", "cyclic", "cyclic_reset")
SPLITS = ("test", "train")
QUICK_ROUNDS = 400


def run(request: ExperimentRequest) -> ExperimentResult:
    """Run the grid and write the tables."""
    quick = request.quick
    conditions = plan_conditions(request, PAPER_DATA, LINKS, QUICK_ROUNDS if quick else None)
    sweep, notes = run_conditions("table1", request, conditions, last=WINDOW)
    notes += [window_note(sweep), VIEWS_NOTE, RANK_NOTE, TRAIN_NOTE]
    tables, pictures = [], []
    links = {run.condition.key: run.config["links"] for run, _ in sweep.cells}
    other = {c.data: differs_from_paper(c, request.settings) for c in conditions}
    for name in dict.fromkeys(condition.data for condition in conditions):
        results = [result for result in sweep.comparisons if result[0].data == name]
        if any(comparison.finished for _, comparison in results):
            tables.append(accuracy_table(name, results, links, other[name]))
            path = sweep.path / f"table1-{name}"
            pictures += draw(name, results, path, quick, comparable=not other[name])
    return write_tables(
        "table1",
        request,
        sweep,
        tables=tables,
        notes=notes,
        numbers={
            "not_like_the_paper": {name: why for name, why in other.items() if why},
            "rows": [row for result in sweep.comparisons for row in as_dicts(*result)],
        },
        pictures=pictures,
        next="open report.html; 'fedpbc paper table2' shows how soon each gets there",
    )


def differs_from_paper(condition: PaperCondition, settings: Mapping[str, Any]) -> str:
    """Why a difference to the paper's accuracies would say nothing; empty if it says something."""
    parts = share_of_rounds(condition.data, condition.rounds), changed_settings(settings)
    return ", and ".join(filter(None, parts))


def published(condition: PaperCondition, algorithm: str, split: str) -> Accuracy | None:
    """The paper's accuracy, if it has one."""
    return published_accuracies().get((condition.links, algorithm, condition.data, split))


def as_dicts(condition: PaperCondition, comparison: Comparison) -> list[dict[str, Any]]:
    """Every view of every algorithm, and the paper's accuracies, as JSON values."""
    rows = []
    for row in comparison.rows():
        is_paper_view = row.view == comparison.paper_view(row.algorithm)
        paper = {split: published(condition, row.algorithm, split) for split in ("train", "test")}
        rows.append(
            {
                "data": condition.data,
                "links": condition.links,
                "rounds": condition.rounds,
                **asdict(row),
                "paper_view": is_paper_view,
                "paper": {k: asdict(v) for k, v in paper.items() if v} if is_paper_view else {},
            }
        )
    return rows


def accuracy_table(
    data: str,
    results: Sequence[ConditionResult],
    links: Mapping[tuple[str, ...], Mapping[str, Any]],
    other: str = "",
) -> ResultTable:
    """The table of one data set: a row for each link scheme and algorithm.

    ``links`` has each condition's section of that name; ``other`` says why the paper's experiment
    is another one: then there is no difference to show.
    """
    has_paper = any(
        published(condition, name, "test")
        for condition, comparison in results
        for name in comparison.algorithms
    )
    beside = ["paper", *([] if other else ["differs by"])] if has_paper else []
    reasons: list[str] = []
    head = ["links", "algorithm", "view", "test %", *beside, "train %", *beside]
    head += ["deployable view", "its test %"]
    lines: list[list[TableEntry | str]] = []
    for condition, comparison in results:
        rows = {name: comparison.row(name) for name in comparison.algorithms}
        ranks = {split: rank_rows(rows, split) for split in SPLITS}
        for name, row in rows.items():
            if row is None:
                empty = [""] * (len(head) - 4)
                lines.append([condition.links, marked_name(name), "", "failed", *empty])
                continue
            line: list[TableEntry | str] = [condition.links, marked_name(name), row.view]
            departed = departures(name, links[condition.key])
            for split in SPLITS:
                accuracy: Spread | None = getattr(row, split)
                line.append(TableEntry(str(accuracy or "–"), ranks[split].get(name, 0)))
                if has_paper:
                    paper = published(condition, name, split)
                    cells = _paper_cells(accuracy, paper, departed=bool(departed))
                    line += cells[: len(beside)]
                    reasons += departed if paper else []
            lines.append([*line, *deployable_cells(comparison, name)])
    notes = paper_notes(results, reasons, other)
    if not has_paper:
        notes = [f"The paper has no figures for {data}."]
    return ResultTable(f"{data}: accuracy, %", head, lines, notes)


def paper_notes(
    results: Sequence[ConditionResult], reasons: Sequence[str], other: str
) -> list[str]:
    """What the columns beside the measured ones mean."""
    seeds = max(len({run.seed for run in comparison.finished}) for _, comparison in results)
    over = f"over {seeds} seed{'' if seeds == 1 else 's'}"
    notes = [f"differs by: the mean {over} minus the paper's over three."]
    if other:
        notes = [
            f"No difference to the paper is shown: this is {other}, {over}; paper: over three."
        ]
    notes += [f"{DEPARTS} {reason} (the released code)." for reason in dict.fromkeys(reasons)]
    return notes


def _paper_cells(measured: Spread | None, paper: Accuracy | None, *, departed: bool) -> list[str]:
    if paper is None:
        return ["", ""]
    differs = "" if measured is None else f"{100 * measured.mean - paper.mean:+.1f}"
    return [f"{paper} {DEPARTS}" if departed else str(paper), differs]


def draw(
    data: str,
    results: Sequence[ConditionResult],
    path: Path,
    quick: bool,
    *,
    comparable: bool = True,
) -> list[Path]:
    """Draw bars: in the paper's view, and in each algorithm's best deployable one."""
    clusters = []
    for condition, comparison in results:
        papers = {name: published(condition, name, "test") for name in comparison.algorithms}
        means = {name: paper.mean for name, paper in papers.items() if paper and comparable}
        clusters.append(BarCluster(condition.links, comparison, means))
    panels = [
        BarPanel("the view that the paper shows (mean for fedpbc and fedawe)", clusters),
        BarPanel("each algorithm's best view that a server could deploy", clusters, True),
    ]
    return draw_bars(panels, f"{data} · {results[0][0].rounds:,} rounds", path, quick=quick)
