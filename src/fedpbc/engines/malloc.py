"""Memory allocator settings for processes that only train."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping

__all__ = ["keep_freed_memory", "with_huge_pages"]

TUNABLES = "GLIBC_TUNABLES"
HUGE_PAGES = "glibc.malloc.hugetlb"

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


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a new process, which then asks the system for large pages of memory.

    A step of the paper's network for CIFAR-10 touches thousands of small pages; with large ones it
    takes about a tenth less time. For Linux where programs may ask for them, and the GNU C library
    from version 2.35 on; without effect elsewhere. What the user has set stays.

    Example:
        >>> with_huge_pages({"GLIBC_TUNABLES": "glibc.malloc.check=1"})
        {'GLIBC_TUNABLES': 'glibc.malloc.check=1:glibc.malloc.hugetlb=1'}
    """
    before = environment.get(TUNABLES, "")
    if HUGE_PAGES in before:
        return dict(environment)
    return {**environment, TUNABLES: f"{before}:{HUGE_PAGES}=1".lstrip(":")}
