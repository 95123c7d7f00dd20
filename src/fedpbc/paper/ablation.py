"""The ablation: accuracy against α, γ, δ and σ₀, one at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fedpbc.errors import InputError
from fedpbc.links import find_scheme
from fedpbc.paper.bar_chart import BarCluster, BarPanel, draw_bars
from fedpbc.paper.catalog import ExperimentRequest, ExperimentResult
from fedpbc.paper.grid import WINDOW, ConditionResult
from fedpbc.paper.plan import PaperCondition, plan_conditions
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
from fedpbc.report.comparison_table import marked_name

__all__ = ["PARAMETERS", "run"]

OPTIONS = ("data", "data_dir", "algorithms", "links", "seeds", "rounds", "jobs", "tuned")
QUICK_ROUNDS = 300
BASE = "base"


@dataclass(frozen=True)
class Parameter:
    """A parameter that is varied: its option, its values, and the value of the tables."""

    symbol: str
    section: str
    option: str
    base: float
    full_values: Sequence[float]
    quick_values: Sequence[float]

    def values(self, quick: bool) -> Sequence[float]:
        """The values to run."""
        return self.quick_values if quick else self.full_values

    def key(self, value: float) -> str:
        """The folder of a value; all parameters share the one of the tables' values."""
        return BASE if value == self.base else f"{self.option}-{value:g}"

    def label(self, value: float) -> str:
        """A readable name of a value."""
        return f"{self.symbol} = {value:g}" + (" (table 1's)" if value == self.base else "")


# The paper shows its values in a figure only. Its text names α = 1, δ = 0.001, and σ₀ = 1 and 20;
# the others are chosen here, on both sides of the tables' value where possible.
PARAMETERS = (
    Parameter("α", "data", "alpha", 0.1, (0.05, 0.1, 0.5, 1.0), (0.05, 0.1, 1.0)),
    Parameter("γ", "links", "gamma", 0.4, (0.1, 0.2, 0.4, 0.5), (0.1, 0.4, 0.5)),
    Parameter("δ", "links", "delta", 0.02, (0.001, 0.01, 0.02, 0.1), (0.001, 0.02, 0.1)),
    Parameter("σ₀", "links", "sigma", 10.0, (1.0, 5.0, 10.0, 20.0), (1.0, 10.0, 20.0)),
)


def run(request: ExperimentRequest) -> ExperimentResult:
    """Run the grid and write the tables."""
    quick = request.quick
    rounds = QUICK_ROUNDS if quick else None
    bases = plan_conditions(request, ["cifar10"], ["bernoulli_varying"], rounds)
    for parameter in PARAMETERS:
        if parameter.option in request.settings.get(parameter.section, {}):
            raise InputError(
                f"'--set {parameter.section}.{parameter.option}' is not allowed here: "
                "the ablation varies it"
            )
    conditions = [condition for base in bases for condition in vary(base, quick)]
    sweep, notes = run_conditions("ablation", request, conditions, last=WINDOW)
    notes += [
        "One parameter is changed at a time; the others are as in table 1: "
        + ", ".join(f"{parameter.symbol} = {parameter.base:g}" for parameter in PARAMETERS)
        + " (the same runs in every panel).",
        window_note(sweep),
        "The paper shows its values in a figure only; its text names α = 1, δ = 0.001, and σ₀ = 1 "
        "and 20, the other values are chosen here.",
        VIEWS_NOTE,
        RANK_NOTE,
    ]
    tables, pictures = [], []
    for base in bases:
        results = {c.key[-1]: (c, r) for c, r in sweep.comparisons if c.key[:-1] == base.key}
        tables.append(accuracy_table(base, results, quick))
        pictures += draw(base, results, sweep.path / f"ablation-{'-'.join(base.key)}", quick)
    numbers = [
        {"data": c.data, "links": c.links, "changed": dict(c.changes), **asdict(row)}
        for c, comparison in sweep.comparisons
        for row in comparison.rows()
    ]
    return write_tables(
        "ablation",
        request,
        sweep,
        tables=tables,
        notes=notes,
        numbers={"rows": numbers},
        pictures=pictures,
        next="open report.html; '--set links.period=…' and the like change what is held fixed",
    )


def parameters_of(base: PaperCondition) -> list[Parameter]:
    """The parameters that the link scheme has: γ exists only where p_i^t varies."""
    has_gamma = "gamma" in find_scheme(base.links).options
    return [p for p in PARAMETERS if p.option != "gamma" or has_gamma]


def vary(base: PaperCondition, quick: bool) -> list[PaperCondition]:
    """The tables' condition, and one for each changed value."""
    conditions = [replace(base, key=(*base.key, BASE))]
    for parameter in parameters_of(base):
        for value in parameter.values(quick):
            if value != parameter.base:
                key = (*base.key, parameter.key(value))
                changes = {parameter.section: {parameter.option: value}}
                conditions.append(replace(base, key=key, changes=changes))
    return conditions


def accuracy_table(
    base: PaperCondition, results: Mapping[str, ConditionResult], quick: bool
) -> ResultTable:
    """A row for each value and algorithm."""
    lines: list[list[TableEntry | str]] = []
    for parameter in parameters_of(base):
        for value in parameter.values(quick):
            _, comparison = results[parameter.key(value)]
            rows = {name: comparison.row(name) for name in comparison.algorithms}
            ranks = rank_rows(rows, "test")
            for name, row in rows.items():
                first = [parameter.label(value), marked_name(name)]
                if row is None:
                    lines.append([*first, "", "failed", "", ""])
                    continue
                test = TableEntry(str(row.test), ranks.get(name, 0))
                lines.append([*first, row.view, test, *deployable_cells(comparison, name)])
    head = ["changed", "algorithm", "view", "test %", "deployable view", "its test %"]
    return ResultTable(f"{base.title}: test accuracy, %", head, lines)


def draw(
    base: PaperCondition, results: Mapping[str, ConditionResult], path: Path, quick: bool
) -> list[Path]:
    """Draw a panel for each parameter, in the paper's view."""
    panels = [
        BarPanel(
            f"the impact of {p.symbol} ({p.section}.{p.option}), in the paper's view",
            [BarCluster(p.label(v), results[p.key(v)][1]) for v in p.values(quick)],
        )
        for p in parameters_of(base)
    ]
    return draw_bars(panels, f"{base.title} · {base.rounds:,} rounds", path, quick=quick)
