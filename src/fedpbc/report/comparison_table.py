"""A comparison as a table of text.

Costs are what was counted: local steps, bytes that were sent and vectors that were kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fedpbc.algorithms import find_algorithm
from fedpbc.experiments.comparison import Comparison, ComparisonRow
from fedpbc.experiments.conditions import is_ceiling
from fedpbc.experiments.spread import Spread
from fedpbc.report.byte_units import ByteUnit, common_unit, with_unit
from fedpbc.text import listed

__all__ = [
    "AIDED_NOTE",
    "MEAN_NOTE",
    "TRAIN_NOTE",
    "cells_of",
    "footnotes",
    "headings",
    "last_rounds",
    "markdown",
    "markdown_table",
    "marked_label",
    "marked_name",
    "marked_view",
    "metric_names",
    "sent_unit",
]

ACCURACIES = ("test %", "train %", "worst class %")
STORED = ("models on server", "on client")
AIDED_NOTE = "† aided by memory or known statistics."
CEILING_NOTE = "‡ FedAvg with every link up: what failing links cost; not reachable on these."
MEAN_NOTE = "mean needs every client's model, which no server has."
TRAIN_NOTE = "train % is evaluated on at most data.train_samples of the training samples."


def headings(rows: Sequence[ComparisonRow]) -> list[str]:
    """Return the column headings; a task without classes has a loss instead of accuracies."""
    has_classes = any(row.test is not None for row in rows)
    unit = sent_unit(rows).name
    costs = ["local steps", f"{unit} up", f"{unit} down", *STORED]
    scores = ACCURACIES if has_classes else ["test loss"]
    return ["algorithm", "view", *scores, *metric_names(rows), *costs]


def metric_names(rows: Sequence[ComparisonRow]) -> list[str]:
    """Return the names of further values, such as custom metrics, each once."""
    return list(dict.fromkeys(name for row in rows for name in row.metrics))


def sent_unit(rows: Sequence[ComparisonRow]) -> ByteUnit:
    """Return the unit of the columns of what was sent: the same up and down."""
    return common_unit(count for row in rows for count in (row.bytes_up, row.bytes_down))


def marked_name(algorithm: str, memory_aided: bool | None = None) -> str:
    """Return the name, marked if aided by memory; an algorithm not registered needs the flag."""
    if memory_aided is None:
        memory_aided = find_algorithm(algorithm).memory_aided
    return algorithm + ("†" if memory_aided else "")


def marked_label(label: str, memory_aided: bool) -> str:
    """Return an entry's label with its marks: aided by memory, or with every link up."""
    return label + "†" * memory_aided + "‡" * is_ceiling(label)


def marked_view(view: str, best_deployable: bool) -> str:
    """Return the name of a view, marked if it is the algorithm's best deployable one."""
    return view + ("*" if best_deployable else "")


def cells_of(
    row: ComparisonRow,
    sent_in: ByteUnit,
    memory_aided: bool | None = None,
    metrics: Sequence[str] = (),
) -> list[str]:
    """Return a row as text; ``memory_aided`` is needed for an algorithm that is not registered.

    ``metrics`` are the names of all columns of further values.
    """
    scores = [str(spread or "–") for spread in (row.test, row.train, row.worst_class)]
    if row.test is None:
        scores = [plain_spread(row.loss)]
    if memory_aided is None:
        memory_aided = find_algorithm(row.algorithm).memory_aided
    return [
        marked_label(row.label, memory_aided),
        marked_view(row.view, row.best_deployable),
        *scores,
        *(plain_spread(row.metrics.get(name), 4) for name in metrics),
        f"{row.local_steps:,}",
        sent_in.shown(row.bytes_up),
        sent_in.shown(row.bytes_down),
        "–" if row.models_on_server is None else f"{row.models_on_server:,}",
        "–" if row.models_on_client is None else str(row.models_on_client),
    ]


def plain_spread(spread: Spread | None, digits: int = 5) -> str:
    """Return a mean and its deviation as they are, not in percent."""
    if spread is None:
        return "–"
    deviation = f" ± {spread.deviation:.{digits - 2}g}" if spread.seeds > 1 else ""
    return f"{spread.mean:.{digits}g}{deviation}"


def last_rounds(comparison: Comparison) -> str:
    """Return over which rounds evaluations are averaged; runs of a sweep may differ in length."""
    if len(_lengths(comparison)) > 1:
        return "the last fifth of its rounds, at most 100"
    return f"the last {comparison.window:,} rounds"


def _lengths(comparison: Comparison) -> list[int]:
    return sorted({run.metrics[-1]["round"] for run in comparison.finished})


