"""The paper's grid search over η_0 and η_g; the tables use what it chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from fedpbc.errors import InputError
from fedpbc.experiments.comparison import Cell, Comparison, Spread
from fedpbc.experiments.sweep import DivergedReason
from fedpbc.paper.bars import row_of
from fedpbc.paper.experiment import ExperimentRequest, ExperimentResult
from fedpbc.paper.grid import WINDOW, SweepResult, run_planned
from fedpbc.paper.heatmap import draw_grids
from fedpbc.paper.plan import PlotGroup, algorithms_of, groups_of, planned, seeds_of
from fedpbc.paper.result_table import AIDED_NOTE, ResultTable, name_of
from fedpbc.paper.results import finish, scale_note, seeds_note
from fedpbc.paper.step_sizes import CHOSEN, read_chosen
from fedpbc.storage.atomic import write_atomically

__all__ = ["GridPoint", "best_of", "run"]

OPTIONS = ("data", "data_dir", "algorithms", "links", "seeds", "rounds", "jobs")
LEARNING_RATES = (0.1, 0.05, 0.01, 0.005, 0.001, 0.0005)
GLOBAL_LEARNING_RATES = (0.5, 1.0, 1.5, 5.0, 10.0, 50.0)
ROUNDS = 500
EVALUATE_EVERY = 25
QUICK_LEARNING_RATES = (0.1, 0.05, 0.01)
QUICK_GLOBAL_LEARNING_RATES = (0.5, 1.0, 1.5)
QUICK_ROUNDS = 100
LINKS = "bernoulli_varying"
WHY_LINKS = (
    "Tuned on bernoulli_varying, the scheme of table 2 and of the ablation, for all schemes: the "
    "paper does not say on which, and one choice for all keeps them comparable."
)


@dataclass(frozen=True)
class GridPoint:
    """One pair of step sizes; ``test`` is None where it diverged or failed."""

    learning_rate: float
    global_learning_rate: float
    test: Spread | None
    diverged: bool = False


def best_of(tried: Sequence[GridPoint]) -> GridPoint | None:
    """The pair with the best accuracy; the first of equals, and None if none came to its end.

    Example:
        >>> low, high = Spread.of([0.3]), Spread.of([0.4])
        >>> diverged = GridPoint(0.1, 50, None, True)
        >>> best_of([diverged, GridPoint(0.1, 1, low), GridPoint(0.05, 1, high)])
        GridPoint(learning_rate=0.05, global_learning_rate=1, test=Spread(mean=0.4, deviation=0.0, \
seeds=1), diverged=False)
    """
    finished = [pair for pair in tried if pair.test is not None]
    return max(finished, key=lambda pair: pair.test.mean if pair.test else 0.0, default=None)


def run(wanted: ExperimentRequest) -> ExperimentResult:
    """Run the grid, and write and show what came of it."""
    quick = wanted.quick
    for key in ("learning_rate", "global_learning_rate"):
        if key in wanted.settings.get("train", {}):
            raise InputError("--set", f"train.{key}", "left out: it is what is tuned")
    data = ["fashion"] if quick else ["svhn", "cifar10", "cinic10"]
    bases = groups_of(wanted, data, [LINKS], QUICK_ROUNDS if quick else ROUNDS)
    if len(links := sorted({base.links for base in bases})) > 1:
        raise InputError("links", links, "one scheme: a choice is made for each data set")
    pairs = [
        (eta, eta_g)
        for eta in (QUICK_LEARNING_RATES if quick else LEARNING_RATES)
        for eta_g in (QUICK_GLOBAL_LEARNING_RATES if quick else GLOBAL_LEARNING_RATES)
    ]
    groups = [with_step_sizes(base, *pair) for base in bases for pair in pairs]
    # One seed, as a search would have it: the tables then show how it does on three.
    seeds = seeds_of(wanted, (0,))
    # Only the paper's view is looked at; judging the others would take longer than training.
    settings = {"views": ["server", "mean"], **wanted.settings}
    runs = planned(replace(wanted, settings=settings), groups, seeds, evaluate_every=EVALUATE_EVERY)
    outcome = run_planned("tune", wanted, runs, last=WINDOW, search=True)
    algorithms = algorithms_of(wanted)
    found = {
        (base.data, name): tried_pairs(outcome, base, name) for base in bases for name in algorithms
    }
    # A search expects that some diverge; what else goes wrong is a failure.
    failed = replace(outcome, cells=[(r, without_divergence(c)) for r, c in outcome.cells])
    chosen = write_chosen(outcome.path / CHOSEN, bases[0], seeds, found, wanted)
    notes = [
        scale_note(wanted, runs),
        WHY_LINKS if bases[0].links == LINKS else f"Tuned on {bases[0].links}.",
        f"Judged by test accuracy in the paper's view ('mean' where clients have models of their "
        f"own, else 'server') after {bases[0].rounds} rounds: the mean of the evaluations in the "
        f"last {max(c.window for _, c in outcome.groups)}. {seeds_note(runs)}",
        "A pair that diverged counts as worst.",
        AIDED_NOTE,
    ]
    pictures: list[Path] = []
    for base in bases:
        own = {name: found[base.data, name] for name in algorithms}
        title = f"{base.data} · {base.links} · after {base.rounds} rounds"
        title += " · quick, not the paper's scale" if quick else ""
        pictures += draw_grids(own, title, outcome.path / f"tune-{base.data}")
    made = finish(
        "tune",
        wanted,
        failed,
        sheets=[sheet(base, {n: found[base.data, n] for n in algorithms}) for base in bases],
        notes=notes,
        numbers={"chosen": chosen["chosen"], "tried": as_dicts(found)},
        pictures=pictures,
        folders=chosen_folders(outcome, found),
        next=f"'fedpbc paper table1{' --quick' if quick else ''}' uses {outcome.path / CHOSEN}",
    )
    return replace(made, written=[outcome.path / CHOSEN, *made.written])


def with_step_sizes(base: PlotGroup, eta: float, eta_g: float) -> PlotGroup:
    """The group of one pair."""
    train = {"learning_rate": eta, "global_learning_rate": eta_g}
    key = (*base.key, f"eta0-{eta:g}-etag-{eta_g:g}")
    return replace(base, key=key, changes={"train": train})


def tried_pairs(outcome: SweepResult, base: PlotGroup, algorithm: str) -> list[GridPoint]:
    """How each pair did for one algorithm."""
    found = []
    for group, comparison in outcome.groups:
        if group.key[:-1] != base.key:
            continue
        train = group.changes["train"]
        mine = [cell for cell in comparison.cells if cell.algorithm == algorithm]
        whole = all(cell.failure is None for cell in mine)
        # A pair that one seed does not survive is no choice.
        row = row_of(Comparison(mine), algorithm, False) if whole else None
        diverged = any(isinstance(cell.failure, DivergedReason) for cell in mine)
        pair = train["learning_rate"], train["global_learning_rate"]
        found.append(GridPoint(*pair, row.test if row else None, diverged))
    return found


def without_divergence(cell: Cell) -> Cell:
    """A diverged run is no failure of a search."""
    return replace(cell, failure=None) if isinstance(cell.failure, DivergedReason) else cell


def write_chosen(
    place: Path,
    base: PlotGroup,
    seeds: Sequence[int],
    found: dict[tuple[str, str], list[GridPoint]],
    wanted: ExperimentRequest,
) -> dict[str, Any]:
    """Keep the choice; what was chosen earlier for other data and algorithms stays."""
    chosen: dict[str, dict[str, Any]] = {}
    if place.is_file():
        for (data, name), sizes in read_chosen(place)[0].items():
            chosen.setdefault(data, {})[name] = dict(sizes)
    for (data, name), tried in found.items():
        best = best_of(tried)
        chosen.setdefault(data, {}).pop(name, None)
        if best is not None and best.test is not None:
            chosen[data][name] = {
                "learning_rate": best.learning_rate,
                "global_learning_rate": best.global_learning_rate,
                "test_percent": round(100 * best.test.mean, 2),
            }
    kept = {
        "command": wanted.command("tune"),
        "quick": wanted.quick,
        "rounds": base.rounds,
        "links": base.links,
        "seeds": list(seeds),
        "chosen": chosen,
    }
    write_atomically(place, tomli_w.dumps(kept))
    return kept


def chosen_folders(
    outcome: SweepResult, found: dict[tuple[str, str], list[GridPoint]]
) -> list[Path]:
    """The runs of the chosen pairs: hundreds of curves would show nothing."""
    best = {key: best_of(tried) for key, tried in found.items()}
    folders = []
    for run, cell in outcome.cells:
        pair = best[run.group.data, run.algorithm]
        train = run.group.changes["train"]
        same = pair and (pair.learning_rate, pair.global_learning_rate) == tuple(train.values())
        if same and cell.failure is None:
            folders.append(outcome.path / run.place)
    return folders


def sheet(base: PlotGroup, found: dict[str, list[GridPoint]]) -> ResultTable:
    """What was chosen for each algorithm, and how the default does."""
    lines = []
    for name, tried in found.items():
        best = best_of(tried)
        default = [t for t in tried if (t.learning_rate, t.global_learning_rate) == (0.05, 1.0)]
        beside = str(default[0].test or "diverged") if default else "not tried"
        diverged = str(sum(t.diverged for t in tried))
        if best is None:
            lines.append([name_of(name), "none", "none", "–", beside, diverged])
            continue
        sizes = [f"{best.learning_rate:g}", f"{best.global_learning_rate:g}"]
        lines.append([name_of(name), *sizes, str(best.test), beside, diverged])
    head = ["algorithm", "η_0", "η_g", "test %", "default's test %", "pairs diverged"]
    pairs = len(next(iter(found.values())))
    notes = [f"The best of {pairs} pairs each; the default is η_0 = 0.05, η_g = 1."]
    return ResultTable(
        f"{base.data}: the step sizes chosen on {base.links}", head, lines, notes, sections=0
    )


def as_dicts(found: dict[tuple[str, str], list[GridPoint]]) -> list[dict[str, Any]]:
    """For machines."""
    return [
        {
            "data": data,
            "algorithm": name,
            "learning_rate": t.learning_rate,
            "global_learning_rate": t.global_learning_rate,
            "test": None if t.test is None else vars(t.test),
            "diverged": t.diverged,
        }
        for (data, name), tried in found.items()
        for t in tried
    ]
