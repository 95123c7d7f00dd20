"""Describe the machine, and measure the memory of a tree of processes."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Process", "Usage", "cores", "describe", "family", "usage"]

PROC = Path("/proc")


def cores() -> list[int]:
    """The processors that this process may run on."""
    return sorted(os.sched_getaffinity(0))


def describe() -> dict[str, Any]:
    """For the record of a measurement; nothing that tells whose machine it is."""
    import torch

    info = (PROC / "cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in info if "model name" in line), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": model or platform.machine(),
        "cores": len(cores()),
        "memory_gib": round(memory / 2**30),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


@dataclass(frozen=True)
class Process:
    """One process, and never another one that was given its number later."""

    pid: int
    parent: int
    started: int

    @classmethod
    def find(cls, pid: int) -> Process | None:
        """What there is under this number now."""
        try:
            # The name comes first, in parentheses, and may hold anything.
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return cls(pid, parent=int(fields[1]), started=int(fields[19]))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is still there."""
        now = Process.find(self.pid)
        # Its parent may be another one by now.
        if now is not None and now.started == self.started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def family(root: int, mark: str = "") -> list[Process]:
    """A process and all that it started, directly or not.

    With a mark (``NAME=value`` in the environment that they were started with) also those that have
    made themselves independent of it.
    """
    processes = {
        process.pid: process
        for entry in PROC.iterdir()
        if entry.name.isdigit() and (process := Process.find(int(entry.name)))
    }
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    first = [root, *(pid for pid in processes if mark and _has_mark(pid, mark))]
    members = dict.fromkeys(pid for pid in first if pid in processes)
    for pid in (queue := list(members)):
        for child in children.get(pid, []):
            if child not in members:
                members[child] = None
                queue.append(child)
    return [processes[pid] for pid in members]


def _has_mark(pid: int, mark: str) -> bool:
    try:
        return mark.encode() in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is somebody else's
        return False


@dataclass(frozen=True)
class Usage:
    """Memory of a tree of processes, in bytes.

    Attributes:
        pss: what is shared is counted once, split over those that share it.
        rss: what is shared is counted in each.
        processes: how many there were.
    """

    pss: int
    rss: int
    processes: int


def usage(root: int) -> Usage:
    """What a tree has in memory right now."""
    pss = rss = processes = 0
    for process in family(root):
        try:
            lines = (PROC / str(process.pid) / "smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended since it was listed
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
        pss, rss = pss + 1024 * sizes.get("Pss", 0), rss + 1024 * sizes.get("Rss", 0)
        processes += 1
    return Usage(pss, rss, processes)
