"""Tables for the terminal: plain text in Rich's layout."""

from __future__ import annotations

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


class TextTable:
    """A table of text that may come from anyone; Rich prints it.

    Example:
        >>> import io
        >>> from rich.console import Console
        >>> table = TextTable()
        >>> table.column("name")
        >>> table.row("x[/b]")
        >>> Console(file=(shown := io.StringIO())).print(table)
        >>> shown.getvalue().split()
        ['name', '─────', 'x[/b]']
    """

    def __init__(self, title: str = "", *, framed: bool = False) -> None:
        self._table = Table(
            title=plain(title, limit=200) if title else None,
            box=box.HEAVY_HEAD if framed else box.SIMPLE_HEAD,
            pad_edge=framed,
        )

    def column(self, heading: str, *, right: bool = False, folds: bool = False) -> None:
        """Add a column; the heading may have several lines.

        In a narrow terminal the cells of a column that ``folds`` have several lines, too.
        """
        lines = [plain(line) for line in heading.split("\n")]
        self._table.add_column(
            Text("\n").join(lines),
            justify="right" if right else "left",
            no_wrap=not folds,
            overflow="fold" if folds else "ellipsis",
        )

    def row(self, *cells: object, style: str = "") -> None:
        """Add a row."""
        self._table.add_row(*map(plain, cells), style=style or None)

    def section(self) -> None:
        """Draw a line below the last row."""
        self._table.add_section()

    @property
    def width(self) -> int:
        """The characters that a line needs."""
        return Console(width=WIDEST).measure(self._table).maximum

    @property
    def least_width(self) -> int:
        """The characters that a line needs where columns that fold have a few each."""
        excess = 0
        for column in self._table.columns:
            if not column.no_wrap:
                width = max(cell_len(str(cell)) for cell in column.cells)
                excess += max(width - FOLDED, 0)
        return self.width - excess

    def __rich__(self) -> Table:
        return self._table
