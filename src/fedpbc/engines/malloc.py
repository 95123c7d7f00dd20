"""Memory allocator settings for processes that only train."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

# Parameters of mallopt(), from malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_THRESHOLD = 2**30


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next step.

    By default it returns large blocks to the system at once, and local steps spend part of their
    time on getting them back, page by page. Affects the whole process, so only for processes of
    this package. Does nothing without the GNU C library.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, LARGEST_THRESHOLD)
