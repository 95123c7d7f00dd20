"""Tables for the terminal: plain text in Rich's layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedpbc.text import visible

__all__ = ["TextTable", "plain"]

CELL_LIMIT = 100
"""Characters of a cell."""
FOLDED = 8
"""Characters that a column which folds keeps."""
WIDEST = 10_000
"""Characters of a line: more than any table has."""


def plain(text: object, style: str = "", limit: int = CELL_LIMIT) -> Text:
    """Return text that may come from anyone for Rich: markup in it means nothing."""
    return Text(visible(text, limit), style=style)


@dataclass(frozen=True)
class Column:
    """A column of a table; see :meth:`TextTable.column`."""

    heading: str
    right: bool
    folds: int
    rank: int

    @property
    def lines(self) -> list[Text]:
        """The heading, line by line."""
        return [plain(line) for line in self.heading.split("\n")]

    @property
    def name(self) -> str:
        """The heading in one line."""
        return " ".join(map(str, self.lines)).replace("_ ", "_")


class TextTable:
    """A table of text that may come from anyone; Rich prints it.

    Example:
        >>> import io
        >>> from rich.console import Console
        >>> table = TextTable()
        >>> table.column("name")
        >>> table.column("size", rank=1)
        >>> table.row("x[/b]", 1000)
        >>> table.fit(10)
        ['size']
        >>> Console(file=(shown := io.StringIO())).print(table)
        >>> shown.getvalue().split()
        ['name', '─────', 'x[/b]']
    """

    def __init__(self, title: str = "", *, framed: bool = False) -> None:
        self.title, self.framed = title, framed
        self._columns: list[Column] = []
        self._rows: list[tuple[Sequence[Text], str]] = []
        self._sections: set[int] = set()
        self._left_out: set[int] = set()

    def column(
        self, heading: str, *, right: bool = False, folds: bool | int = False, rank: int = 0
    ) -> None:
        """Add a column; the heading may have several lines.

        In a narrow terminal the cells of a column that ``folds`` have several lines, too, of at
        least as many characters as this number says. If that is not enough, columns of a ``rank``
        above 0 are left out, the highest first.
        """
        width = FOLDED if folds is True else int(folds)
        self._columns.append(Column(heading, right, width, rank))

    def row(self, *cells: object, style: str = "") -> None:
        """Add a row."""
        self._rows.append(([plain(cell) for cell in cells], style))

    def section(self) -> None:
        """Draw a line below the last row."""
        self._sections.add(len(self._rows) - 1)

    def fit(self, width: int) -> list[str]:
        """Leave out columns until lines of this width are enough; returns their headings."""
        while self.least_width > width:
            ranked = [k for k in self._shown() if self._columns[k].rank]
            if not ranked:
                break
            # Of the same rank, the last.
            self._left_out.add(max(ranked, key=lambda k: (self._columns[k].rank, k)))
        return [self._columns[k].name for k in sorted(self._left_out)]

    @property
    def width(self) -> int:
        """The characters that a line needs."""
        return Console(width=WIDEST).measure(self.__rich__()).maximum

    @property
    def least_width(self) -> int:
        """The characters that a line needs where columns that fold have a few each."""
        excess = 0
        for k in self._shown():
            column = self._columns[k]
            if column.folds:
                heading = max(map(cell_len, map(str, column.lines)))
                widths = [heading, *(cell_len(str(cells[k])) for cells, _ in self._rows)]
                excess += max(max(widths) - max(column.folds, heading), 0)
        return self.width - excess

    def _shown(self) -> list[int]:
        return [k for k in range(len(self._columns)) if k not in self._left_out]

    def __rich__(self) -> Table:
        table = Table(
            title=plain(self.title, limit=200) if self.title else None,
            box=box.HEAVY_HEAD if self.framed else box.SIMPLE_HEAD,
            pad_edge=self.framed,
        )
        shown = self._shown()
        for column in (self._columns[k] for k in shown):
            table.add_column(
                Text("\n").join(column.lines),
                justify="right" if column.right else "left",
                no_wrap=not column.folds,
                overflow="fold" if column.folds else "ellipsis",
            )
        for number, (cells, style) in enumerate(self._rows):
            ends = number in self._sections
            table.add_row(*(cells[k] for k in shown), style=style or None, end_section=ends)
        return table
