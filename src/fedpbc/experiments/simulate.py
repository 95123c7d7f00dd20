"""Python's way to an experiment: :func:`simulate` and :func:`compare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt
from torch import Tensor, nn

from fedpbc.algorithms import PAPER_ALGORITHMS, Algorithm, find_algorithm, register_algorithm
from fedpbc.errors import DivergedError, FedpbcError, InputError, one_line
from fedpbc.experiments.build import build_experiment
from fedpbc.experiments.comparison import Comparison, RunResult
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.execution import OnRound
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.seeds import DEFAULT_SEEDS
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
from fedpbc.options import check_arguments, check_kind, check_type, nearest
from fedpbc.simulation.build import AlgorithmLike, LinksLike
from fedpbc.simulation.costs import costs_of
from fedpbc.simulation.metrics import Metrics
from fedpbc.simulation.views import paper_view
from fedpbc.tasks import Task
from fedpbc.tasks.parameter_layout import Layout

__all__ = ["Result", "compare", "simulate"]


@dataclass(frozen=True)
class Result:
    """The result of :func:`simulate`.

    Attributes:
        metrics: of every evaluation.
        models: the final model of each view, as flat vectors.
        layout: the names and shapes of the parameters in these vectors.
        engine: which engine ran, and why.
        cost: what was computed, sent and stored, as in a run's summary.

    Example:
        >>> from fedpbc.tasks import Quadratic
        >>> result = simulate(Quadratic([[8.0]]), "fedavg", "always", rounds=20)
        >>> [metrics.round for metrics in result.metrics]
        [10, 20]
        >>> result.cost["bytes_up"]  # 20 uploads of a number in double precision
        160
    """

    metrics: list[Metrics]
    models: dict[str, Tensor]
    layout: Layout
    engine: str
    cost: dict[str, Any] = field(default_factory=dict)

    def accuracy(self, view: str | None = None) -> float:
        """The last test accuracy; by default in the view that the paper shows."""
        views = self.metrics[-1].views
        chosen = paper_view(tuple(views)) if view is None else self._checked(view)
        accuracy = views[chosen].test_accuracy
        if accuracy is None:
            raise InputError("this task has no classes, so there is no accuracy: see metrics")
        return accuracy

    def load_into(self, module: nn.Module, view: str) -> None:
        """Copy a view's model into a module with the same parameters."""
        check_kind("module", module, nn.Module, "a torch.nn.Module")
        shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            if shapes.get(name) != shape:
                raise InputError(
                    f"module has no parameter {name} of shape {shape}: it is not the module that "
                    "was trained"
                )
        module.load_state_dict(self.layout.named(self.models[self._checked(view)]), strict=False)

    def _checked(self, view: str) -> str:
        if not isinstance(view, str) or view not in self.models:
            raise InputError("view", view, nearest(view, self.models))
        return view


@check_arguments
def simulate(
    task: Task,
    algorithm: AlgorithmLike = AlgorithmSection.name,
    links: LinksLike = LinksSection.name,
    *,
    rounds: int = General.rounds,
    downlink: LinksLike = DownlinkSection.name,
    seed: int | None = None,
    global_lr: Annotated[float, Gt(0)] = TrainSection.global_learning_rate,
    evaluate_every: int = General.evaluate_every,
    views: Sequence[str] | None = None,
    reported: str = General.reported,
    engine: str = General.engine,
    workers: int = General.workers,
    ray_address: str = General.ray_address,
    out: Path | str | None = None,
    on_round: OnRound | None = None,
    track: Sequence[str] | str = (),
    group: Path | str | None = None,
) -> Result:
    """Train a task with an algorithm over unreliable links.

    Args:
        task: what is minimised, such as a ``Supervised``.
        algorithm: a name, a name with options (``{"name": "fedau", "cutoff": 20}``) or a class.
        links: the uplinks: a scheme's name, a name with options, a scheme's function, a bool table
            (rounds × clients) or a ``Timetable``.
        rounds: T; a table has its own number of rounds.
        downlink: the same for the answers; a client that does not hear one keeps its own model.
        seed: of the links; None: the task's.
        global_lr: η_g.
        evaluate_every: rounds between evaluations.
        views: which models are evaluated; None: all that the algorithm has.
        reported: where the view ``reported`` keeps each client's last report: "memory", or "disk":
            a file in ``out``, or a temporary file.
        engine: "auto", "serial", "stacked", "pool" or "ray".
        workers: processes of the engine; 0: one per core.
        ray_address: an existing Ray cluster.
        out: a folder for the run; an interrupted run there is continued.
        on_round: called after every round with its number and its metrics, if it was evaluated.
        track: trackers: "tensorboard", "mlflow", "wandb", or several of them.
        group: a folder above ``out`` whose runs belong together, for trackers.

    Example:
        >>> from fedpbc.tasks import Quadratic
        >>> task = Quadratic([[0.0], [100.0]])
        >>> result = simulate(task, "fedpbc", {"name": "bernoulli", "p": 0.5}, rounds=200)
        >>> abs(float(result.models["mean"]) - 50) < 1
        True
    """
    if not hasattr(task, "local_steps"):
        raise InputError("task", task, "a task, such as Supervised or Quadratic")
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
    config = Config.from_dict(
        {
            "task": task,
            "algorithm": algorithm,
            "links": _table(links),
            "downlink": _table(downlink),
            "train": {"global_learning_rate": global_lr},
            "rounds": rounds,
            "seed": task.seed if seed is None else seed,
            "evaluate_every": evaluate_every,
            "views": list(views) if isinstance(views, tuple) else views,
            "reported": reported,
            "engine": engine,
            "workers": workers,
            "ray_address": ray_address,
            "track": trackers,
        }
    )
    path = None if out is None else Path(out)
    experiment = build_experiment(config, path and RunDirectory(path).last_reports_path)
    simulation = experiment.simulation
    if path is not None:
        group_path = None if group is None else Path(group)
        metrics = run_python_task(experiment, path, on_round, group_path)
    else:
        metrics = []
        with closing(simulation):
            for evaluated in simulation.steps():
                if evaluated is not None:
                    metrics.append(evaluated)
                if on_round is not None:
                    on_round(simulation.round, evaluated)
    cost = costs_of(simulation.server)
    return Result(metrics, simulation.view_models(), task.layout, experiment.engine, cost)


