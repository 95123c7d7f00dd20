"""The cores this process may use, and work in threads on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache

__all__ = ["in_parts", "leave_cores_to_others", "one_core", "usable_cores"]

_MIN_PARALLEL = 2**18  # numbers from which threads pay

_core_limit: int | None = None


def usable_cores() -> int:
    """Return how many cores this process should use; with CPU affinity where the system has it."""
    if _core_limit is not None:
        return _core_limit
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def leave_cores_to_others() -> None:
    """Use one core from now on, for a process that runs in parallel with others."""
    global _core_limit
    _core_limit = 1


@contextmanager
def one_core() -> Iterator[None]:
    """Use one core inside this block, to see how fast that is."""
    global _core_limit
    before, _core_limit = _core_limit, 1
    try:
        yield
    finally:
        _core_limit = before


def in_parts(work: Callable[[slice], None], count: int) -> None:
    """Call work on slices of ``count`` numbers, in threads if they are many.

    For array operations that release the GIL. Slices begin at multiples of 16.
    """
    cores = usable_cores()
    if count < _MIN_PARALLEL or cores == 1:
        work(slice(0, count))
        return
    size = -(-count // (16 * cores)) * 16
    parts = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    for _ in _threads(cores).map(work, parts):
        continue


@lru_cache(maxsize=1)
def _threads(count: int) -> ThreadPoolExecutor:
    # Cached: creating threads would take as long as they save.
    return ThreadPoolExecutor(count, "fedpbc-parts")
