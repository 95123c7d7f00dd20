"""The paired differences of a comparison as a table of text: one row per algorithm.

Each is shown in the view to deploy. docs/statistics.md explains the columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.paired import Paired, PairedRow
from fedpbc.experiments.score_text import (
    between,
    difference_text,
    number_text,
    recovered_text,
)
from fedpbc.report.comparison_table import marked_name

__all__ = [
    "DETAILS",
    "MEAN_NOTE",
    "RATIOS",
    "PairedCells",
    "paired_headings",
    "paired_notes",
    "paired_rows",
    "shows_differences",
]

DETAILS = ("view", "test %", "test loss", "models on server", "on client")
"""Columns that a comparison's table has, too; a narrow terminal does not show them again."""
RATIOS = ("local steps ×", "bytes up ×")
"""Columns that the narrowest terminals do not show."""
MEAN_NOTE = (
    "test % here: mean and its 95 % interval over seeds; it does not tell who is better, the "
    "paired differences do."
)
PairedCells = list[tuple[str, float | None]]
"""A row: the text of each cell, and a number to sort by."""


def shows_differences(paired: Paired) -> bool:
    """Return whether there is something to compare."""
    return len(paired.rows) > 1


def paired_headings(paired: Paired) -> list[str]:
    """Return the column headings; only a comparison with a ceiling has something to recover."""
    return [
        "algorithm",
        "view",
        "test %" if paired.has_classes else "test loss",
        f"vs {paired.baseline}",
        *(["recovered"] if _has_ceiling(paired) else []),
        "local steps ×",
        "bytes up ×",
        "models on server",
        "on client",
    ]


def paired_rows(comparison: Comparison, paired: Paired) -> list[PairedCells]:
    """Return the rows, in the order of the algorithms."""
    baseline = paired.row(paired.baseline or "")
    return [_cells(comparison, paired, row, baseline) for row in paired.rows]


def _cells(
    comparison: Comparison, paired: Paired, row: PairedRow, baseline: PairedRow | None
) -> PairedCells:
    has_classes, difference, costs = paired.has_classes, row.difference, row.costs
    # The loss itself is shown; its negative is what is compared.
    sign = 1 if has_classes else -1
    mean = f"{100 * row.mean:.1f}" if has_classes else f"{-row.mean:.4g}"
    if row.interval is not None:
        ends = row.interval if has_classes else row.interval.negated()
        mean = f"{mean} ({between(ends, has_classes)})"
    versus = "baseline" if row is baseline else "–"
    if difference is not None:
        versus = difference_text(difference, has_classes)
    cells: PairedCells = [
        (marked_name(row.name, comparison.cost_of(row.name)["memory_aided"]), None),
        (row.view, None),
        (mean, sign * row.mean),
        (versus, 0.0 if row is baseline else None if difference is None else difference.mean),
    ]
    if _has_ceiling(paired):
        share = row.recovered
        cells.append(("–", None) if share is None else (recovered_text(share), share.value))
    baseline_costs = None if baseline is None else baseline.costs
    for cost, baseline_cost in (
        (costs.local_steps, baseline_costs and baseline_costs.local_steps),
        (costs.bytes_up, baseline_costs and baseline_costs.bytes_up),
    ):
        ratio = cost / baseline_cost if cost is not None and baseline_cost else None
        cells.append(("–", None) if ratio is None else (_times(ratio), ratio))
    for count in (costs.models_on_server, costs.models_on_client):
        cells.append(("–" if count is None else f"{count:,}", count))
    return cells


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}" if ratio >= 10 else f"{ratio:.2f}"


def _has_ceiling(paired: Paired) -> bool:
    return any(row.recovered is not None for row in paired.rows)


def paired_notes(paired: Paired) -> list[str]:
    """Return what a reader must know to read the table."""
    if not shows_differences(paired):
        return []
    what = "in points of test accuracy" if paired.has_classes else "in test loss, above 0 is better"
    pairs = [row.difference for row in paired.rows if row.difference is not None]
    counts = sorted({len(difference.seeds) for difference in pairs})
    intervals = "its 95 % interval and the seeds won"
    if counts == [1]:
        intervals = "one seed, so no interval: nothing can be told about noise"
    notes = [
        f"vs {paired.baseline}: the mean difference between views to deploy with the same seed, "
        f"{what}; {intervals}. ×: relative to {paired.baseline}.",
    ]
    if paired.has_classes and any(row.interval for row in paired.rows):
        notes.append(MEAN_NOTE)
    if paired.note:
        notes.append(f"{paired.note}.")
    if _has_ceiling(paired):
        notes += _recovered_notes(paired)
    return notes


def _recovered_notes(paired: Paired) -> Sequence[str]:
    values = "accuracy" if paired.has_classes else "minus loss"
    cost = paired.links_cost
    notes = [
        f"recovered: ({values} − fedavg's) / (ceiling − fedavg's) with Fieller's 95 % interval, "
        "where the ceiling is the same training with every link up."
    ]
    if cost is not None:
        # The same number as in the ceiling's row, if the baseline is FedAvg.
        unit = " points" if paired.has_classes else " in loss"
        size = number_text(cost.mean, paired.has_classes)
        noise = ""
        if cost.interval is not None:
            noise = f" ({between(cost.interval, paired.has_classes)})"
        notes.append(f"Failing links cost {cost.baseline} {size}{unit}{noise}.")
    reasons: dict[str, list[str]] = {}
    for row in paired.rows:
        if row.recovered is not None and row.recovered.why_undefined:
            reasons.setdefault(row.recovered.why_undefined, []).append(row.name)
    for reason, names in reasons.items():
        whose = "" if len(names) == len(paired.rows) else f" for {', '.join(names)}"
        notes.append(f"recovered is undefined{whose}: {reason}.")
    return notes