def footnotes(comparison: Comparison) -> list[str]:
    """Return what a reader must know to read the table."""
    seeds = len({cell.seed for cell in comparison.runs})
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    lengths = _lengths(comparison)
    rounds = " to ".join(map(str, dict.fromkeys([lengths[0], lengths[-1]]))) if lengths else "0"
    notes = [
        f"{rounds} rounds; {over}; each the mean of the evaluations in {last_rounds(comparison)}.",
        f"* {starred_note(comparison)}; {MEAN_NOTE}",
    ]
    notes += dict.fromkeys(f"{note}." for run in comparison.finished for note in run.notes)
    notes += test_notes(comparison)
    if any(row.train is not None for row in comparison.rows()) and not all(
        run.evaluates_all for run in comparison.finished
    ):
        notes.append(TRAIN_NOTE)
    costs = {label: comparison.cost_of(label) for label in comparison.labels}
    notes += sent_notes(comparison)
    if any(cost["memory_aided"] for cost in costs.values()):
        notes.append(AIDED_NOTE)
    if any(is_ceiling(run.label) for run in comparison.finished):
        notes.append(CEILING_NOTE)
    if comparison.failed:
        notes.append("an entry with failed runs shows the seeds that finished:")
    notes += [
        f"failed: {cell.label}, seed {cell.seed}: {cell.failure}" for cell in comparison.failed
    ]
    return notes


def starred_note(comparison: Comparison) -> str:
    """Return which views are starred, and what they were chosen by."""
    labels = [label for label in comparison.labels if comparison.of(label)]
    by_values = [label for label in labels if comparison.deploy_view(label) is None]
    if by_values == labels:
        return (
            "the algorithm's best view that a server could deploy, chosen by the values shown here"
        )
    note = "the view to deploy, chosen beforehand (deploy_view)"
    if by_values:
        return f"{note}; of {listed(by_values, len(by_values))} the best by the values shown here"
    return f"{note}, not by the values shown here"


def test_notes(comparison: Comparison) -> list[str]:
    """Return whose the test samples are, where that is known, and how clients' own models fare."""
    described = [run.test_data for run in comparison.finished if run.test_data]
    if not described:
        return own_model_notes(comparison, "test samples of their classes")
    means = {"volume": "the mean over all of them", "clients": "the mean of the clients' means"}
    weighed = " or ".join(dict.fromkeys(means[str(each["weigh"])] for each in described))
    clients = max(each["clients"] for each in described)
    note = f"test: held-out samples of {clients:,} clients' own; accuracy and loss are {weighed}"
    shares = [100 * each["most_frequent"] for each in described if each["most_frequent"]]
    if shares:
        note += f". Always predicting the most frequent class would be right in {shares[0]:.1f} %"
    return [note + ".", *own_model_notes(comparison, "their own test samples")]


def own_model_notes(comparison: Comparison, samples: str) -> list[str]:
    """Return how well each client's own model does on these test samples, as a distribution."""
    notes = []
    for label in comparison.labels:
        runs = [run.client_accuracy for run in comparison.of(label) if run.client_accuracy]
        views = {view: [run[view] for run in runs if view in run] for view in ("own", "mean")}
        if not views["own"] or not all(each.get("held_out") for each in views["own"]):
            continue
        texts = []
        for view, name in (("own", "its own model"), ("mean", "the mean of all models")):
            mean, worst, deviation = (
                100 * statistics.fmean(each[key] for each in views[view])
                for key in ("mean", "worst_tenth", "deviation")
            )
            spread = f"worst tenth of clients {worst:.1f}, deviation {deviation:.1f}"
            texts.append(f"{name} {mean:.1f} % ({spread})")
        notes.append(f"{label}, mean over clients on {samples}: {'; '.join(texts)}.")
    return notes


def sent_notes(comparison: Comparison) -> list[str]:
    """Return what was sent with an upload, and what the columns of bytes count."""
    sizes: dict[str, list[str]] = {}
    for label in comparison.labels:
        ends = [run.metrics[-1] for run in comparison.of(label)]
        uploads = sum(end["uploads"] for end in ends)
        if uploads and all(end.get("bytes_up") is not None for end in ends):
            size = with_unit(sum(end["bytes_up"] for end in ends) / uploads)
            sizes.setdefault(size, []).append(label)
    if not sizes:
        return []
    listed = "; ".join(f"{size} ({', '.join(names)})" for size, names in sizes.items())
    return [
        "up, down: bytes of the vectors in uploads that counted, and in what the server sent to "
        "clients, as measured. "
        f"Mean size of an upload: {next(iter(sizes)) if len(sizes) == 1 else listed}.",
        "models: vectors of the model's size that are kept from round to round, counted at the end "
        "of a run; on a client, the most of any.",
    ]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def markdown_table(comparison: Comparison, *, below: str = "", notes: Sequence[str] = ()) -> str:
    """Return the table in Markdown, with its footnotes; ``below`` stands right under it."""
    rows = comparison.rows()
    unit = sent_unit(rows)
    names = metric_names(rows)
    table = markdown(headings(rows), [cells_of(row, unit, metrics=names) for row in rows])
    texts = [table, below] if below else [table]
    return "\n\n".join([*texts, "".join(f"- {n}\n" for n in [*footnotes(comparison), *notes])])
