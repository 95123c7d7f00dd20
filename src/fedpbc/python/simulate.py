"""Train a task with an algorithm over unreliable links: :func:`simulate`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Gt

from fedpbc.algorithms import Aggregation
from fedpbc.errors import InputError
from fedpbc.experiments.build import build_experiment
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.execution import OnRound
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.run_record import execute_in_memory
from fedpbc.experiments.settings import (
    AlgorithmSection,
    DownlinkSection,
    General,
    LinksSection,
    TrainSection,
)
from fedpbc.experiments.start import run_python_task
from fedpbc.experiments.tracking import check_trackers, checked_names
from fedpbc.limits import check_path, numbers_of
from fedpbc.options import check_arguments
from fedpbc.python.progress_bar import ProgressBar
from fedpbc.python.result import Result
from fedpbc.simulation.build import AlgorithmLike, LinksLike
from fedpbc.simulation.costs import costs_of
from fedpbc.simulation.metrics import Metrics
from fedpbc.simulation.views import paper_view
from fedpbc.tasks import Task

__all__ = ["check_task", "python_config", "simulate"]


@check_arguments
def simulate(
    task: Task,
    algorithm: AlgorithmLike = AlgorithmSection.name,
    links: LinksLike = LinksSection.name,
    *,
    rounds: int | None = None,
    downlink: LinksLike = DownlinkSection.name,
    aggregation: str | Mapping[str, Any] = Aggregation.name,
    seed: int | None = None,
    global_lr: Annotated[float, Gt(0)] = TrainSection.global_learning_rate,
    evaluate_every: int = General.evaluate_every,
    evaluate_every_at_end: int | None = None,
    views: Sequence[str] | None = None,
    deploy_view: str | None = None,
    reported: str = General.reported,
    engine: str = General.engine,
    workers: int = General.workers,
    ray_address: str = General.ray_address,
    out: Path | str | None = None,
    on_round: OnRound | None = None,
    track: Sequence[str] | str = (),
    group: Path | str | None = None,
    progress: bool | None = None,
) -> Result:
    """Train a task with an algorithm over unreliable links.

    Args:
        task: what is minimised, such as a ``Supervised``.
        algorithm: a name, a name with options (``{"name": "fedau", "cutoff": 20}``) or a class.
        links: the uplinks: a scheme's name, a name with options, a scheme's function, a bool table
            (rounds × clients) or a ``Timetable``.
        rounds: T; None: 500, or as many as a table has.
        downlink: the same for the answers; a client that does not hear one keeps its own model.
        aggregation: what stands in the place of means over clients: "mean", "trimmed_mean",
            "median", or a table such as ``{"name": "trimmed_mean", "trim": 0.1, "clip": 5.0}``.
        seed: of the links; None: the task's.
        global_lr: η_g.
        evaluate_every: rounds between evaluations.
        evaluate_every_at_end: the same for the last 100 rounds (at most the last fifth), over which
            comparisons average; None: no other.
        views: which models are evaluated; None: all that the algorithm has.
        deploy_view: the view that a server is to deploy, if it is chosen beforehand: comparisons
            rank by it; None: by the best of the values that they show.
        reported: where the view ``reported`` keeps each client's last report: "memory", or "disk":
            a file in ``out``, or a temporary file.
        engine: "auto", "serial", "stacked", "pool" or "ray".
        workers: processes of the engine; 0: one per core.
        ray_address: an existing Ray cluster.
        out: a folder for the run; an interrupted run there is continued.
        on_round: called after every round with its number and its metrics, if it was evaluated.
        track: trackers: "tensorboard", "mlflow", "wandb", or several of them.
        group: a folder above ``out`` whose runs belong together, for trackers.
        progress: whether to show a progress bar; None: in a notebook and in a terminal, with
            records of the logger ``fedpbc.progress`` elsewhere.

    Example:
        >>> from fedpbc.tasks import Quadratic
        >>> task = Quadratic([[0.0], [100.0]])
        >>> result = simulate(task, "fedpbc", {"name": "bernoulli", "p": 0.5}, rounds=200)
        >>> abs(float(result.models["mean"]) - 50) < 1
        True
    """
    check_task(task)
    if on_round is not None and not callable(on_round):
        raise InputError("on_round", on_round, "a function of the round and its metrics")
    for name, folder in (("out", out), ("group", group)):
        if folder is not None:
            check_path(folder, name)
    trackers = checked_names(track)
    if trackers and out is None:
        raise InputError("track", track, "given together with out, the run's folder")
    if group is None:
        check_trackers(trackers)
    config = python_config(
        task,
        algorithm,
        links,
        rounds=rounds,
        downlink=downlink,
        aggregation=aggregation,
        seed=seed,
        global_lr=global_lr,
        evaluate_every=evaluate_every,
        evaluate_every_at_end=evaluate_every_at_end,
        views=views,
        deploy_view=deploy_view,
        reported=reported,
        engine=engine,
        workers=workers,
        ray_address=ray_address,
        track=trackers,
    )
    path = None if out is None else Path(out)
    experiment = build_experiment(config, path and RunDirectory(path).last_reports_path)
    simulation = experiment.simulation
    name = f"{config.algorithm['name']} over {config.links['name']}"
    with ProgressBar(name, simulation.rounds, shown=progress) as bar:

        def report(done: int, evaluated: Metrics | None) -> None:
            bar.update(done, *([] if evaluated is None else [_quality(evaluated)]))
            if on_round is not None:
                on_round(done, evaluated)

        if path is None or group is not None:
            # Else the runner says it.
            for note in experiment.notes:
                warnings.warn(note, RuntimeWarning, stacklevel=2)
        if path is None:
            metrics, record = execute_in_memory(experiment, report)
        else:
            group_path = None if group is None else Path(group)
            metrics, record = run_python_task(experiment, path, report, group_path)
    cost = costs_of(simulation.server)
    models = simulation.view_models()
    return Result(metrics, models, task.layout, experiment.engine, cost, path, record)


def _quality(metrics: Metrics) -> str:
    """The accuracy or loss in the view that the paper shows."""
    view = paper_view(tuple(metrics.views))
    evaluation = metrics.views[view]
    if evaluation.test_accuracy is None:
        return f"{view} {evaluation.test_loss:.4g}"
    return f"{view} {100 * evaluation.test_accuracy:.1f} %"


def python_config(
    task: Task,
    algorithm: Any,
    links: Any = LinksSection.name,
    *,
    downlink: Any = DownlinkSection.name,
    seed: int | None = None,
    global_lr: float = TrainSection.global_learning_rate,
    views: Sequence[str] | None = None,
    **general: Any,
) -> Config:
    """The configuration of a simulation; ``general`` has settings of the same name."""
    return Config.from_dict(
        {
            "task": task,
            "algorithm": algorithm,
            "links": _table(links),
            "downlink": _table(downlink),
            "train": {"global_learning_rate": global_lr},
            "seed": task.seed if seed is None else seed,
            "views": list(views) if isinstance(views, tuple) else views,
            **{name: value for name, value in general.items() if value is not None},
        }
    )


def _table(links: Any) -> Any:
    """A nested list is a table as well as an array is."""
    return numbers_of("links", links) if isinstance(links, list | tuple) else links


def check_task(task: Any) -> None:
    """Raise InputError unless this can be trained."""
    if not hasattr(task, "local_steps"):
        raise InputError("task", task, "a task, such as Supervised or Quadratic")
