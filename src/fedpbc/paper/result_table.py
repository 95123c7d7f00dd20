"""A table of results, for a terminal, for Markdown and for the page."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpbc.algorithms import find_algorithm

if TYPE_CHECKING:
    from fedpbc.report.page import PageTable

__all__ = [
    "AIDED_NOTE",
    "RANK_NOTE",
    "VIEWS_NOTE",
    "Entry",
    "ResultTable",
    "name_of",
    "standing",
    "view_of",
]

RANK_NOTE = "¹ best and ² second best among the algorithms without memory."
AIDED_NOTE = "† aided by memory or known statistics."
VIEWS_NOTE = (
    "The view is the model that was judged. The paper's is 'mean' where clients have models of "
    "their own, else 'server'; no server can have 'mean', which needs every client's model. "
    "* the algorithm's best view that a server could deploy, by its last rounds."
)
MARKS = {1: "¹", 2: "²"}
WIDTH = 1000
"""More than any table needs: numbers are never cut off; a narrow terminal wraps the lines."""


@dataclass(frozen=True)
class Entry:
    """What stands in one place of a table; ``rank`` is 1 for the best and 2 for the second best.

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
        shown = {1: f"**{self.text}**", 2: f"<u>{self.text}</u>"}.get(self.rank, self.text)
        return f"{shown} {MARKS[self.rank]}" if self.rank else shown


@dataclass(frozen=True)
class ResultTable:
    """A table with its title and what a reader must know.

    Attributes:
        title: what it shows.
        head: the columns' heads.
        rows: as many entries each; text may stand for an entry.
        notes: lines below it.
        sections: how many first columns tell groups of rows apart, with a line between them.

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

    def markdown(self) -> str:
        """As Markdown."""
        entries = [[_entry(value).markdown() for value in row] for row in self.rows]
        lines = [list(self.head), ["---"] * len(self.head), *entries]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        notes = "".join(f"\n- {note}" for note in self.notes)
        return f"### {self.title}\n\n{table}" + (f"\n{notes}" if notes else "")

    def terminal(self) -> str:
        """As text."""
        from rich import box
        from rich.console import Console
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for k, head in enumerate(self.head):
            # Heads of several words go one above the other: numbers decide how wide a column is.
            left = _is_name(head)
            shown = head if k == 0 else head.replace(" %", "\u00a0%").replace(" ", "\n")
            table.add_column(shown, justify="left" if left else "right", no_wrap=True)
        last = None
        for row in self.rows:
            entries = [_entry(value).plain() for value in row]
            if last not in (None, entries[: self.sections]):
                table.add_section()
            last = entries[: self.sections]
            table.add_row(*entries)
        console = Console(file=io.StringIO(), width=WIDTH, no_color=True)
        console.print(table)
        drawn: str = console.file.getvalue()  # type: ignore[attr-defined]
        text = "\n".join(line.rstrip() for line in drawn.splitlines())
        return "\n".join([self.title, text.strip("\n"), *self.notes])

    def page(self) -> PageTable:
        """For the HTML page: the best in bold, the second best underlined."""
        from fedpbc.report.page import PageTable
        from fedpbc.report.page_tables import TableCell

        def cell(head: str, value: Entry | str) -> TableCell:
            entry = _entry(value)
            kind = "text" if _is_name(head) else {1: "first", 2: "second"}.get(entry.rank, "")
            return TableCell(entry.plain(), kind=kind)

        rows = [[cell(h, v) for h, v in zip(self.head, row, strict=True)] for row in self.rows]
        return PageTable(self.title, list(self.head), rows, list(self.notes))


def _entry(value: Entry | str) -> Entry:
    return value if isinstance(value, Entry) else Entry(value)


def _is_name(head: str) -> bool:
    return head.split()[-1] in {"algorithm", "view", "links", "data", "changed"}


def standing(values: Mapping[str, float]) -> dict[str, int]:
    """Who is best (1) and second best (2) among the algorithms without memory, as in the paper.

    Equals share a rank, and what comes after two that are best is not second.

    Example:
        >>> standing({"fedpbc": 0.66, "fedavg": 0.59, "fedau": 0.66, "mifa": 0.70})
        {'fedpbc': 1, 'fedau': 1}
    """
    own = {name: v for name, v in values.items() if not find_algorithm(name).memory_aided}
    ranks = {name: 1 + sum(other > value for other in own.values()) for name, value in own.items()}
    return {name: rank for name, rank in ranks.items() if rank <= 2}


def name_of(algorithm: str) -> str:
    """An algorithm's name, with a mark where it is aided by memory.

    Example:
        >>> name_of("mifa")
        'mifa†'
    """
    return algorithm + ("†" if find_algorithm(algorithm).memory_aided else "")


def view_of(view: str, best_deployable: bool) -> str:
    """A view's name, with a mark where it is the best that a server could deploy.

    Example:
        >>> view_of("reported", True)
        'reported*'
    """
    return view + ("*" if best_deployable else "")
