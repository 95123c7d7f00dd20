"""The ablation: accuracy against α, γ, δ and σ₀, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fedpbc.errors import InputError
from fedpbc.experiments.comparison import Comparison
from fedpbc.links import find_scheme
from fedpbc.paper.bars import Cluster, Panel, bars, row_of
from fedpbc.paper.experiment import ExperimentRequest, ExperimentResult
from fedpbc.paper.grid import WINDOW, run_planned
from fedpbc.paper.plan import PlotGroup, groups_of, planned, seeds_of
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
from fedpbc.paper.table1 import heading

__all__ = ["AXES", "run"]

OPTIONS = ("data", "data_dir", "algorithms", "links", "seeds", "rounds", "jobs", "tuned")
EVALUATE_EVERY = 10
QUICK_ROUNDS, QUICK_SEEDS = 300, (0, 1)
BASE = "base"


@dataclass(frozen=True)
class Axis:
    """What is changed: the option, its values, and which of them the tables have."""

    symbol: str
    section: str
    option: str
    base: float
    values: Sequence[float]
    quick: Sequence[float]

    def key(self, value: float) -> str:
        """The folder of a value; all that the tables have share one."""
        return BASE if value == self.base else f"{self.option}-{value:g}"


# The paper shows them in a picture. Its text names α = 1, δ = 0.001, and σ₀ = 1 and 20; the others
# are chosen here, on both sides of what the tables have where that is possible.
AXES = (
    Axis("α", "data", "alpha", 0.1, (0.05, 0.1, 0.5, 1.0), (0.05, 0.1, 1.0)),
    Axis("γ", "links", "gamma", 0.4, (0.1, 0.2, 0.4, 0.5), (0.1, 0.4, 0.5)),
    Axis("δ", "links", "delta", 0.02, (0.001, 0.01, 0.02, 0.1), (0.001, 0.02, 0.1)),
    Axis("σ₀", "links", "sigma", 10.0, (1.0, 5.0, 10.0, 20.0), (1.0, 10.0, 20.0)),
)

Found = dict[str, tuple[PlotGroup, Comparison]]


def run(wanted: ExperimentRequest) -> ExperimentResult:
    """Run the grid, and write and show what came of it."""
    quick = wanted.quick
    bases = groups_of(
        wanted,
        ["fashion"] if quick else ["cifar10"],
        ["bernoulli_varying"],
        QUICK_ROUNDS if quick else None,
    )
    for axis in AXES:
        if axis.option in wanted.settings.get(axis.section, {}):
            right = "left out: the ablation changes it itself"
            raise InputError("--set", f"{axis.section}.{axis.option}", right)
    groups = [group for base in bases for group in changed(base, quick)]
    seeds = seeds_of(wanted, QUICK_SEEDS if quick else (0, 1, 2))
    sizes = find_step_sizes(wanted)
    runs = planned(wanted, groups, seeds, evaluate_every=EVALUATE_EVERY, train=sizes.chosen)
    outcome = run_planned("ablation", wanted, runs, last=WINDOW)
    windows = sorted({found.window for _, found in outcome.groups if found.finished})
    notes = [
        scale_note(wanted, runs),
        sizes.note(runs),
        "One parameter is changed at a time; the others are as in table 1: "
        + ", ".join(f"{axis.symbol} = {axis.base:g}" for axis in AXES)
        + " (the same runs in every panel).",
        f"Each the mean of the evaluations in the last {' or '.join(map(str, windows))} rounds. "
        + seeds_note(runs),
        "The paper shows its values as a picture only; its text names α = 1, δ = 0.001, and σ₀ = 1 "
        "and 20, the other values are chosen here.",
        VIEWS_NOTE,
        f"{RANK_NOTE} {AIDED_NOTE}",
    ]
    sheets, pictures = [], []
    for base in bases:
        own: Found = {
            group.key[-1]: (group, found)
            for group, found in outcome.groups
            if group.key[:-1] == base.key
        }
        sheets.append(sheet(base, own, quick))
        name = "ablation-" + "-".join(base.key)
        pictures += draw(base, own, outcome.path / name, quick)
    numbers = [
        {"data": g.data, "links": g.links, "changed": dict(g.changes), **asdict(row)}
        for g, found in outcome.groups
        for row in found.rows()
    ]
    return finish(
        "ablation",
        wanted,
        outcome,
        sheets=sheets,
        notes=notes,
        numbers={"rows": numbers},
        pictures=pictures,
        next="open report.html; '--set links.period=…' and the like change what is held fixed",
    )


def axes_of(base: PlotGroup) -> list[Axis]:
    """Those that the link scheme has: only where p_i^t varies there is a γ."""
    return [a for a in AXES if a.option != "gamma" or "gamma" in find_scheme(base.links).options]


def values_of(axis: Axis, quick: bool) -> Sequence[float]:
    """Fewer where it must be quick."""
    return axis.quick if quick else axis.values


def changed(base: PlotGroup, quick: bool) -> list[PlotGroup]:
    """A group for what the tables have, and one for each change."""
    groups = [replace(base, key=(*base.key, BASE))]
    for axis in axes_of(base):
        for value in values_of(axis, quick):
            if value != axis.base:
                changes = {axis.section: {axis.option: value}}
                groups.append(replace(base, key=(*base.key, axis.key(value)), changes=changes))
    return groups


def _label(axis: Axis, value: float) -> str:
    return f"{axis.symbol} = {value:g}" + (" (table 1's)" if value == axis.base else "")


def sheet(base: PlotGroup, own: Found, quick: bool) -> ResultTable:
    """A row for each value and algorithm."""
    lines: list[list[Entry | str]] = []
    for axis in axes_of(base):
        for value in values_of(axis, quick):
            _, found = own[axis.key(value)]
            shown = {name: row_of(found, name, False) for name in found.algorithms}
            tests = {n: r.test for n, r in shown.items() if r is not None and r.test is not None}
            ranks = standing({n: round(100 * test.mean, 1) for n, test in tests.items()})
            for name, row in shown.items():
                first = [_label(axis, value), name_of(name)]
                if row is None:
                    lines.append([*first, "", "failed", "", ""])
                    continue
                best = row_of(found, name, True)
                deployable = ["–", "–"] if best is None else [best.view, str(best.test)]
                lines.append(
                    [*first, row.view, Entry(str(row.test), ranks.get(name, 0)), *deployable]
                )
    head = ["changed", "algorithm", "view", "test %", "deployable view", "its test %"]
    return ResultTable(f"{base.title}: test accuracy, %", head, lines)


def draw(base: PlotGroup, own: Found, place: Path, quick: bool) -> list[Path]:
    """A panel for each parameter, in the paper's view."""
    from fedpbc.report.plot import save_figure

    panels = [
        Panel(
            f"the impact of {axis.symbol} ({axis.section}.{axis.option}), in the paper's view",
            [Cluster(_label(axis, v), own[axis.key(v)][1]) for v in values_of(axis, quick)],
        )
        for axis in axes_of(base)
    ]
    return save_figure(bars(panels, heading(base.title, list(own.values()), quick)), place)
