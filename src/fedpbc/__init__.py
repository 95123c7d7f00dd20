"""Federated learning that stays unbiased when uplinks fail.

FedPBC and its rivals, simulated over unreliable links: pick a task, an algorithm and a link scheme,
and call :func:`simulate`; or use the command line, ``fedpbc --help``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpbc import theory
    from fedpbc.algorithms import (
        ALGORITHMS,
        PAPER_ALGORITHMS,
        Algorithm,
        Round,
        ServerInit,
        Update,
        advance,
        mean,
        register_algorithm,
    )
    from fedpbc.data import DataSet, Split, dirichlet_partition, load
    from fedpbc.engines import ENGINES, Engine, Segment, Trained
    from fedpbc.errors import DivergedError, FedpbcError, InputError, MissingExtraError, WorkerError
    from fedpbc.experiments.comparison import Comparison, compare
    from fedpbc.experiments.configuration import Config
    from fedpbc.experiments.run import resume_run, start_run
    from fedpbc.experiments.run_directory import load_view
    from fedpbc.links import SCHEMES, Setting, Timetable, link_scheme
    from fedpbc.simulation.build import Result, simulate
    from fedpbc.simulation.loop import Metrics, Simulation
    from fedpbc.tasks import Evaluation, LocalTraining, Quadratic, Supervised, Task
    from fedpbc.tasks.layout import Layout
    from fedpbc.tasks.networks import MODELS, build_model

__version__: str

__all__ = [
    "ALGORITHMS",
    "ENGINES",
    "MODELS",
    "PAPER_ALGORITHMS",
    "SCHEMES",
    "Algorithm",
    "Comparison",
    "Config",
    "DataSet",
    "DivergedError",
    "Engine",
    "Evaluation",
    "FedpbcError",
    "InputError",
    "Layout",
    "LocalTraining",
    "Metrics",
    "MissingExtraError",
    "Quadratic",
    "Result",
    "Round",
    "Segment",
    "ServerInit",
    "Setting",
    "Simulation",
    "Split",
    "Supervised",
    "Task",
    "Timetable",
    "Trained",
    "Update",
    "WorkerError",
    "advance",
    "build_model",
    "compare",
    "dirichlet_partition",
    "link_scheme",
    "load",
    "load_view",
    "mean",
    "register_algorithm",
    "resume_run",
    "simulate",
    "start_run",
    "theory",
]

# Where each name lives. Looked up when it is first used: the command line must start at once, and
# importing torch takes seconds.
_HOMES = {
    "algorithms": (
        "ALGORITHMS",
        "PAPER_ALGORITHMS",
        "Algorithm",
        "ServerInit",
        "Round",
        "Update",
        "advance",
        "mean",
        "register_algorithm",
    ),
    "experiments.comparison": ("Comparison", "compare"),
    "data": ("DataSet", "Split", "dirichlet_partition", "load"),
    "engines": ("ENGINES", "Engine", "Segment", "Trained"),
    "errors": ("DivergedError", "FedpbcError", "InputError", "MissingExtraError", "WorkerError"),
    "simulation.build": ("Result", "simulate"),
    "links": ("SCHEMES", "Setting", "Timetable", "link_scheme"),
    "tasks.networks": ("MODELS", "build_model"),
    "tasks.layout": ("Layout",),
    "experiments.configuration": ("Config",),
    "experiments.run_directory": ("load_view",),
    "experiments.run": ("resume_run", "start_run"),
    "simulation.loop": ("Metrics", "Simulation"),
    "tasks": ("Evaluation", "LocalTraining", "Quadratic", "Supervised", "Task"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "__version__":
        from importlib.metadata import version

        return version("fedpbc")
    if name == "theory":
        return import_module("fedpbc.theory")
    if name not in _HOME:
        raise AttributeError(f"module 'fedpbc' has no attribute {name!r}")
    return getattr(import_module(f"fedpbc.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
