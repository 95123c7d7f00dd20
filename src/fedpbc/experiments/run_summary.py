"""What is known of a run at its end, stored or not."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from fedpbc.experiments.client_accuracy import client_summary
from fedpbc.experiments.peak_memory import peak_memory
from fedpbc.simulation.costs import costs_of
from fedpbc.simulation.loop import Simulation
from fedpbc.tasks import Supervised
from fedpbc.tasks.client_data import ClientData

__all__ = ["run_summary"]


def run_summary(
    about: Mapping[str, Any],
    simulation: Simulation,
    engine: str,
    last: Mapping[str, Any],
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The summary of a run that has completed its last round, before its engine is closed.

    ``about`` identifies the run, ``engine`` is a line on its engine, ``last`` the last evaluation,
    ``notes`` what a reader must know.
    """
    processes = getattr(simulation.engine, "processes", None)
    cluster_summary = getattr(simulation.engine, "cluster_summary", None)
    cluster = None if cluster_summary is None else cluster_summary()
    memory = peak_memory(processes() if processes is not None else ())
    served = client_summary(simulation.client_accuracies())
    return {
        **about,
        "rounds": simulation.rounds,
        "clients": simulation.task.clients,
        "parameters": simulation.task.layout.dimension,
        "views": last["views"],
        **({"client_accuracy": served} if served else {}),
        **_train_samples(simulation),
        **_test_data(simulation),
        "cost": costs_of(simulation.server),
        "engine": engine,
        **({"notes": list(notes)} if notes else {}),
        **({} if cluster is None else {"cluster": cluster}),
        "seconds": last["seconds"],
        **({} if memory is None else {"memory": memory}),
        "versions": {
            "fedpbc": version("fedpbc"),
            "torch": version("torch"),
            "python": platform.python_version(),
        },
    }


def _test_data(simulation: Simulation) -> dict[str, Any]:
    """What is evaluated, where clients bring their own test samples."""
    task = simulation.task
    description = task.test_description() if isinstance(task, Supervised) else None
    return {} if description is None else {"test_data": description}


def _train_samples(simulation: Simulation) -> dict[str, Any]:
    """How many of the clients' samples the training accuracy is of."""
    data = getattr(simulation.task, "data", None)
    if not isinstance(data, ClientData):
        return {}
    return {"train_samples": {"evaluated": len(data.evaluated), "all": data.sample_count}}
