"""Table 1: accuracy of every algorithm over every link scheme on every data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedpbc.experiments.comparison import Comparison, Row, Spread
from fedpbc.paper.bars import Cluster, Panel, bars, row_of
from fedpbc.paper.experiment import ExperimentRequest, ExperimentResult
from fedpbc.paper.grid import WINDOW, run_planned
from fedpbc.paper.plan import PlotGroup, groups_of, planned, seeds_of
from fedpbc.paper.published import Accuracy, published_accuracies
from fedpbc.paper.result_table import (
    AIDED_NOTE,
    RANK_NOTE,
    VIEWS_NOTE,
    Entry,
    ResultTable,
    name_of,
    standing,
)
from fedpbc.paper.results import finish, scale_note, seeds_note
from fedpbc.paper.step_sizes import find_step_sizes

__all__ = ["run"]

OPTIONS = ("data", "data_dir", "algorithms", "links", "seeds", "rounds", "jobs", "tuned")
LINKS = ("bernoulli", "bernoulli_varying", "markov", "markov_varying", "cyclic", "cyclic_reset")
EVALUATE_EVERY = 10
QUICK_ROUNDS, QUICK_SEEDS = 400, (0, 1)

EmpiricalLinks = list[tuple[PlotGroup, Comparison]]


def run(wanted: ExperimentRequest) -> ExperimentResult:
    """Run the grid, and write and show what came of it."""
    quick = wanted.quick
    data = ["fashion"] if quick else ["svhn", "cifar10", "cinic10"]
    groups = groups_of(wanted, data, LINKS, QUICK_ROUNDS if quick else None)
    seeds = seeds_of(wanted, QUICK_SEEDS if quick else (0, 1, 2))
    sizes = find_step_sizes(wanted)
    runs = planned(wanted, groups, seeds, evaluate_every=EVALUATE_EVERY, train=sizes.chosen)
    outcome = run_planned("table1", wanted, runs, last=WINDOW)
    measured = outcome.groups
    windows = sorted({found.window for _, found in measured if found.finished})
    notes = [
        scale_note(wanted, runs),
        sizes.note(runs),
        f"Each the mean of the evaluations in the last {' or '.join(map(str, windows))} rounds. "
        + seeds_note(runs),
        VIEWS_NOTE,
        f"{RANK_NOTE} {AIDED_NOTE}",
        "train % is judged on a part of the training samples (data.train_samples).",
    ]
    sheets, pictures = [], []
    for name in dict.fromkeys(group.data for group in groups):
        own = [(group, found) for group, found in measured if group.data == name]
        if any(found.finished for _, found in own):
            sheets.append(sheet(name, own))
            pictures += draw(name, own, outcome.path / f"table1-{name}", quick)
    return finish(
        "table1",
        wanted,
        outcome,
        sheets=sheets,
        notes=notes,
        numbers={"rows": [row for group, found in measured for row in rows(group, found)]},
        pictures=pictures,
        next="open report.html; 'fedpbc paper table2' shows how soon each gets there",
    )


def published(group: PlotGroup, algorithm: str, split: str) -> Accuracy | None:
    """The paper's figure, where it has one."""
    return published_accuracies().get((group.links, algorithm, group.data, split))


def rows(group: PlotGroup, comparison: Comparison) -> list[dict[str, Any]]:
    """A group for machines: every view of every algorithm, and the paper's figures."""
    found = []
    for row in comparison.rows():
        shown = row.view == comparison.paper_view(row.algorithm)
        paper = {split: published(group, row.algorithm, split) for split in ("train", "test")}
        found.append(
            {
                "data": group.data,
                "links": group.links,
                "rounds": group.rounds,
                **asdict(row),
                "paper_view": shown,
                "paper": {k: asdict(v) for k, v in paper.items() if v} if shown else {},
            }
        )
    return found


def sheet(data: str, measured: EmpiricalLinks) -> ResultTable:
    """One data set: a row for each link scheme and algorithm."""
    has_paper = any(
        published(group, name, "test") for group, found in measured for name in found.algorithms
    )
    beside = ["paper", "differs by"] if has_paper else []
    head = ["links", "algorithm", "view", "test %", *beside, "train %", *beside]
    head += ["deployable view", "its test %"]
    lines: list[list[Entry | str]] = []
    for group, found in measured:
        shown = {name: row_of(found, name, False) for name in found.algorithms}
        test, train = (_ranks(shown, pick) for pick in (_test, _train))
        for name, row in shown.items():
            if row is None:
                empty = [""] * (len(head) - 4)
                lines.append([group.links, name_of(name), "", "failed", *empty])
                continue
            line: list[Entry | str] = [group.links, name_of(name), row.view]
            for split, pick, ranks in (("test", _test, test), ("train", _train, train)):
                line.append(Entry(str(pick(row) or "–"), ranks.get(name, 0)))
                if has_paper:
                    line += _beside(pick(row), published(group, name, split))
            deployable = row_of(found, name, True)
            line.append(deployable.view if deployable else "–")
            line.append(str(deployable.test) if deployable else "–")
            lines.append(line)
    notes = [] if has_paper else [f"The paper has no figures for {data}."]
    return ResultTable(f"{data}: accuracy, %", head, lines, notes)


def _test(row: Row) -> Spread | None:
    return row.test


def _train(row: Row) -> Spread | None:
    return row.train


def _ranks(shown: dict[str, Row | None], pick: Callable[[Row], Spread | None]) -> dict[str, int]:
    spreads = {name: pick(row) for name, row in shown.items() if row is not None}
    # As precisely as they are shown: nobody should be second by a difference that is not seen.
    return standing({n: round(100 * s.mean, 1) for n, s in spreads.items() if s is not None})


def _beside(measured: Spread | None, paper: Accuracy | None) -> list[str]:
    if paper is None:
        return ["", ""]
    return [str(paper), "" if measured is None else f"{100 * measured.mean - paper.mean:+.1f}"]


def draw(data: str, measured: EmpiricalLinks, place: Path, quick: bool) -> list[Path]:
    """Bars: in the paper's view, and in each algorithm's best deployable one."""
    from fedpbc.report.plot import save_figure

    clusters = [Cluster(group.links, found, _published_test(group)) for group, found in measured]
    panels = [
        Panel("the view that the paper shows (mean for fedpbc and fedawe)", clusters),
        Panel("each algorithm's best view that a server could deploy", clusters, deployable=True),
    ]
    return save_figure(bars(panels, heading(data, measured, quick)), place)


def _published_test(group: PlotGroup) -> Callable[[str], float | None]:
    def value(algorithm: str) -> float | None:
        found = published(group, algorithm, "test")
        return None if found is None else found.mean

    return value


def heading(what: str, measured: Sequence[tuple[PlotGroup, Comparison]], quick: bool) -> str:
    """A figure's title: what, how long, over how many seeds."""
    seeds = len({cell.seed for _, found in measured for cell in found.cells})
    over = f"± one deviation over {seeds} seeds" if seeds > 1 else "one seed"
    rounds = f"{measured[0][0].rounds:,} rounds"
    return f"{what} · {rounds} · {over}" + (" · quick, not the paper's scale" if quick else "")
