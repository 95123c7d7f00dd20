"""Lines of a fleet's logs: one per message, bounded, without control characters.

Devices, and whoever else reaches the server's port, decide part of what is logged. A line break or
an escape sequence of theirs must neither fake a line nor reach a terminal. Imports no torch.
"""

from __future__ import annotations

import logging
import re

from fedpbc.text import visible

__all__ = ["LONGEST_LINE", "LineFormatter", "cleaned"]

LONGEST_LINE = 2000
"""Characters of a line."""
COLOR = re.compile(r"\x1b\[[0-9;]*m")


class LineFormatter(logging.Formatter):
    """The time and the message on one line; a traceback, if there is one, on further lines."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Format the message without what follows it."""
        return visible(" ".join(super().formatMessage(record).split()), LONGEST_LINE)

    def formatException(self, ei: object) -> str:
        """Format a traceback."""
        lines = super().formatException(ei).split("\n")  # type: ignore[arg-type]
        return "\n".join(f"  {visible(line, LONGEST_LINE)}" for line in lines)


def cleaned(line: bytes) -> bytes:
    """Return a line of a process's output, with a line break at its end and no other.

    Example:
        >>> cleaned(b"\\x1b[32mINFO\\x1b[0m ready\\x07\\n")
        b'INFO ready\\\\x07\\n'
    """
    text = COLOR.sub("", line.decode(errors="backslashreplace")).rstrip()
    return visible(text, LONGEST_LINE).encode() + b"\n"
