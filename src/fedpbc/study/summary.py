"""What is known of a run at its end: its result, with costs, memory and each client's accuracy."""

from __future__ import annotations

import math
import platform
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedpbc.simulation.costs import costs_of
from fedpbc.simulation.loop import Simulation
from fedpbc.tasks import Supervised
from fedpbc.tasks.client_data import ClientData

__all__ = ["LISTED_CLIENTS", "client_summary", "reset_peak_memory", "summary_of", "worst_tenth"]

LISTED_CLIENTS = 1000
"""Of so many clients the accuracy is listed; the statistics are of all."""
DIGITS = 5
PROC = Path("/proc")


def summary_of(
    about: Mapping[str, Any],
    simulation: Simulation,
    engine: str,
    last: Mapping[str, Any],
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The result of a run that has completed its last round, before its engine is closed.

    ``about`` identifies the run, ``engine`` is a line on its engine, ``last`` the last evaluation,
    ``notes`` what a reader must know.
    """
    task = simulation.task
    processes = getattr(simulation.engine, "processes", None)
    cluster_summary = getattr(simulation.engine, "cluster_summary", None)
    memory = _peak_memory(processes() if processes is not None else ())
    optional = {
        "notes": list(notes),
        "client_accuracy": client_summary(simulation.client_accuracies()),
        "train_samples": _train_samples(simulation),
        "test_data": task.test_description() if isinstance(task, Supervised) else None,
        "cluster": None if cluster_summary is None else cluster_summary(),
        "memory": memory,
    }
    return {
        **about,
        "rounds": simulation.rounds,
        "clients": task.clients,
        "parameters": task.layout.dimension,
        "views": last["views"],
        "cost": costs_of(simulation.server),
        "engine": engine,
        "seconds": last["seconds"],
        **{name: value for name, value in optional.items() if value},
        "versions": {
            "fedpbc": version("fedpbc"),
            "torch": version("torch"),
            "python": platform.python_version(),
        },
    }


def _train_samples(simulation: Simulation) -> dict[str, int] | None:
    """How many of the clients' samples the training accuracy is of."""
    data = getattr(simulation.task, "data", None)
    if not isinstance(data, ClientData):
        return None
    return {"evaluated": len(data.evaluated), "all": data.sample_count}


def worst_tenth(accuracies: Sequence[float]) -> float:
    """Return the mean accuracy of the worst tenth of the clients, at least one.

    Example:
        >>> worst_tenth([0.9, 0.2, 0.8])
        0.2
    """
    return statistics.fmean(sorted(accuracies)[: math.ceil(len(accuracies) / 10)])


def client_summary(
    accuracies: Mapping[str, Sequence[float | None]],
) -> dict[str, dict[str, Any]]:
    """Return the statistics of each view's accuracies, and those of the first clients.

    Example:
        >>> client_summary({"server": [0.5, None, 1.0]})["server"]["mean"]
        0.75
    """
    summary = {}
    for view, values in accuracies.items():
        known = [value for value in values if value is not None]
        summary[view] = {
            "clients": len(known),
            "held_out": True,
            "mean": statistics.fmean(known),
            "worst_tenth": worst_tenth(known),
            "deviation": statistics.pstdev(known),
            "accuracies": [
                None if value is None else round(value, DIGITS) for value in values[:LISTED_CLIENTS]
            ],
        }
    return summary


# ------------------------------------------------------------------------------------------ memory


def reset_peak_memory() -> None:
    """Forget this process's peak so far: it may be that of an earlier run.

    Where the system cannot do this, the peak remains that since the process started.
    """
    with suppress(OSError):
        # Linux resets the peak to what is in use now when "5" is written.
        (PROC / "self" / "clear_refs").write_text("5")


def _peak_memory(workers: Iterable[int] = ()) -> dict[str, int] | None:
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
