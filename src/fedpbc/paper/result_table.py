"""Tables of results, for the terminal, for Markdown and for the page."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from fedpbc.algorithms import find_algorithm
from fedpbc.experiments.comparison import Comparison, ComparisonRow, Spread
from fedpbc.report.page import PageTable
from fedpbc.report.page_tables import TableCell

__all__ = [
    "AIDED_NOTE",
    "RANK_NOTE",
    "VIEWS_NOTE",
    "Entry",
    "ResultTable",
    "deployable_cells",
    "find_row",
    "marked_name",
    "marked_view",
    "rank_algorithms",
    "rank_rows",
]

RANK_NOTE = "¹ best and ² second best among the algorithms without memory."
AIDED_NOTE = "† aided by memory or known statistics."
VIEWS_NOTE = (
    "The view is the model that was evaluated. The paper's is 'mean' where clients have models of "
    "their own, else 'server'; no server can have 'mean', which needs every client's model. "
    "* the algorithm's best view that a server could deploy, by its last rounds."
)
MARKS = {1: "¹", 2: "²"}
WIDTH = 1000
"""Wider than any table: numbers are never cut off; a narrow terminal wraps the lines."""


@dataclass(frozen=True)
class Entry:
    """One entry of a table; ``rank`` is 1 for the best and 2 for the second best.

    Example:
        >>> Entry("66.3", rank=1).markdown()
        '**66.3** ¹'
    """

    text: str
    rank: int = 0

    def plain(self) -> str:
        """With a mark."""
        return f"{self.text} {MARKS[self.rank]}" if self.rank else self.text

    def markdown(self) -> str:
        """The best in bold, the second best underlined."""
        styled = {1: f"**{self.text}**", 2: f"<u>{self.text}</u>"}.get(self.rank, self.text)
        return f"{styled} {MARKS[self.rank]}" if self.rank else styled


@dataclass(frozen=True)
class ResultTable:
    """A table with its title and notes.

    Attributes:
        title: what it shows.
        head: the column heads.
        rows: entries, or their text; as many as columns.
        notes: lines below the table.
        sections: rows that differ in this many first columns are separated by a line.

    Example:
        >>> print(ResultTable("t", ["a", "b"], [["x", Entry("1", 2)]]).markdown())
        ### t
        <BLANKLINE>
        | a | b |
        | --- | --- |
        | x | <u>1</u> ² |
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Entry | str]]
    notes: Sequence[str] = ()
    sections: int = 1

    def _entries(self) -> list[list[Entry]]:
        return [[v if isinstance(v, Entry) else Entry(v) for v in row] for row in self.rows]

    def _is_text(self, column: int) -> bool:
        last_word = self.head[column].split()[-1]
        return column == 0 or last_word in {"algorithm", "view", "links", "data", "changed"}

    def markdown(self) -> str:
        """Render as Markdown."""
        entries = [[entry.markdown() for entry in row] for row in self._entries()]
        lines = [list(self.head), ["---"] * len(self.head), *entries]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        notes = "".join(f"\n- {note}" for note in self.notes)
        return f"### {self.title}\n\n{table}" + (f"\n{notes}" if notes else "")

    def terminal(self) -> str:
        """Render as plain text."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for k, head in enumerate(self.head):
            # Heads are broken into lines, so that the numbers decide how wide a column is.
            lines = head if k == 0 else head.replace(" %", "\u00a0%").replace(" ", "\n")
            table.add_column(lines, justify="left" if self._is_text(k) else "right", no_wrap=True)
        previous = None
        for row in self._entries():
            texts = [entry.plain() for entry in row]
            if previous not in (None, texts[: self.sections]):
                table.add_section()
            previous = texts[: self.sections]
            table.add_row(*texts)
        output = io.StringIO()
        Console(file=output, width=WIDTH, no_color=True).print(table)
        text = "\n".join(line.rstrip() for line in output.getvalue().splitlines())
        return "\n".join([self.title, text.strip("\n"), *self.notes])

    def page(self) -> PageTable:
        """Convert for the HTML page: the best in bold, the second best underlined."""
        kinds = {1: "first", 2: "second"}
        rows = [
            [
                TableCell(e.plain(), kind="text" if self._is_text(k) else kinds.get(e.rank, ""))
                for k, e in enumerate(row)
            ]
            for row in self._entries()
        ]
        return PageTable(self.title, list(self.head), rows, list(self.notes))


def find_row(
    comparison: Comparison, algorithm: str, *, deployable: bool = False
) -> ComparisonRow | None:
    """The algorithm in the paper's view, or in its best deployable one; None if it failed."""
    if not comparison.of(algorithm):
        return None
    view = comparison.paper_view(algorithm)
    for row in comparison.rows():
        chosen = row.best_deployable if deployable else row.view == view
        if row.algorithm == algorithm and chosen and row.test is not None:
            return row
    return None


def deployable_cells(comparison: Comparison, algorithm: str) -> list[str]:
    """The algorithm's best deployable view, and its test accuracy."""
    row = find_row(comparison, algorithm, deployable=True)
    return ["–", "–"] if row is None else [row.view, str(row.test)]


def rank_rows(
    rows: Mapping[str, ComparisonRow | None], accuracy: Callable[[ComparisonRow], Spread | None]
) -> dict[str, int]:
    """Rank algorithms by an accuracy, rounded as shown: equal numbers share a rank."""
    spreads = {name: accuracy(row) for name, row in rows.items() if row is not None}
    return rank_algorithms(
        {name: round(100 * s.mean, 1) for name, s in spreads.items() if s is not None}
    )


def rank_algorithms(values: Mapping[str, float]) -> dict[str, int]:
    """The best (1) and second best (2) among the algorithms without memory, as in the paper.

    Equal values share a rank; after two that are best none is second.

    Example:
        >>> rank_algorithms({"fedpbc": 0.66, "fedavg": 0.59, "fedau": 0.66, "mifa": 0.70})
        {'fedpbc': 1, 'fedau': 1}
    """
    unaided = {name: v for name, v in values.items() if not find_algorithm(name).memory_aided}
    ranks = {name: 1 + sum(w > v for w in unaided.values()) for name, v in unaided.items()}
    return {name: rank for name, rank in ranks.items() if rank <= 2}


def marked_name(algorithm: str) -> str:
    """An algorithm's name, marked if it is aided by memory.

    Example:
        >>> marked_name("mifa")
        'mifa†'
    """
    return algorithm + ("†" if find_algorithm(algorithm).memory_aided else "")


def marked_view(view: str, best_deployable: bool) -> str:
    """A view's name, marked if it is the algorithm's best deployable one.

    Example:
        >>> marked_view("reported", True)
        'reported*'
    """
    return view + ("*" if best_deployable else "")
