"""A progress bar for Python: HTML in a notebook, Rich's in a terminal; elsewhere a log."""

from __future__ import annotations

import logging
import sys
import time
from html import escape
from types import TracebackType
from typing import Any, Self

from fedpbc.progress_lines import ProgressLines

__all__ = ["ProgressBar", "in_notebook"]

REFRESH_SECONDS = 0.2
LOGGER = logging.getLogger("fedpbc.progress")


def in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this."""
    shell = sys.modules.get("IPython")
    kernel = shell.get_ipython() if shell is not None else None
    return type(kernel).__name__ == "ZMQInteractiveShell"


class ProgressBar:
    """How much of the work is done.

    Args:
        label: what is done, in a few words.
        total: the amount of work.
        shown: None: in a notebook, and where standard error is a terminal; elsewhere there are
            records of the logger ``fedpbc.progress`` instead, now and then.

    Example:
        >>> with ProgressBar("rounds", 10, shown=False) as bar:
        ...     bar.update(3, "75.0 %")
    """

    def __init__(self, label: str, total: float, *, shown: bool | None = None) -> None:
        notebook = in_notebook()
        # A library prints nothing by itself: a script that wants lines sets up logging.
        self._lines = ProgressLines() if shown is None else None
        if shown is None:
            shown = notebook or (sys.stderr is not None and sys.stderr.isatty())
        self.label, self.total = label, max(total, 1)
        self._html = shown and notebook
        self._rich = self._open_rich() if shown and not notebook else None
        self._handle: Any = None
        self._last = self._began = time.monotonic()

    def _open_rich(self) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:.0f} % {task.fields[note]} left", markup=False),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        progress.add_task(self.label, total=self.total, note="")
        return progress

    def __enter__(self) -> Self:
        if self._rich is not None:
            self._rich.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._rich is not None:
            self._rich.stop()
        if self._handle is not None:
            seconds = time.monotonic() - self._began
            self._show(f"{self.label}: {'stopped' if error else 'done'} after {seconds:.0f} s")

    def update(self, done: float, note: str = "") -> None:
        """Show how much is done, at most a few times a second."""
        now = time.monotonic()
        if now - self._last < REFRESH_SECONDS:
            return
        self._last = now
        if self._rich is not None:
            self._rich.update(self._rich.task_ids[0], completed=done, note=note)
        elif self._html:
            share = done / self.total
            left = (now - self._began) * (1 - share) / share if share else 0.0
            bar = f'<progress max="1" value="{share:.3f}"></progress>'
            self._show(f"{self.label} {note}, about {left:.0f} s left", bar)
        elif self._lines is not None:
            text = f"{self.label}, {note}" if note else self.label
            if line := self._lines.due(done / self.total, text):
                LOGGER.info(line)

    def _show(self, text: str, bar: str = "") -> None:
        from IPython.display import HTML, display

        content = HTML(f"{bar} {escape(text)}")  # type: ignore[no-untyped-call, unused-ignore]
        if self._handle is None:
            self._handle = display(content, display_id=True)  # type: ignore[no-untyped-call, unused-ignore]
        else:
            self._handle.update(content)
