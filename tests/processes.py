"""Processes that tests start, signal and wait for."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

PATIENCE = 120.0
"""Seconds to wait for what a busy machine may delay; nobody waits so long when all is well."""


@contextmanager
def child(command: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own that does not outlive the test, however the test ends."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    words = [str(word) for word in command]
    with subprocess.Popen(words, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it did not happen within {seconds:g} s"
        time.sleep(0.02)


def group_is_alive(group: int) -> bool:
    """Whether any process of a group is left, zombies included."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
