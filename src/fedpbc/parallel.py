"""How many cores there are to work on."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

__all__ = ["in_parts", "leave_cores_to_others", "usable_cores"]

_MANY = 2**18  # numbers for which a second core is worth a thread

_share: int | None = None


def usable_cores() -> int:
    """How many cores this process should use; not every system can tell more than their number.

    Example:
        >>> usable_cores() >= 1
        True
    """
    if _share is not None:
        return _share
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def leave_cores_to_others() -> None:
    """Use one core from now on: runs go side by side, one in each process."""
    global _share
    _share = 1


def in_parts(work: Callable[[slice], None], count: int) -> None:
    """Do work on ``count`` numbers, on all cores if they are many; parts begin at multiples of 16.

    For array operations, which leave the interpreter to other threads.

    Example:
        >>> in_parts(print, 3)
        slice(0, 3, None)
    """
    cores = usable_cores()
    if count < _MANY or cores == 1:
        work(slice(0, count))
        return
    size = -(-count // (16 * cores)) * 16
    parts = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    for _ in _threads(cores).map(work, parts):
        continue


@lru_cache(maxsize=1)
def _threads(count: int) -> ThreadPoolExecutor:
    # Kept: fresh ones would take as long as they save.
    return ThreadPoolExecutor(count, "fedpbc-parts")
