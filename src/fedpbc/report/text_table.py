"""Tables for the terminal: plain text in Rich's layout."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedpbc.text import visible

__all__ = ["TextTable", "plain"]

CELL_LIMIT = 100
"""Characters of a cell."""
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

    def column(self, heading: str, *, right: bool = False) -> None:
        """Add a column; the heading may have several lines."""
        lines = [plain(line) for line in heading.split("\n")]
        self._table.add_column(
            Text("\n").join(lines), justify="right" if right else "left", no_wrap=True
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

    def __rich__(self) -> Table:
        return self._table
