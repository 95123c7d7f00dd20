"""Warnings of Python and of libraries, as lines for people."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedpbc.text import printable

__all__ = ["warnings_noted"]


@contextmanager
def warnings_noted(note: Callable[[str], None]) -> Iterator[None]:
    """Call ``note`` with each different warning in this block, as one line.

    Example:
        >>> with warnings_noted(print):
        ...     warnings.simplefilter("always")
        ...     warnings.warn("two\\nlines", UserWarning)
        two lines
    """
    seen: set[str] = set()

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        line = printable(message)
        if line not in seen:
            seen.add(line)
            note(line)

    with warnings.catch_warnings():
        # NumPy's overflow, division by zero, …: a result that is not finite is found and reported.
        warnings.filterwarnings("ignore", ".* encountered in", RuntimeWarning)
        warnings.showwarning = show
        yield
