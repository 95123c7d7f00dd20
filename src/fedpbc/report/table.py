"""A comparison as a table."""

from __future__ import annotations

from collections.abc import Sequence

from fedpbc.algorithms import find_algorithm
from fedpbc.experiments.comparison import Comparison, Row

__all__ = ["HEADER", "cells_of", "footnotes", "markdown_table"]

HEADER = (
    "algorithm",
    "view",
    "test %",
    "train %",
    "worst class %",
    "local steps",
    "uploads",
    "models on server",
    "on client",
)


def headings(rows: Sequence[Row]) -> list[str]:
    """The column heads; where a task has no accuracy there is only the loss."""
    if any(row.test is not None for row in rows):
        return list(HEADER)
    return ["algorithm", "view", "test loss", *HEADER[5:]]


def cells_of(row: Row, aided: bool | None = None) -> list[str]:
    """A row as text; ``aided`` says whether by memory, where the algorithm is not known here."""
    if aided is None:
        aided = find_algorithm(row.algorithm).memory_aided
    view = row.view + ("*" if row.best_deployable else "")
    judged = [str(spread or "–") for spread in (row.test, row.train, row.worst_class)]
    if row.test is None:
        deviation = f" ± {row.loss.deviation:.3g}" if row.loss.seeds > 1 else ""
        judged = [f"{row.loss.mean:.5g}{deviation}"]
    return [
        row.algorithm + ("†" if aided else ""),
        view,
        *judged,
        f"{row.local_steps:,}",
        f"{row.uploads:,}",
        "–" if row.models_on_server is None else f"{row.models_on_server:,}",
        "–" if row.models_on_client is None else str(row.models_on_client),
    ]


def footnotes(comparison: Comparison) -> list[str]:
    """What a reader must know to read the table."""
    seeds = len({cell.seed for cell in comparison.cells})
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    notes = [
        f"{comparison.rounds} rounds; {over}; each the mean of the evaluations in the last "
        f"{comparison.window} rounds.",
        "* the algorithm's best view that a server could deploy, chosen by what is shown here; "
        "no server can have mean, which needs every client's model.",
    ]
    if any(row.train is not None for row in comparison.rows()):
        notes.append("train % is judged on a part of the training samples (data.train_samples).")
    for name in comparison.algorithms:
        if (vectors := comparison.cost_of(name)["vectors_per_upload"]) > 1:
            notes.append(f"{name} sends {vectors} vectors of the model's size an upload.")
    if any(comparison.cost_of(name)["memory_aided"] for name in comparison.algorithms):
        notes.append("† aided by memory or known statistics.")
    if comparison.failed:
        notes.append("an algorithm with failed runs shows the seeds that finished:")
    notes += [
        f"failed: {cell.algorithm}, seed {cell.seed}: {cell.failure}" for cell in comparison.failed
    ]
    return notes


def markdown_table(comparison: Comparison) -> str:
    """The table in Markdown, with its footnotes.

    Example:
        >>> print(markdown_table(Comparison([])).splitlines()[0])
        | algorithm | view | test loss | local steps | uploads | models on server | on client |
    """
    rows = comparison.rows()
    lines = [headings(rows), ["---"] * len(headings(rows)), *(cells_of(row) for row in rows)]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return text + "\n\n" + "\n".join(f"- {note}" for note in footnotes(comparison)) + "\n"
