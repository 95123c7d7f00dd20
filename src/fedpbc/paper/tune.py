"""The paper's grid search over η_0 and η_g; the tables use what it chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import tomli_w

from fedpbc.algorithms import PAPER_ALGORITHMS
from fedpbc.errors import InputError
from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.run_result import RunResult
from fedpbc.experiments.sweep import DivergedReason
from fedpbc.paper.catalog import ExperimentRequest, ExperimentResult, default_folder
from fedpbc.paper.grid import WINDOW, SweepResult, run_planned
from fedpbc.paper.heatmap import GridPoint, draw_heatmaps
from fedpbc.paper.plan import PAPER_DATA, PaperCondition, plan_conditions, plan_runs
from fedpbc.paper.request import requested_algorithms, requested_seeds
from fedpbc.paper.result_table import ResultTable
from fedpbc.paper.results import figure_title, links_notes, scale_note, seeds_note, write_tables
from fedpbc.paper.step_sizes import CHOSEN, STEP_SIZES, read_chosen
from fedpbc.report.comparison_table import AIDED_NOTE, marked_name
from fedpbc.storage.atomic import write_atomically
from fedpbc.text import shell_quoted

__all__ = ["best_point", "run"]

OPTIONS = ("data", "data_dir", "algorithms", "links", "seeds", "rounds", "jobs")
LEARNING_RATES = (0.1, 0.05, 0.01, 0.005, 0.001, 0.0005)
GLOBAL_LEARNING_RATES = (0.5, 1.0, 1.5, 5.0, 10.0, 50.0)
ROUNDS = 500
EVALUATE_EVERY = 25
QUICK_LEARNING_RATES = (0.1, 0.05, 0.01)
QUICK_GLOBAL_LEARNING_RATES = (0.5, 1.0, 1.5)
QUICK_ROUNDS = 100
DEFAULT_PAIR = (0.05, 1.0)
LINKS = "bernoulli_varying"
LINKS_NOTE = (
    "Tuned on bernoulli_varying, the scheme of table 2 and of the ablation, for all schemes: the "
    "paper does not say on which, and one choice for all keeps them comparable."
)

GridPoints = Mapping[tuple[str, str], Sequence[GridPoint]]
"""All points of the grid, by data set and algorithm."""


def best_point(points: Sequence[GridPoint]) -> GridPoint | None:
    """The pair with the best accuracy, the first of equal ones; None if no run finished."""
    finished = [point for point in points if point.test is not None]
    return max(finished, key=lambda point: point.test.mean if point.test else 0.0, default=None)


def run(request: ExperimentRequest) -> ExperimentResult:
    """Run the grid, write the choice and the tables."""
    quick = request.quick
    for key in STEP_SIZES:
        if key in request.settings.get("train", {}):
            raise InputError(f"'--set train.{key}' is not allowed here: it is what is tuned")
    bases = plan_conditions(request, PAPER_DATA, [LINKS], QUICK_ROUNDS if quick else ROUNDS)
    if len(links := sorted({base.links for base in bases})) > 1:
        raise InputError("links", links, "one scheme: there is one choice for each data set")
    pairs = [
        (eta, eta_g)
        for eta in (QUICK_LEARNING_RATES if quick else LEARNING_RATES)
        for eta_g in (QUICK_GLOBAL_LEARNING_RATES if quick else GLOBAL_LEARNING_RATES)
    ]
    conditions = [with_step_sizes(base, *pair) for base in bases for pair in pairs]
    # One seed is enough for the search; the tables then use three.
    seeds = requested_seeds(request, (0,))
    # Only the paper's view counts; evaluating the others would take longer than training.
    settings = {"views": ["server", "mean"], **request.settings}
    runs = plan_runs(
        replace(request, settings=settings), conditions, seeds, evaluate_every=EVALUATE_EVERY
    )
    sweep = run_planned("tune", request, runs, last=WINDOW, search=True)
    algorithms = requested_algorithms(request, PAPER_ALGORITHMS)
    points = {
        (base.data, name): grid_points(sweep, base, name) for base in bases for name in algorithms
    }
    chosen = write_chosen(sweep.path / CHOSEN, bases[0], seeds, points, request)
    notes = [
        scale_note(request, runs),
        LINKS_NOTE if bases[0].links == LINKS else f"Tuned on {bases[0].links}.",
        *links_notes(runs),
        "Compared by test accuracy in the paper's view ('mean' where clients have models of their "
        f"own, else 'server') after {bases[0].rounds} rounds: the mean of the evaluations in the "
        f"last {max(c.window for _, c in sweep.comparisons)}. {seeds_note(sweep)}",
        "A pair that diverged counts as worst.",
        AIDED_NOTE,
    ]
    tables, pictures = [], []
    for base in bases:
        of_base = {name: points[base.data, name] for name in algorithms}
        tables.append(choice_table(base, of_base))
        title = figure_title(f"{base.data} · {base.links} · after {base.rounds} rounds", quick)
        pictures += draw_heatmaps(of_base, title, sweep.path / f"tune-{base.data}")
    result = write_tables(
        "tune",
        request,
        # A search expects that some runs diverge; other failures are reported.
        replace(sweep, cells=[(run, without_divergence(cell)) for run, cell in sweep.cells]),
        tables=tables,
        notes=notes,
        numbers={
            "chosen": chosen,
            "tried": [
                {"data": data, "algorithm": name, **asdict(point)}
                for (data, name), of_one in points.items()
                for point in of_one
            ],
        },
        pictures=pictures,
        folders=chosen_folders(sweep, points),
        next=next_command(sweep.path / CHOSEN, quick),
    )
    return replace(result, written=[sweep.path / CHOSEN, *result.written])


def next_command(chosen: Path, quick: bool) -> str:
    """The command that uses the choice; only in the default folder it is found by itself."""
    words = ["fedpbc", "paper", "table1", *(["--quick"] if quick else [])]
    if chosen.parent != default_folder("tune", quick):
        words += ["--tuned", shell_quoted(chosen)]
    return f"`{' '.join(words)}` uses {shell_quoted(chosen)}"


def with_step_sizes(base: PaperCondition, eta: float, eta_g: float) -> PaperCondition:
    """The condition with one pair of step sizes."""
    train = dict(zip(STEP_SIZES, (eta, eta_g), strict=True))
    key = (*base.key, f"eta0-{eta:g}-etag-{eta_g:g}")
    return replace(base, key=key, changes={"train": train})


def grid_points(sweep: SweepResult, base: PaperCondition, algorithm: str) -> list[GridPoint]:
    """The results of one algorithm for each pair."""
    points = []
    for condition, comparison in sweep.comparisons:
        if condition.key[:-1] != base.key:
            continue
        cells = [cell for cell in comparison.runs if cell.algorithm == algorithm]
        # A pair with which one seed fails cannot be chosen.
        finished = all(cell.failure is None for cell in cells)
        row = Comparison(cells).row(algorithm) if finished else None
        diverged = any(isinstance(cell.failure, DivergedReason) for cell in cells)
        eta, eta_g = (condition.changes["train"][key] for key in STEP_SIZES)
        points.append(GridPoint(eta, eta_g, row.test if row else None, diverged))
    return points


def without_divergence(cell: RunResult) -> RunResult:
    """Remove the failure of a diverged run."""
    return replace(cell, failure=None) if isinstance(cell.failure, DivergedReason) else cell


def write_chosen(
    path: Path,
    base: PaperCondition,
    seeds: Sequence[int],
    points: GridPoints,
    request: ExperimentRequest,
) -> dict[str, dict[str, Any]]:
    """Write the choice; earlier choices for other data sets and algorithms are kept."""
    chosen: dict[str, dict[str, Any]] = {}
    if path.is_file():
        for (data, name), sizes in read_chosen(path)[0].items():
            chosen.setdefault(data, {})[name] = dict(sizes)
    for (data, name), of_one in points.items():
        best = best_point(of_one)
        chosen.setdefault(data, {}).pop(name, None)
        if best is not None and best.test is not None:
            chosen[data][name] = {
                **dict(zip(STEP_SIZES, best.pair, strict=True)),
                "test_percent": round(100 * best.test.mean, 2),
            }
    content = {
        "command": request.command("tune"),
        "quick": request.quick,
        "rounds": base.rounds,
        "links": base.links,
        "seeds": list(seeds),
        "chosen": chosen,
    }
    write_atomically(path, tomli_w.dumps(content))
    return chosen


def chosen_folders(sweep: SweepResult, points: GridPoints) -> list[Path]:
    """The folders of the chosen pairs' runs; a page with hundreds of curves is not readable."""
    best = {key: best_point(of_one) for key, of_one in points.items()}
    folders = []
    for run, cell in sweep.cells:
        point = best[run.condition.data, run.algorithm]
        pair = tuple(run.condition.changes["train"][key] for key in STEP_SIZES)
        if point and point.pair == pair and cell.failure is None:
            folders.append(sweep.path / run.folder)
    return folders


def choice_table(base: PaperCondition, points: Mapping[str, Sequence[GridPoint]]) -> ResultTable:
    """The chosen step sizes of each algorithm, beside the default ones."""
    lines = []
    for name, of_one in points.items():
        best = best_point(of_one)
        sizes = ["none", "none", "–"]
        if best is not None:
            sizes = [*(f"{size:g}" for size in best.pair), str(best.test)]
        default = [point for point in of_one if point.pair == DEFAULT_PAIR]
        default_test = str(default[0].test or "diverged") if default else "not tried"
        diverged = str(sum(point.diverged for point in of_one))
        lines.append([marked_name(name), *sizes, default_test, diverged])
    head = ["algorithm", "η_0", "η_g", "test %", "default's test %", "pairs diverged"]
    pairs = len(next(iter(points.values())))
    notes = [f"The best of {pairs} pairs each; the default is η_0 = 0.05, η_g = 1."]
    return ResultTable(
        f"{base.data}: the step sizes chosen on {base.links}", head, lines, notes, sections=0
    )
