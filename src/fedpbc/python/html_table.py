"""Small HTML tables for notebooks; all text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["html_table", "paragraph"]

LEFT = "text-align:left"
RIGHT = "text-align:right"


def html_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, bold: Sequence[int] = (), left: int = 1
) -> str:
    """Return a table whose first columns are aligned to the left.

    Example:
        >>> "&lt;b&gt;</td>" in html_table(["view"], [["<b>"]])
        True
    """

    def line(cells: Sequence[str], tag: str, is_bold: bool = False) -> str:
        texts = []
        for k, cell in enumerate(cells):
            style = (LEFT if k < left else RIGHT) + (";font-weight:bold" if is_bold else "")
            texts.append(f'<{tag} style="{style}">{escape(cell)}</{tag}>')
        return f"<tr>{''.join(texts)}</tr>"

    body = [line(row, "td", k in bold) for k, row in enumerate(rows)]
    return f"<table>{line(head, 'th')}{''.join(body)}</table>"


def paragraph(text: str) -> str:
    """Return a paragraph."""
    return f"<p>{escape(text)}</p>"
