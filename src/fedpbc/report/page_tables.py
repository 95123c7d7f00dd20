"""Tables of the report page. Every column can be sorted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpbc.experiments.comparison import Comparison, ComparisonRow, mean_of
from fedpbc.experiments.conditions import is_ceiling
from fedpbc.experiments.paired import Paired
from fedpbc.experiments.verdict import Verdict
from fedpbc.report.byte_units import ByteUnit
from fedpbc.report.comparison_table import (
    cells_of,
    footnotes,
    headings,
    metric_names,
    sent_unit,
)
from fedpbc.report.groups import RunGroup
from fedpbc.report.load import LoadedRun
from fedpbc.report.paired_table import paired_headings, paired_rows
from fedpbc.simulation.views import DEPLOYABLE

__all__ = [
    "PageTable",
    "TableCell",
    "clients_table",
    "comparison_table",
    "count_states",
    "page_footnotes",
    "paired_table",
    "runs_table",
]


@dataclass(frozen=True)
class TableCell:
    """A cell of a :class:`PageTable`.

    Attributes:
        text: shown as it is; the template escapes it.
        sort_value: number to sort by; None: the text, as a number if it begins with one.
        tags: badges after the text: a CSS class and a text each.
        kind: CSS classes; "text" aligns to the left, "prose" wraps, "first" and "second" mark a
            rank.
    """

    text: str
    sort_value: float | None = None
    tags: Sequence[tuple[str, str]] = ()
    kind: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table on the page.

    Attributes:
        title: its caption; may be empty.
        head: column headings.
        rows: text or cells; text in the first column is aligned to the left.
        notes: paragraphs below it.
        dimmed: indices of rows in grey.
        others: indices of rows that a long table shows on request only.
        few_and_all: what the rows are without the others, and all of them.
        label: what it is to who cannot see it, without a title.

    Example:
        >>> PageTable("Table 2", ["algorithm", "15 %"], [["fedpbc", "150"]]).text_columns()
        {0}
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | TableCell]]
    notes: Sequence[str] = ()
    dimmed: Container[int] = ()
    others: Container[int] = ()
    few_and_all: tuple[str, str] = ("best deployable views", "views")
    label: str = "Table"

    def cells(self) -> list[list[TableCell]]:
        """Return the rows with every text as a cell."""
        return [
            [
                cell if isinstance(cell, TableCell) else TableCell(cell, kind="" if k else "text")
                for k, cell in enumerate(row)
            ]
            for row in self.rows
        ]

    def text_columns(self) -> set[int]:
        """Return the indices of the columns that are aligned to the left."""
        return {k for row in self.cells() for k, c in enumerate(row) if "text" in c.kind.split()}


def comparison_table(
    comparison: Comparison, rows: Sequence[ComparisonRow], memory: Mapping[str, float]
) -> PageTable:
    """Return every view of every entry with its cost; ``memory`` is in bytes by label."""
    unit, names = sent_unit(rows), metric_names(rows)
    return PageTable(
        "",
        [*headings(rows), "uploads", "seconds", "peak memory"],
        [_comparison_row(comparison, row, unit, memory.get(row.label), names) for row in rows],
        dimmed={k for k, row in enumerate(rows) if row.view not in DEPLOYABLE},
        others={k for k, row in enumerate(rows) if not row.best_deployable},
        label="Every view of every algorithm",
    )


def _comparison_row(
    comparison: Comparison,
    row: ComparisonRow,
    unit: ByteUnit,
    memory: float | None,
    names: Sequence[str],
) -> list[TableCell]:
    name, _, *texts = cells_of(row, unit, comparison.cost_of(row.label)["memory_aided"], names)
    tags = [("best", "best deployable")] if row.best_deployable else []
    if row.view == comparison.paper_view(row.label):
        tags.append(("", "paper"))
    metrics = [row.loss] if row.test is None else [row.test, row.train, row.worst_class]
    metrics += [row.metrics.get(each) for each in names]
    sort_values: list[float | None] = [
        *(None if spread is None else spread.mean for spread in metrics),
        row.local_steps,
        row.bytes_up,
        row.bytes_down,
        row.models_on_server,
        row.models_on_client,
    ]
    return [
        TableCell(name, kind="text"),
        TableCell(row.view, tags=tags, kind="text"),
        *(TableCell(text, value) for text, value in zip(texts, sort_values, strict=True)),
        TableCell(f"{row.uploads:,}", row.uploads),
        _seconds(mean_of([run.metrics[-1]["seconds"] for run in comparison.of(row.label)])),
        _memory(memory),
    ]


def paired_table(comparison: Comparison, paired: Paired, verdict: Verdict) -> PageTable:
    """Return the paired differences of the views to deploy, with the verdict."""
    dimmed = {k for k, row in enumerate(paired.rows) if is_ceiling(row.name)}
    rows = []
    for row, (first, *cells) in zip(paired.rows, paired_rows(comparison, paired), strict=True):
        tags = [("best", "clearly the best")] if row.name == verdict.winner else []
        if row.name in verdict.within_noise and len(verdict.within_noise) > 1:
            tags.append(("", "within noise"))
        named = TableCell(first[0], tags=tags, kind="text")
        view, *numbers = cells
        texts = [TableCell(view[0], kind="text"), *(TableCell(*number) for number in numbers)]
        rows.append([named, *texts])
    return PageTable(
        "Views to deploy, compared with the same seeds",
        paired_headings(paired),
        rows,
        dimmed=dimmed,
    )


def clients_table(
    served: Mapping[str, Mapping[str, Mapping[str, Any]]], aided: Container[str] = ()
) -> PageTable:
    """Return how well each model serves the clients; ``served`` is by label and view."""
    rows = [
        [
            TableCell(label + "†" * (label in aided), kind="text"),
            TableCell("each client's own" if view == "own" else view, kind="text"),
            *(
                TableCell(f"{100 * clients[key]:.1f}", clients[key])
                for key in ("mean", "worst_tenth", "deviation")
            ),
        ]
        for label, views in served.items()
        for view, clients in views.items()
    ]
    head = ["algorithm", "model", "mean %", "worst tenth %", "deviation"]
    return PageTable("Clients, each on samples like its own", head, rows)


def _seconds(seconds: float | None) -> TableCell:
    return TableCell("–" if seconds is None else f"{seconds:,.1f}", seconds)


def _memory(memory: float | None) -> TableCell:
    return TableCell("–" if memory is None else f"{memory / 2**20:,.0f} MiB", memory)


def page_footnotes(group: RunGroup, comparison: Comparison) -> list[str]:
    """Return what a reader must know to read the comparison table."""
    # Failures are in the table of runs.
    notes = [
        note.replace("* the ", "best deployable: the ")
        for note in footnotes(Comparison(comparison.finished))
    ]
    notes.insert(2, "paper: the view that the paper's tables show.")
    notes.append(
        "seconds: training and evaluation, mean over runs; peak memory: of a run's process and "
        "its workers together."
    )
    if comparison.failed:
        missing = {(cell.label, cell.seed) for cell in comparison.failed}
        states = count_states(
            [run for run in group.runs if (group.label_of(run), run.seed or 0) in missing]
        )
        notes.insert(0, f"not in this table: {states}; see the runs below.")
    return notes


def count_states(runs: Sequence[LoadedRun]) -> str:
    """Return how many runs there are in each state, such as "2 finished, 1 failed"."""
    return ", ".join(f"{n} {state}" for state, n in Counter(run.state for run in runs).items())


def runs_table(group: RunGroup) -> PageTable:
    """Return a row for every run: its progress, time, memory, and folder if it has one."""
    runs = group.runs
    stored, noted = any(run.stored for run in runs), any(run.note for run in runs)
    rows = [
        [
            TableCell(group.label_of(run), kind="text"),
            TableCell("–" if run.seed is None else str(run.seed)),
            TableCell(run.state, kind=f"text state-{run.state.replace(' ', '-')}"),
            TableCell(f"{run.done:,} of {run.rounds:,}" if run.rounds else "–", run.done),
            _seconds(run.metrics[-1]["seconds"] if run.metrics else None),
            _memory(run.peak_memory),
            *([TableCell(str(run.path), kind="text folder")] if stored else []),
            *([TableCell(run.note if run.note != run.state else "", kind="text")] if noted else []),
        ]
        for run in runs
    ]
    head = ["algorithm", "seed", "state", "rounds", "seconds", "peak memory"]
    head += ["folder"] * stored + ["note"] * noted
    return PageTable("", head, rows, label="The runs")
