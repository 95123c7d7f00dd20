"""The most memory that a run has had, as far as the system tells."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["begin_peak", "peak_memory"]

PROC = Path("/proc")


def begin_peak() -> None:
    """Forget this process's peak: what an earlier run in it had is not this one's.

    Example:
        >>> begin_peak()
    """
    try:
        # "5" is Linux's word for setting the peak back to what is in use now.
        (PROC / "self" / "clear_refs").write_text("5")
    except OSError:
        return  # Then it is the process's peak since it was started.


def peak_memory(workers: Iterable[int] = ()) -> dict[str, int] | None:
    """Peak bytes of this process and of its workers together; None where nobody can tell.

    Example:
        >>> found = peak_memory()
        >>> found is None or found["process"] > 0
        True
    """
    own = _peak_of("self")
    if own is None:
        own = _peak_by_resource()
    if own is None:
        return None
    known = [peak for pid in workers if (peak := _peak_of(str(pid))) is not None]
    return {"process": own, "workers": sum(known)}


def _peak_of(process: str) -> int | None:
    try:
        text = (PROC / process / "status").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def _peak_by_resource() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # In kilobytes, but for macOS.
    return peak if sys.platform == "darwin" else peak * 1024
