"""How many cores there are to work on."""

from __future__ import annotations

import os

__all__ = ["leave_cores_to_others", "usable_cores"]

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
