"""What ``fedpbc theory`` shows, and the file that it writes."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from fedpbc.errors import InputError
from fedpbc.theory.summary import TheorySummary

__all__ = ["check_out", "show_theory_summary", "write_clients"]

FEW = 12
"""So many clients are all shown."""
EXTREMES = 3
"""Of more, so many of those that count most and least."""
WIDTH = 100
HEADS = {
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


def check_out(path: Path | None) -> None:
    """Find out before the work whether a file can be written there.

    Example:
        >>> check_out(Path("clients.txt"))
        Traceback (most recent call last):
            ...
        fedpbc.errors.InputError: --out is 'clients.txt', but should be a file that ends in .csv
    """
    if path is None:
        return
    if path.suffix != ".csv" or path.is_dir():
        raise InputError("--out", str(path), "a file that ends in .csv")
    if not path.parent.is_dir():
        raise InputError("--out", str(path), "in a folder that exists")


def write_clients(outlook: TheorySummary, path: Path) -> None:
    """Every client's numbers as CSV; what is not known is empty.

    Example:
        >>> import tempfile
        >>> from fedpbc.experiments.theory_query import TheoryQuery, analyze
        >>> place = Path(tempfile.mkdtemp()) / "clients.csv"
        >>> write_clients(analyze(TheoryQuery(p="0.5,0.5")), place)
        >>> place.read_text().splitlines()[0][:8]
        'client,p'
    """
    # Late: it comes with torch, which numbers alone do not need.
    from fedpbc.storage.atomic import write_atomically

    rows, text = outlook.rows(), io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def show_theory_summary(outlook: TheorySummary) -> None:
    """Tables for a person."""
    console = Console(width=max(Console().width, WIDTH))
    print(f"links: {outlook.links}; {outlook.clients:,} clients")
    console.print(clients_table(outlook), highlight=False)
    console.print(numbers_table(outlook), highlight=False)
    for note in outlook.notes():
        # Not console.print: a line that is cut must be the terminal's doing.
        print(f"note: {note}")


def clients_table(outlook: TheorySummary) -> Table:
    """How much clients count under FedAvg, and how stale they get."""
    rows = outlook.rows()
    shown = [k for k in HEADS if any(row[k] is not None for row in rows)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in shown:
        table.add_column(HEADS[name], justify="right", no_wrap=True)
    chosen = picked(outlook)
    for place, i in enumerate(chosen):
        if place == EXTREMES and len(chosen) < len(rows):
            table.add_row(*["…"] * len(shown))
        table.add_row(*(number(rows[i][name]) for name in shown))
    if len(chosen) < len(rows):
        table.add_section()
        for name, of in (("least", np.min), ("mean", np.mean), ("most", np.max)):
            columns = ([row[k] for row in rows] for k in shown[1:])
            table.add_row(name, *(summed(column, of) for column in columns))
    return table


def picked(outlook: TheorySummary) -> list[int]:
    """The clients that are shown: all of a few, else those that count least and most."""
    weights = next(iter(outlook.weights.values()), np.zeros(outlook.clients))
    if outlook.clients <= FEW:
        return list(range(outlook.clients))
    order = np.argsort(weights, kind="stable").tolist()
    return [*order[:EXTREMES], *order[-EXTREMES:]]


def summed(column: Sequence[float | int | None], of: object) -> str:
    """One number of a column."""
    known = [value for value in column if value is not None]
    assert callable(of)
    return number(float(of(known))) if len(known) == len(column) else "–"


def numbers_table(outlook: TheorySummary) -> Table:
    """Everything that is one number, and how it is known."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("quantity", "value", "how"):
        table.add_column(name, justify="right" if name == "value" else "left", no_wrap=True)
    for quantity, value, how in lines(outlook):
        table.add_row(quantity, value, how)
    return table


def lines(outlook: TheorySummary) -> list[tuple[str, str, str]]:
    """The rows of that table."""
    expected, measured = outlook.expected, outlook.measured
    own, theorem, (rho, kind) = outlook.constants, outlook.theorem, outlook.rho
    known_as = {"expected": "exact", "measured": "measured"}
    found = [
        ("total variation of the weights from 1/m", number(value), known_as[name])
        for name, value in outlook.total_variation.items()
    ]
    if outlook.targets is not None:
        optimum = outlook.limits["optimum"]
        found.append(("optimum, where FedPBC's mean ends up", vector(optimum), "exact"))
        for name in outlook.weights:
            limit = outlook.limits[name]
            found.append(("where FedAvg ends up", vector(limit), known_as[name]))
            distance = number(float(np.linalg.norm(limit - optimum)))
            found.append(("  its distance from the optimum", distance, known_as[name]))
    if kind != "bound" or (expected is not None and expected.mixing_rate is not None):
        found.append(("ρ, how disagreement shrinks in a round", rate(rho), kind))
    if expected is not None:
        if measured is not None and measured.mixing_rate is not None:
            found.append(("ρ of the timetable's mean W", rate(measured.mixing_rate), "measured"))
        found.append(("ρ at most", rate(expected.mixing_rate_bound), "bound"))
        found.append(("staleness, expected", number(float(expected.staleness.mean())), "exact"))
        found.append(("staleness, expected at most 1/c", number(outlook.staleness_bound), "bound"))
    if measured is not None:
        text = f"{number(float(measured.staleness.mean()))}, at most {measured.staleness_max}"
        found.append(("staleness", text, "measured"))
        text = f"{measured.empty_rounds:,} of {measured.rounds:,}"
        found.append(("rounds in which nobody got through", text, "measured"))
    how = {"exact": "exact", "bound": "for ρ's bound", "measured": "for the measured ρ"}[kind]
    promised = "" if theorem.bound is None else how if kind == "measured" else "bound"
    step = f"η = {own.step_size:g}"
    found += [
        (f"κ at {step}, s = {own.local_steps}", number(theorem.kappa), "exact"),
        (
            "largest step size of Theorem 1",
            number(theorem.largest_step_size),
            how if theorem.largest_step_size else "",
        ),
        (f"Theorem 1: mean ‖∇F(x̄)‖² after {own.rounds:,} rounds", "", ""),
        (f"  at most, at {step}", number(theorem.bound), covered(outlook)),
        ("  at most, at the largest", number(theorem.bound_at_largest), promised),
    ]
    return found


def covered(outlook: TheorySummary) -> str:
    """Whether the theorem stands behind its bound at the given step size."""
    if outlook.theorem.bound is None:
        return ""
    if outlook.rho[1] == "measured":
        return "for the measured ρ"
    return "bound" if outlook.theorem.within else "not covered"


def rate(value: float | None) -> str:
    """ρ; where it is nearly 1, how much is missing.

    Example:
        >>> rate(0.875), rate(0.99999), rate(1.0)
        ('0.875', '1 − 1e-05', '1')
    """
    if value is None or not 0.999 < value < 1:
        return number(value)
    return f"1 − {1 - value:.3g}"


def number(value: float | int | None) -> str:
    """Four digits, or a dash."""
    if value is None:
        return "–"
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def vector(value: NDArray[np.float64]) -> str:
    """A number or a few of them; of more, how many there are and how long the vector is."""
    flat = np.asarray(value).ravel()
    if len(flat) > 4:
        return f"{len(flat):,} numbers, norm {np.linalg.norm(flat):.4g}"
    return ", ".join(f"{x:.4g}" for x in flat)