def _table(links: Any) -> Any:
    """A nested list is a table as well as an array is."""
    return numbers_of("links", links) if isinstance(links, list | tuple) else links


def compare(
    make_task: Callable[[int], Task],
    algorithms: Sequence[Any] = PAPER_ALGORITHMS,
    seeds: Sequence[int] = DEFAULT_SEEDS,
    *,
    out: Path | str | None = None,
    **options: Any,
) -> Comparison:
    """Run algorithms × seeds on the same links, one after another.

    Args:
        make_task: returns the task for a seed.
        algorithms: names, names with options, or classes.
        seeds: one run of each algorithm for each.
        out: a folder for the runs, each in ALGORITHM/seed-K.
        options: of :func:`fedpbc.simulate`.

    Example:
        >>> from fedpbc import Quadratic
        >>> task = lambda seed: Quadratic([[0.0], [100.0]], seed=seed)
        >>> result = compare(task, ["fedpbc", "fedavg"], links={"name": "bernoulli", "p": 0.5},
        ...                  rounds=20)
        >>> len(result.rows())
        7
    """
    if not callable(make_task):
        raise InputError("make_task", make_task, "a function from a seed to a task")
    if isinstance(algorithms, str) or not isinstance(algorithms, Sequence) or not algorithms:
        raise InputError("algorithms", algorithms, "a list of names, tables or classes")
    # An array of no dimension has no length.
    is_list = isinstance(seeds, Sequence | np.ndarray) and getattr(seeds, "ndim", 1) == 1
    if not is_list or not len(seeds):
        raise InputError("seeds", seeds, "different whole numbers from 0, such as [0, 1, 2]")
    seeds = [check_type("seeds", seed, Annotated[int, Ge(0)]) for seed in seeds]
    if len(set(seeds)) < len(seeds):
        raise InputError("seeds", seeds, "different whole numbers from 0, such as [0, 1, 2]")
    if out is not None:
        check_path(out, "out")
    # Once, before anything begins: a server that goes away later must not stop the comparison.
    check_trackers(checked_names(options.get("track")))
    runs: list[RunResult] = []
    names = [_name_of(algorithm) for algorithm in algorithms]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                "algorithms", name, "named once: each row of a comparison has its own name"
            )
    # Where some algorithm has reports, those that have none may be compared with it.
    some_reports = any(find_algorithm(name).client_models for name in names)
    for algorithm, name in zip(algorithms, names, strict=True):
        of_run = dict(options)
        if some_reports and not find_algorithm(name).client_models:
            of_run.pop("reported", None)
        for seed in seeds:
            task = _made_task(make_task, seed)
            folder = None if out is None else Path(out) / name / f"seed-{seed}"
            try:
                result = simulate(
                    task, algorithm, seed=seed, out=folder, **{"group": out, **of_run}
                )
            except DivergedError as error:
                runs.append(RunResult(name, seed, task.clients, failure=str(error)))
                continue
            lines = [metrics.as_dict() for metrics in result.metrics]
            runs.append(RunResult(name, seed, task.clients, lines, cost=result.cost))
    return Comparison(runs)


def _made_task(make_task: Callable[[int], Task], seed: int) -> Task:
    """The task for a seed; how the user's function failed is a cause of the error."""
    try:
        return make_task(seed)
    except FedpbcError:
        raise
    except Exception as error:
        raise InputError(f"make_task({seed}) failed: {one_line(error)}") from error


def _name_of(algorithm: Any) -> str:
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        return str(register_algorithm(algorithm).name)
    name = algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm
    if not isinstance(name, str):
        raise InputError("algorithms", algorithm, "names, tables with a name, or classes")
    return find_algorithm(name).name
