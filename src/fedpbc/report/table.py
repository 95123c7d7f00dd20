"""A comparison as a table of text."""

from __future__ import annotations

from collections.abc import Sequence

from fedpbc.algorithms import find_algorithm
from fedpbc.experiments.comparison import Comparison, ComparisonRow

__all__ = ["cells_of", "footnotes", "headings", "markdown_table"]

ACCURACIES = ("test %", "train %", "worst class %")
COSTS = ("local steps", "uploads", "models on server", "on client")


def headings(rows: Sequence[ComparisonRow]) -> list[str]:
    """Return the column headings; a task without classes has a loss instead of accuracies.

    Example:
        >>> headings([])[:3]
        ['algorithm', 'view', 'test loss']
    """
    has_classes = any(row.test is not None for row in rows)
    return ["algorithm", "view", *(ACCURACIES if has_classes else ["test loss"]), *COSTS]


def cells_of(row: ComparisonRow, memory_aided: bool | None = None) -> list[str]:
    """Return a row as text; ``memory_aided`` is needed for an algorithm that is not registered."""
    if memory_aided is None:
        memory_aided = find_algorithm(row.algorithm).memory_aided
    metrics = [str(spread or "–") for spread in (row.test, row.train, row.worst_class)]
    if row.test is None:
        deviation = f" ± {row.loss.deviation:.3g}" if row.loss.seeds > 1 else ""
        metrics = [f"{row.loss.mean:.5g}{deviation}"]
    return [
        row.algorithm + ("†" if memory_aided else ""),
        row.view + ("*" if row.best_deployable else ""),
        *metrics,
        f"{row.local_steps:,}",
        f"{row.uploads:,}",
        "–" if row.models_on_server is None else f"{row.models_on_server:,}",
        "–" if row.models_on_client is None else str(row.models_on_client),
    ]


def footnotes(comparison: Comparison) -> list[str]:
    """Return what a reader must know to read the table."""
    seeds = len({cell.seed for cell in comparison.runs})
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    notes = [
        f"{comparison.rounds} rounds; {over}; each the mean of the evaluations in the last "
        f"{comparison.window} rounds.",
        "* the algorithm's best view that a server could deploy, chosen by the values shown here; "
        "mean needs every client's model, which no server has.",
    ]
    if any(row.train is not None for row in comparison.rows()):
        notes.append("train % is evaluated on a part of the training samples (data.train_samples).")
    costs = {name: comparison.cost_of(name) for name in comparison.algorithms}
    notes += [
        f"{name} sends {cost['vectors_per_upload']} vectors of the model's size per upload."
        for name, cost in costs.items()
        if cost["vectors_per_upload"] > 1
    ]
    if any(cost["memory_aided"] for cost in costs.values()):
        notes.append("† aided by memory or known statistics.")
    if comparison.failed:
        notes.append("an algorithm with failed runs shows the seeds that finished:")
    notes += [
        f"failed: {cell.algorithm}, seed {cell.seed}: {cell.failure}" for cell in comparison.failed
    ]
    return notes


def markdown_table(comparison: Comparison) -> str:
    """Return the table in Markdown, with its footnotes.

    Example:
        >>> print(markdown_table(Comparison([])).splitlines()[0])
        | algorithm | view | test loss | local steps | uploads | models on server | on client |
    """
    rows = comparison.rows()
    lines = [headings(rows), ["---"] * len(headings(rows)), *map(cells_of, rows)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{table}\n\n" + "".join(f"- {note}\n" for note in footnotes(comparison))
