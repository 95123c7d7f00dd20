"""The peak memory of a run, where the system reports it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["peak_memory", "reset_peak_memory"]

PROC = Path("/proc")


def reset_peak_memory() -> None:
    """Forget this process's peak so far: it may be that of an earlier run.

    Where the system cannot do this, the peak remains that since the process started.
    """
    with suppress(OSError):
        # Linux resets the peak to what is in use now when "5" is written.
        (PROC / "self" / "clear_refs").write_text("5")


def peak_memory(workers: Iterable[int] = ()) -> dict[str, int] | None:
    """Peak bytes of this process, and the sum over its workers; None where it is unknown."""
    peak = _linux_peak("self")
    if peak is None:
        try:
            import resource
        except ImportError:  # Windows
            return None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if sys.platform != "darwin":  # macOS has bytes, others kilobytes.
            peak *= 1024
    return {"process": peak, "workers": sum(_linux_peak(str(pid)) or 0 for pid in workers)}


def _linux_peak(process: str) -> int | None:
    try:
        lines = (PROC / process / "status").read_text().splitlines()
    except OSError:
        return None
    peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return peaks[0] if peaks else None
