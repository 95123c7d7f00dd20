"""The result of ``fedpbc theory`` as tables, and every client's numbers as CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpbc.errors import InputError
from fedpbc.report.text_table import TextTable
from fedpbc.storage.atomic import write_atomically
from fedpbc.theory.summary import TheorySummary

__all__ = ["check_out", "client_weights_table", "quantities_table", "write_clients"]

MAX_CLIENTS = 12
"""Up to this many clients are all shown."""
EXTREMES = 3
"""Of more clients, this many with the smallest and the largest weights."""
COLUMNS = {
    "client": "client",
    "p": "p",
    "share_of_rounds": "share of\nrounds up",
    "uniform": "1/m",
    "weight": "weight in\nFedAvg",
    "measured_weight": "measured\nweight",
    "staleness_limit": "1/p",
    "staleness": "expected\nstaleness",
    "measured_staleness": "measured\nstaleness",
}
DISPENSABLE = ("measured_staleness", "measured_weight", "staleness_limit", "uniform")
"""Columns that a narrow terminal does not show, the last of them first."""
SOURCES = {"expected": "exact", "measured": "measured"}


def check_out(path: Path | None) -> None:
    """Raise before the work begins if the CSV file cannot be written."""
    if path is None:
        return
    if path.suffix != ".csv" or path.is_dir():
        raise InputError("--out", str(path), "a file that ends in .csv")
    if not path.parent.is_dir():
        raise InputError("--out", str(path), "in a folder that exists")


def write_clients(summary: TheorySummary, path: Path) -> None:
    """Write every client's numbers as CSV; unknown values are empty."""
    rows, text = summary.rows(), io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def client_weights_table(summary: TheorySummary) -> TextTable:
    """Return the clients' weights under FedAvg and their staleness."""
    rows = summary.rows()
    columns = [name for name in COLUMNS if any(row[name] is not None for row in rows)]
    table = TextTable()
    for name in columns:
        rank = DISPENSABLE.index(name) + 1 if name in DISPENSABLE else 0
        table.column(COLUMNS[name], right=True, rank=rank)
    clients = _shown_clients(summary)
    all_shown = len(clients) == len(rows)
    for k, client in enumerate(clients):
        if k == EXTREMES and not all_shown:
            table.row(*["…"] * len(columns))
        table.row(*(format_number(rows[client][name]) for name in columns))
    if not all_shown:
        table.section()
        values: list[list[Any]] = [[row[name] for row in rows] for name in columns[1:]]
        for label, statistic in (("least", np.min), ("mean", np.mean), ("most", np.max)):
            numbers = (None if None in column else float(statistic(column)) for column in values)
            table.row(label, *map(format_number, numbers))
    return table


def _shown_clients(summary: TheorySummary) -> list[int]:
    if summary.clients <= MAX_CLIENTS:
        return list(range(summary.clients))
    weights = next(iter(summary.weights.values()), np.zeros(summary.clients))
    order = np.argsort(weights, kind="stable").tolist()
    return [*order[:EXTREMES], *order[-EXTREMES:]]


def quantities_table(summary: TheorySummary) -> TextTable:
    """Return everything that is one number, and how it is known."""
    table = TextTable()
    for name, folds in (("quantity", 20), ("value", 16), ("how", 10)):
        table.column(name, right=name == "value", folds=folds)
    for row in quantities(summary):
        table.row(*row)
    return table


def quantities(summary: TheorySummary) -> list[tuple[str, str, str]]:
    """Return name, value and origin of each quantity."""
    expected, measured = summary.expected, summary.measured
    constants, theorem, (rho, rho_kind) = summary.constants, summary.theorem, summary.rho
    rows = [
        ("total variation of the weights from 1/m", format_number(value), SOURCES[name])
        for name, value in summary.total_variation.items()
    ]
    if summary.targets is not None:
        optimum = summary.limits["optimum"]
        rows.append(("optimum, where FedPBC's mean ends up", format_vector(optimum), "exact"))
        for name in summary.weights:
            limit = summary.limits[name]
            rows.append(("where FedAvg ends up", format_vector(limit), SOURCES[name]))
            distance = format_number(float(np.linalg.norm(limit - optimum)))
            rows.append(("  its distance from the optimum", distance, SOURCES[name]))
    if rho_kind != "bound" or (expected is not None and expected.mixing_rate is not None):
        rows.append(("ρ, how disagreement shrinks in a round", format_rate(rho), rho_kind))
    if expected is not None:
        if measured is not None and measured.mixing_rate is not None:
            rate = format_rate(measured.mixing_rate)
            rows.append(("ρ of the timetable's mean W", rate, "measured"))
        staleness = format_number(float(expected.staleness.mean()))
        rows += [
            ("ρ at most", format_rate(expected.mixing_rate_bound), "bound"),
            ("staleness, expected", staleness, "exact"),
            ("staleness, expected at most 1/c", format_number(summary.staleness_bound), "bound"),
        ]
    if measured is not None:
        staleness = format_number(float(measured.staleness.mean()))
        empty = f"{measured.empty_rounds:,} of {measured.rounds:,}"
        rows += [
            ("staleness", f"{staleness}, at most {measured.staleness_max}", "measured"),
            ("rounds in which nobody got through", empty, "measured"),
        ]
    basis = {"exact": "exact", "bound": "for ρ's bound", "measured": "for the measured ρ"}[rho_kind]
    at_largest = "" if theorem.bound is None else basis if rho_kind == "measured" else "bound"
    step = f"η = {constants.step_size:g}"
    largest = theorem.largest_step_size
    # Theorem 1 may not cover the given step size.
    at_step = "not covered" if at_largest == "bound" and not theorem.within else at_largest
    return [
        *rows,
        (f"κ at {step}, s = {constants.local_steps}", format_number(theorem.kappa), "exact"),
        ("largest step size of Theorem 1", format_number(largest), basis if largest else ""),
        (f"Theorem 1: mean ‖∇F(x̄)‖² after {constants.rounds:,} rounds", "", ""),
        (f"  at most, at {step}", format_number(theorem.bound), at_step),
        ("  at most, at the largest", format_number(theorem.bound_at_largest), at_largest),
    ]


def format_rate(value: float | None) -> str:
    """Format ρ; if it is nearly 1, as the difference from 1.

    Example:
        >>> format_rate(0.875), format_rate(0.99999), format_rate(1.0)
        ('0.875', '1 − 1e-05', '1')
    """
    if value is None or not 0.999 < value < 1:
        return format_number(value)
    return f"1 − {1 - value:.3g}"


def format_number(value: float | int | None) -> str:
    """Format with four digits; a dash for None."""
    if value is None:
        return "–"
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def format_vector(value: NDArray[np.float64]) -> str:
    """Format up to four numbers; of more, their count and norm."""
    flat = np.asarray(value).ravel()
    if len(flat) > 4:
        return f"{len(flat):,} numbers, norm {np.linalg.norm(flat):.4g}"
    return ", ".join(f"{x:.4g}" for x in flat)
