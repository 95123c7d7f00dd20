"""When to say how far a long computation is, where nothing can be drawn: in a file, in a log."""

from __future__ import annotations

import time

from fedpbc.text import format_duration

__all__ = ["ProgressLines"]

LINE_SHARE = 0.1
LINE_SECONDS = 30.0
"""There is a line for every tenth of the work, and at least so often."""
LEAST_SECONDS = 5.0
"""But not more often: of what takes seconds, the result says enough."""


class ProgressLines:
    """Lines about how far the work is, with the time that is left.

    Example:
        >>> lines = ProgressLines()
        >>> lines.due(0.05, "round 5 of 100") is None
        True
    """

    def __init__(self) -> None:
        self.begin(0.0)

    def begin(self, share: float) -> None:
        """From here on the time that is left is estimated; ``share`` was done before."""
        self._began = self._last_time = time.monotonic()
        self._first_share = self._last_share = share

    def due(self, share: float, text: str) -> str | None:
        """The line to say now; None if too little has happened since the last one."""
        now = time.monotonic()
        waited, gained = now - self._last_time, share - self._last_share
        if waited < LEAST_SECONDS or share >= 1:
            return None
        if waited < LINE_SECONDS and gained < LINE_SHARE:
            return None
        self._last_time, self._last_share = now, share
        left = ""
        if share > self._first_share:
            seconds = (now - self._began) * (1 - share) / (share - self._first_share)
            left = f", about {format_duration(seconds)} left"
        return f"{100 * share:.0f} %: {text}{left}"
