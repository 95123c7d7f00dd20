"""Memory of a process that does nothing but train."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

# From malloc.h: what mallopt() is told.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
AS_LARGE_AS_CAN_BE = 2**30


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, for the next step to use.

    By default it hands large blocks back to the system at once, and a network's local steps spend
    part of their time on getting them again, page by page. Only for processes of our own: it
    concerns everything in them. Does nothing where there is no GNU C library.

    Example:
        >>> keep_freed_memory()
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, AS_LARGE_AS_CAN_BE)
        mallopt(M_TRIM_THRESHOLD, AS_LARGE_AS_CAN_BE)
