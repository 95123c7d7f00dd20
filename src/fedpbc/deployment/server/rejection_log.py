"""The gateway's log: whoever reaches the port causes lines, so their number is limited."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

__all__ = ["RejectionLog"]

LOG = logging.getLogger("fedpbc.deployment")
MINUTE = 60.0
PER_SUBJECT, STRANGERS, DEVICES = 5, 30, 300
"""Lines per minute: of one subject, of all strangers, and of all devices."""


class RejectionLog:
    """Logs a line once per minute, and no more lines than a budget allows.

    Strangers cannot use up the lines of devices. What was left out is counted, and the number is
    logged when the minute is over.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._began = now, now()
        self._logged: set[tuple[str, str]] = set()
        self._by_subject: Counter[str] = Counter()
        self._by_group: Counter[bool] = Counter()
        self._left_out = 0

    def add(self, subject: str, text: str, *, is_device: bool = False) -> None:
        """Log a line, unless it was logged in this minute, or there were too many."""
        self.flush()
        if (subject, text) in self._logged:
            return
        limit = DEVICES if is_device else STRANGERS
        if self._by_subject[subject] >= PER_SUBJECT or self._by_group[is_device] >= limit:
            self._left_out += 1
            return
        self._logged.add((subject, text))
        self._by_subject[subject] += 1
        self._by_group[is_device] += 1
        LOG.warning("%s %s", subject, text)

    def flush(self) -> None:
        """Begin another minute if one is over; to be called now and then."""
        if self._now() - self._began < MINUTE:
            return
        if self._left_out:
            LOG.warning("%d more lines were left out in a minute", self._left_out)
        self._began, self._left_out = self._now(), 0
        self._logged.clear()
        self._by_subject.clear()
        self._by_group.clear()
