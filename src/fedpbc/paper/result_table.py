"""Tables of results, for the terminal, for Markdown and for the page."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from fedpbc.algorithms import find_algorithm
from fedpbc.experiments.comparison import Comparison, ComparisonRow
from fedpbc.report.comparison_table import AIDED_NOTE, MEAN_NOTE, markdown
from fedpbc.report.page import PageTable
from fedpbc.report.page_tables import TableCell
from fedpbc.report.text_table import TextTable

__all__ = [
    "RANK_NOTE",
    "VIEWS_NOTE",
    "ResultTable",
    "TableEntry",
    "deployable_cells",
    "rank_rows",
    "shown_rows",
]

RANK_NOTE = f"¹ best and ² second best among the algorithms without memory. {AIDED_NOTE}"
VIEWS_NOTE = (
    "The view is the model that was evaluated. The paper's is 'mean' where clients have models of "
    f"their own, else 'server'; {MEAN_NOTE} "
    "* the algorithm's best view that a server could deploy, by its last rounds."
)
# By rank: none, the best, the second best.
PLAIN = ("{}", "{} ¹", "{} ²")
MARKDOWN = ("{}", "**{}** ¹", "<u>{}</u> ²")
PAGE_KINDS = ("", "first", "second")
FOLDED = 12
"""Characters that a column of text keeps in a narrow terminal."""


@dataclass(frozen=True)
class TableEntry:
    """One entry of a table; ``rank`` is 1 for the best and 2 for the second best."""

    text: str
    rank: int = 0

    def styled(self, styles: Sequence[str]) -> str:
        """The text in the style of its rank."""
        return styles[self.rank].format(self.text)


@dataclass(frozen=True)
class ResultTable:
    """A table with its title and notes.

    Attributes:
        rows: entries, or their text; as many as columns.
        notes: lines below the table.
        sections: rows that differ in this many first columns are separated by a line.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[TableEntry | str]]
    notes: Sequence[str] = ()
    sections: int = 1

    def _entries(self) -> list[list[TableEntry]]:
        return [
            [v if isinstance(v, TableEntry) else TableEntry(v) for v in row] for row in self.rows
        ]

    def _is_text(self, column: int) -> bool:
        last_word = self.head[column].split()[-1]
        return column == 0 or last_word in {"algorithm", "view", "links", "data", "changed"}

    def markdown(self) -> str:
        """Render as Markdown: the best in bold, the second best underlined."""
        rows = [[entry.styled(MARKDOWN) for entry in row] for row in self._entries()]
        notes = "".join(f"\n- {note}" for note in self.notes)
        return f"### {self.title}\n\n{markdown(self.head, rows)}" + (f"\n{notes}" if notes else "")

    def terminal(self, width: int | None = None) -> str:
        """Render as plain text.

        A table wider than ``width`` becomes several, one below the other: each has some of the
        columns of numbers, and those that say what a row is about.
        """
        parts = [self._text(columns, width) for columns in self._fitting(width)]
        return "\n".join([self.title, "\n\n".join(parts), *self.notes])

    def _fitting(self, width: int | None) -> list[list[int]]:
        """The columns of each table; as many in each as fit."""
        every = list(range(len(self.head)))
        if width is None or self._table(every).least_width <= width:
            return [every]
        first = next((k for k in every if not self._is_text(k)), len(every))
        parts: list[list[int]] = []
        for k in every[first:]:
            if parts and self._table([*parts[-1], k]).least_width <= width:
                parts[-1].append(k)
            else:
                parts.append([*every[:first], k])
        return parts or [every]

    def _table(self, columns: Sequence[int]) -> TextTable:
        table = TextTable()
        for k in columns:
            head = self.head[k]
            # Heads are broken into lines, so that the numbers decide how wide a column is.
            lines = head if k == 0 else head.replace(" %", "\u00a0%").replace(" ", "\n")
            table.column(lines, right=not self._is_text(k), folds=FOLDED if self._is_text(k) else 0)
        previous = None
        for row in self._entries():
            texts = [entry.styled(PLAIN) for entry in row]
            if previous not in (None, texts[: self.sections]):
                table.section()
            previous = texts[: self.sections]
            table.row(*(texts[k] for k in columns))
        return table

    def _text(self, columns: Sequence[int], width: int | None) -> str:
        table, output = self._table(columns), io.StringIO()
        # Numbers are never cut off: in a still narrower terminal the lines wrap.
        least = table.width if width is None else min(max(width, table.least_width), table.width)
        Console(file=output, width=least, no_color=True).print(table)
        text = "\n".join(line.rstrip() for line in output.getvalue().splitlines())
        return text.strip("\n")

    def page(self) -> PageTable:
        """Convert for the HTML page: the best in bold, the second best underlined."""
        rows = [
            [
                TableCell(e.styled(PLAIN), kind="text" if self._is_text(k) else PAGE_KINDS[e.rank])
                for k, e in enumerate(row)
            ]
            for row in self._entries()
        ]
        return PageTable(self.title, list(self.head), rows, list(self.notes))


def deployable_cells(comparison: Comparison, algorithm: str) -> list[str]:
    """The algorithm's best deployable view, and its test accuracy."""
    row = comparison.row(algorithm, deployable=True)
    return ["–", "–"] if row is None else [row.view, str(row.test)]


def shown_rows(comparison: Comparison) -> list[ComparisonRow]:
    """Each algorithm in the paper's view and in its best deployable one; JSON has all views."""
    return [
        row
        for row in comparison.rows()
        if row.best_deployable or row.view == comparison.paper_view(row.algorithm)
    ]


def rank_rows(rows: Mapping[str, ComparisonRow | None], split: str) -> dict[str, int]:
    """Rank algorithms by "test" or "train" accuracy, rounded as shown: equal ones share a rank."""
    spreads = {name: getattr(row, split) for name, row in rows.items() if row is not None}
    return rank_algorithms(
        {name: round(100 * spread.mean, 1) for name, spread in spreads.items() if spread}
    )


def rank_algorithms(values: Mapping[str, float]) -> dict[str, int]:
    """The best (1) and second best (2) among the algorithms without memory, as in the paper.

    Equal values share a rank; after two that are best none is second.
    """
    unaided = {name: v for name, v in values.items() if not find_algorithm(name).memory_aided}
    ranks = {name: 1 + sum(w > v for w in unaided.values()) for name, v in unaided.items()}
    return {name: rank for name, rank in ranks.items() if rank <= 2}
