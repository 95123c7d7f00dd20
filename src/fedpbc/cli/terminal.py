"""The one module that writes to the terminal.

Whatever is printed may come from anyone: names in a configuration, a summary, a path, a library's
message. Here it becomes lines of bounded length without hidden characters; ruff keeps all other
modules from printing.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import UnsupportedOperation
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fedpbc.text import command, printable, shell_quoted, visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from fedpbc.report.text_table import TextTable

__all__ = [
    "command",
    "complain",
    "discard_output_after",
    "finish_output",
    "note",
    "note_at_once",
    "open_console",
    "say",
    "say_json",
    "say_omitted",
    "say_progress",
    "say_sentence",
    "say_text",
    "say_written",
    "show",
    "show_fitted",
    "terminal_width",
]

LINE_LIMIT = 1000
"""Characters of a line: enough for any path that somebody types."""
OUTPUT = "standard output"


def say(line: object = "", *, flush: bool = False) -> None:
    """Print one line."""
    _write(visible(line, LINE_LIMIT).rstrip() + "\n", flush=flush)


def say_sentence(text: object) -> None:
    """Print a sentence that may be long; a terminal would break its lines within words."""
    line, width = visible(text, LINE_LIMIT).rstrip(), terminal_width()
    if width is not None:
        line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    say_text(line)


def say_text(text: str) -> None:
    """Print several lines."""
    for line in text.split("\n"):
        say(line)


def say_json(value: Any) -> None:
    """Print a result for machines: ASCII only, so nothing in it can reach the terminal."""
    # The one control character that JSON does not escape.
    _write(json.dumps(value, indent=2).replace("\x7f", "\\u007f") + "\n")


def say_written(paths: Sequence[Path | str], about: str = "") -> None:
    """Print which files or folders were written, one per line."""
    for k, path in enumerate(paths):
        end = about if k == len(paths) - 1 else ""
        say(f"{'written:' if k == 0 else '        '} {shell_quoted(path)}{end}")


def complain(line: object, code: int = 2) -> int:
    """Print one line on standard error; returns the exit code."""
    _write_error(f"fedpbc: {printable(line, LINE_LIMIT)}\n")
    return code


def note(line: object) -> None:
    """Print a line that must not be lost, and is not an error."""
    _write_error(f"fedpbc: note: {printable(line)}\n")


def say_progress(line: object) -> None:
    """Print on standard error how far a command is, where there is no terminal."""
    _write_error(f"fedpbc: {printable(line)}\n")


def note_at_once(line: str) -> None:
    """Print a note from a signal handler, which may have interrupted another line."""
    text = f"fedpbc: {line}\n"
    with suppress(OSError, ValueError, AttributeError):
        try:
            os.write(sys.stderr.fileno(), text.encode(errors="backslashreplace"))
        except UnsupportedOperation:  # Not a file, as in a test: nothing can be interrupted.
            sys.stderr.write(text)


def open_console(*, stderr: bool = False, min_width: int = 0) -> Console:
    """Return a console of Rich that interprets nothing in what it prints."""
    from rich.console import Console

    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if console.width < min_width:
        console.width = min_width
    return console


def show(table: RenderableType, *, min_width: int = 0) -> None:
    """Print a table; in a terminal narrower than ``min_width`` its lines wrap."""
    if sys.stdout is not None:
        with _named_errors():
            open_console(min_width=min_width).print(table)


def show_fitted(table: TextTable) -> list[str]:
    """Print a table that fits the terminal; returns the headings of columns that do not fit.

    Numbers are never cut off: in the narrowest terminals, lines wrap.
    """
    width = terminal_width()
    left_out = [] if width is None else table.fit(width)
    show(table, min_width=table.width if width is None else table.least_width)
    return left_out


def say_omitted(columns: Sequence[str], where: str) -> None:
    """Print which columns a narrow terminal does not show, and what has them."""
    if columns:
        shown = f"not shown, as the terminal is narrow: {', '.join(columns)}; {where} has them."
        say_sentence(shown)


def terminal_width() -> int | None:
    """Return the width of the terminal; None if the output goes elsewhere."""
    console = open_console()
    return console.width if console.is_terminal else None


def finish_output() -> None:
    """Write out what is still in memory; raises OSError if that fails, on a full disk."""
    _write("", flush=True)


def discard_output_after(error: BaseException) -> None:
    """If standard output cannot be written, discard what Python would still write at its end."""
    if isinstance(error, BrokenPipeError) or getattr(error, "filename", None) == OUTPUT:
        _discard(sys.stdout)


def _write(text: str, *, flush: bool = False) -> None:
    if sys.stdout is None:  # It was closed by whoever started this process.
        return
    with _named_errors():
        sys.stdout.write(text)
        if flush:
            sys.stdout.flush()


def _write_error(text: str) -> None:
    if sys.stderr is not None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:  # There is nobody left to tell.
            _discard(sys.stderr)


@contextmanager
def _named_errors() -> Iterator[None]:
    """Errors of standard output say so, as those of files do."""
    try:
        yield
    except OSError as error:
        error.filename = OUTPUT
        raise


def _discard(stream: IO[str]) -> None:
    with suppress(OSError, ValueError):  # A stream that is not a file needs none of this.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class NoteHandler(logging.Handler):
    """Prints a library's log messages, each as one note."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message."""
        note(record.getMessage())
