"""Table 1: accuracy of every algorithm over every link scheme on every data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedpbc.experiments.comparison import Comparison, ComparisonRow, Spread
from fedpbc.paper.bars import BarCluster, BarPanel, draw_bars
from fedpbc.paper.experiment import ExperimentRequest, ExperimentResult
from fedpbc.paper.grid import WINDOW, ConditionResult, run_planned
from fedpbc.paper.plan import Condition, plan_conditions, plan_runs
from fedpbc.paper.published import Accuracy, published_accuracies
from fedpbc.paper.request import requested_seeds
from fedpbc.paper.result_table import (
    AIDED_NOTE,
    RANK_NOTE,
    VIEWS_NOTE,
    Entry,
    ResultTable,
    deployable_cells,
    find_row,
    marked_name,
    rank_rows,
)
from fedpbc.paper.results import figure_title, scale_note, window_note, write_tables
from fedpbc.paper.step_sizes import find_step_sizes
from fedpbc.report.plot import save_figure

__all__ = ["LINKS", "run"]

OPTIONS = ("data", "data_dir", "algorithms", "links", "seeds", "rounds", "jobs", "tuned")
LINKS = ("bernoulli", "bernoulli_varying", "markov", "markov_varying", "cyclic", "cyclic_reset")
EVALUATE_EVERY = 10
QUICK_ROUNDS, QUICK_SEEDS = 400, (0, 1)


def run(request: ExperimentRequest) -> ExperimentResult:
    """Run the grid and write the tables."""
    quick = request.quick
    data = ["fashion"] if quick else ["svhn", "cifar10", "cinic10"]
    conditions = plan_conditions(request, data, LINKS, QUICK_ROUNDS if quick else None)
    seeds = requested_seeds(request, QUICK_SEEDS if quick else (0, 1, 2))
    sizes = find_step_sizes(request)
    runs = plan_runs(request, conditions, seeds, evaluate_every=EVALUATE_EVERY, train=sizes.chosen)
    sweep = run_planned("table1", request, runs, last=WINDOW)
    notes = [
        scale_note(request, runs),
        sizes.note(runs),
        window_note(sweep),
        VIEWS_NOTE,
        f"{RANK_NOTE} {AIDED_NOTE}",
        "train % is evaluated on a part of the training samples (data.train_samples).",
    ]
    tables, pictures = [], []
    for name in dict.fromkeys(condition.data for condition in conditions):
        results = [result for result in sweep.comparisons if result[0].data == name]
        if any(comparison.finished for _, comparison in results):
            tables.append(accuracy_table(name, results))
            pictures += draw(name, results, sweep.path / f"table1-{name}", quick)
    return write_tables(
        "table1",
        request,
        sweep,
        tables=tables,
        notes=notes,
        numbers={"rows": [row for result in sweep.comparisons for row in as_dicts(*result)]},
        pictures=pictures,
        next="open report.html; 'fedpbc paper table2' shows how soon each gets there",
    )


def published(condition: Condition, algorithm: str, split: str) -> Accuracy | None:
    """The paper's accuracy, if it has one."""
    return published_accuracies().get((condition.links, algorithm, condition.data, split))


def as_dicts(condition: Condition, comparison: Comparison) -> list[dict[str, Any]]:
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


SPLITS: dict[str, Callable[[ComparisonRow], Spread | None]] = {
    "test": lambda row: row.test,
    "train": lambda row: row.train,
}


def accuracy_table(data: str, results: Sequence[ConditionResult]) -> ResultTable:
    """The table of one data set: a row for each link scheme and algorithm."""
    has_paper = any(
        published(condition, name, "test")
        for condition, comparison in results
        for name in comparison.algorithms
    )
    beside = ["paper", "differs by"] if has_paper else []
    head = ["links", "algorithm", "view", "test %", *beside, "train %", *beside]
    head += ["deployable view", "its test %"]
    lines: list[list[Entry | str]] = []
    for condition, comparison in results:
        rows = {name: find_row(comparison, name) for name in comparison.algorithms}
        ranks = {split: rank_rows(rows, accuracy) for split, accuracy in SPLITS.items()}
        for name, row in rows.items():
            if row is None:
                empty = [""] * (len(head) - 4)
                lines.append([condition.links, marked_name(name), "", "failed", *empty])
                continue
            line: list[Entry | str] = [condition.links, marked_name(name), row.view]
            for split, accuracy in SPLITS.items():
                line.append(Entry(str(accuracy(row) or "–"), ranks[split].get(name, 0)))
                if has_paper:
                    line += _paper_cells(accuracy(row), published(condition, name, split))
            lines.append([*line, *deployable_cells(comparison, name)])
    notes = [] if has_paper else [f"The paper has no figures for {data}."]
    return ResultTable(f"{data}: accuracy, %", head, lines, notes)


def _paper_cells(measured: Spread | None, paper: Accuracy | None) -> list[str]:
    if paper is None:
        return ["", ""]
    return [str(paper), "" if measured is None else f"{100 * measured.mean - paper.mean:+.1f}"]


def draw(data: str, results: Sequence[ConditionResult], path: Path, quick: bool) -> list[Path]:
    """Draw bars: in the paper's view, and in each algorithm's best deployable one."""

    def published_test(condition: Condition) -> Callable[[str], float | None]:
        return lambda name: paper.mean if (paper := published(condition, name, "test")) else None

    clusters = [
        BarCluster(condition.links, comparison, published_test(condition))
        for condition, comparison in results
    ]
    panels = [
        BarPanel("the view that the paper shows (mean for fedpbc and fedawe)", clusters),
        BarPanel("each algorithm's best view that a server could deploy", clusters, True),
    ]
    return save_figure(draw_bars(panels, bars_title(data, results, quick)), path)


def bars_title(subject: str, results: Sequence[ConditionResult], quick: bool) -> str:
    """A bar chart's title: subject, rounds and seeds."""
    seeds = len({cell.seed for _, comparison in results for cell in comparison.runs})
    over = f"± one deviation over {seeds} seeds" if seeds > 1 else "one seed"
    return figure_title(f"{subject} · {results[0][0].rounds:,} rounds · {over}", quick)
