"""What a report shows of a run's clients: their timetable, probabilities and class counts.

``fleet.safetensors`` is written once, when a run begins. Nothing is read back from it to run, so
older directories without it work as well. Of many clients it has the first only, and of the
timetable the part that a picture can show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedpbc.simulation.loop import Simulation
from fedpbc.storage.files import is_own_file
from fedpbc.storage.tensors import save_tensors

__all__ = [
    "ClientOverview",
    "client_tensors",
    "load_client_overview",
    "save_client_overview",
]

CLIENTS = 10_000
"""How many clients' probabilities and numbers of samples are kept."""
SHOWN_CLIENTS, SHOWN_ROUNDS, SHOWN_CLASSES = 200, 400, 200
"""How much of the timetable and of the classes is kept."""


@dataclass(frozen=True, eq=False)
class ClientOverview:
    """What is known of a run's clients; None where it is not known.

    Attributes:
        p: the base probability of each client's uplink, if the links have one.
        shares: the share of rounds in which each client gets through.
        up: the first rounds × clients of the timetable.
        class_counts: how many samples of each class the first clients hold.
        samples: how many samples each client holds.
        task: distinguishes tasks built in Python.
    """

    p: NDArray[np.float64] | None = None
    shares: NDArray[np.float64] | None = None
    up: NDArray[np.bool_] | None = None
    class_counts: NDArray[np.int64] | None = None
    samples: NDArray[np.int64] | None = None
    task: str = ""


def save_client_overview(path: Path, simulation: Simulation, task: str = "") -> None:
    """Write the overview of a simulation's clients."""
    save_tensors(path, client_tensors(simulation), {"task": task})


def client_tensors(simulation: Simulation) -> dict[str, Tensor]:
    """What the overview of a simulation's clients holds, by name."""
    uplink = simulation.uplink
    counts: NDArray[np.int64] | None = getattr(simulation.task, "class_counts", None)
    samples: NDArray[np.int64] | None = getattr(simulation.task, "samples", None)
    arrays = {
        "p": uplink.base_probabilities,
        "shares": uplink.shares(CLIENTS),
        "up": uplink.block(SHOWN_ROUNDS, SHOWN_CLIENTS),
        "class_counts": None if counts is None else counts[:SHOWN_CLIENTS, :SHOWN_CLASSES],
        "samples": samples,
    }
    return {
        name: torch.from_numpy(np.array(array[:CLIENTS]))
        for name, array in arrays.items()
        if array is not None
    }


def load_client_overview(path: Path) -> ClientOverview:
    """What :func:`save_client_overview` wrote; empty if the file is missing or damaged."""
    if not is_own_file(path.parent, path.name):
        return ClientOverview()
    try:
        with safe_open(path, framework="np") as file:
            arrays: dict[str, Any] = {k: file.get_tensor(k) for k in file.keys() if k in KINDS}  # noqa: SIM118
            task = str((file.metadata() or {}).get("task", ""))
    except (SafetensorError, OSError, ValueError, TypeError, KeyError):
        return ClientOverview()
    are_valid = all(_is_kind(array, *KINDS[name]) for name, array in arrays.items())
    return ClientOverview(**arrays, task=task) if are_valid else ClientOverview()


KINDS = {
    "p": ("f", 1, 1.0),
    "shares": ("f", 1, 1.0),
    "up": ("b", 2, 1.0),
    "class_counts": ("iu", 2, math.inf),
    "samples": ("iu", 1, math.inf),
}
"""Of each array: NumPy's kinds of numbers, its dimensions, and the largest number; 0 is the least.
"""


def _is_kind(array: NDArray[Any], kinds: str, dimensions: int, largest: float) -> bool:
    if array.dtype.kind not in kinds or array.ndim != dimensions or not array.size:
        return False
    return bool(np.all((array >= 0) & (array <= largest)))
