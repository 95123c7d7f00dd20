"""What a run's fleet looks like: who gets through when and how likely, and who holds what.

fleet.safetensors is written once, when a run begins, for reports to show. Nothing is read back from
it to run, so an older folder without it is as good as ever. Of large fleets it has the first
clients only, and of the timetable the part that a picture can show.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from fedpbc.simulation.loop import Simulation
from fedpbc.storage.tensors import save_tensors

__all__ = ["ClientOverview", "load_client_overview", "save_client_overview"]

CLIENTS = 10_000
"""Whose probability and number of samples are kept."""
SHOWN_CLIENTS, SHOWN_ROUNDS, SHOWN_CLASSES = 200, 400, 200
"""How much of the timetable and of the classes is kept."""


@dataclass(frozen=True, eq=False)
class ClientOverview:
    """What is known of a run's fleet; None where it is not known.

    Attributes:
        p: the base probability of each client's uplink, if the links have one.
        shares: in which share of the rounds each client gets through.
        up: the timetable's first rounds × clients.
        class_counts: how many samples of each class the first clients hold.
        samples: how many samples each client holds.
        task: tells tasks made in Python apart.
    """

    p: NDArray[np.float64] | None = None
    shares: NDArray[np.float64] | None = None
    up: NDArray[np.bool_] | None = None
    class_counts: NDArray[np.int64] | None = None
    samples: NDArray[np.int64] | None = None
    task: str = ""


def save_client_overview(path: Path, simulation: Simulation, task: str = "") -> None:
    """Write a simulation's fleet.

    Example:
        >>> import tempfile
        >>> from fedpbc.experiments.configuration import Config
        >>> from fedpbc.experiments.build import build_simulation
        >>> config = Config.from_dict({"data": "digits", "clients": 10, "rounds": 3})
        >>> place = Path(tempfile.mkdtemp()) / "fleet.safetensors"
        >>> save_client_overview(place, build_simulation(config)[0])
        >>> load_client_overview(place).up.shape
        (3, 10)
    """
    uplink, own = simulation.uplink, simulation.task
    counts: NDArray[np.int64] | None = getattr(own, "class_counts", None)
    samples: NDArray[np.int64] | None = getattr(own, "samples", None)
    found = {
        "p": uplink.base_probabilities,
        "shares": uplink.shares(CLIENTS),
        "up": uplink.block(SHOWN_ROUNDS, SHOWN_CLIENTS),
        "class_counts": None if counts is None else counts[:SHOWN_CLIENTS, :SHOWN_CLASSES],
        "samples": samples,
    }
    tensors = {
        name: torch.from_numpy(np.array(array[:CLIENTS]))
        for name, array in found.items()
        if array is not None
    }
    save_tensors(path, tensors, {"task": task})


def load_client_overview(path: Path) -> ClientOverview:
    """What :func:`save_client_overview` wrote; empty if the file is missing or damaged."""
    try:
        with safe_open(path, framework="np") as file:
            known = set(ClientOverview.__dataclass_fields__) - {"task"}
            arrays: dict[str, Any] = {k: file.get_tensor(k) for k in file.keys() if k in known}  # noqa: SIM118
            return ClientOverview(**arrays, task=(file.metadata() or {}).get("task", ""))
    except (SafetensorError, OSError, ValueError):
        return ClientOverview()
