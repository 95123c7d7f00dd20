"""Python's way to an experiment: :func:`simulate` and :func:`compare`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Gt
from torch import Tensor, nn

from fedpbc.algorithms import PAPER_ALGORITHMS, Algorithm, find_algorithm, register_algorithm
from fedpbc.errors import DivergedError, FedpbcError, InputError, one_line
from fedpbc.experiments.build import build_experiment
from fedpbc.experiments.comparison import Comparison, RunResult
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.entries import (
    Entry,
    SettingNames,
    merged,
)
from fedpbc.experiments.execution import OnRound
from fedpbc.experiments.integrity import damage_of
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.seeds import DEFAULT_SEEDS, seed_list
from fedpbc.experiments.settings import (
    AlgorithmSection,
    DownlinkSection,
    General,
    LinksSection,
    TrainSection,
)
from fedpbc.experiments.start import run_python_task
from fedpbc.experiments.swept_entries import comparison_entries
from fedpbc.experiments.tracking import check_trackers, checked_names
from fedpbc.limits import check_path, numbers_of
from fedpbc.options import check_arguments, check_kind, nearest
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
    _check_task(task)
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
    config = _config(
        task,
        algorithm,
        links,
        rounds=rounds,
        downlink=downlink,
        seed=seed,
        global_lr=global_lr,
        evaluate_every=evaluate_every,
        views=views,
        reported=reported,
        engine=engine,
        workers=workers,
        ray_address=ray_address,
        track=trackers,
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


def _config(
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
            **general,
        }
    )


def _table(links: Any) -> Any:
    """A nested list is a table as well as an array is."""
    return numbers_of("links", links) if isinstance(links, list | tuple) else links


def compare(
    make_task: Callable[[int], Task],
    algorithms: Sequence[Any] | Mapping[str, Any] = PAPER_ALGORITHMS,
    seeds: Sequence[int] | str = DEFAULT_SEEDS,
    *,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    ceiling: bool = False,
    out: Path | str | None = None,
    **options: Any,
) -> Comparison:
    """Run algorithms × seeds on the same links, one after another.

    Args:
        make_task: returns the task for a seed.
        algorithms: names, specifications (``"fedau:cutoff=5"``), tables or classes. A table has a
            ``name``, options of the algorithm, options of :func:`fedpbc.simulate` for this entry
            alone, and a ``label`` for its rows; without one, those of the same algorithm are
            labelled by what differs. Or tables by label.
        seeds: one run of each algorithm for each: numbers, or ranges such as ``"0-4"``.
        sweep: each algorithm runs once for each combination of these values: of options of the
            algorithms or of :func:`fedpbc.simulate`, such as ``{"links.p": [0.1, 0.5]}``.
        ceiling: also FedAvg with every link up, under the label ``ceiling``.
        out: a folder for the runs, each in LABEL/seed-K; finished ones are kept, so a comparison
            can be continued, and widened by more algorithms or seeds.
        options: of :func:`fedpbc.simulate`.

    Example:
        >>> from fedpbc import Quadratic
        >>> task = lambda seed: Quadratic([[0.0], [100.0]], seed=seed)
        >>> result = compare(task, ["fedpbc", "fedavg"], links={"name": "bernoulli", "p": 0.5},
        ...                  rounds=20)
        >>> len(result.rows())
        7
        >>> tables = [{"name": "fedau", "cutoff": 5}, {"name": "fedau", "cutoff": 50}]
        >>> compare(task, tables, "0-1", links={"name": "bernoulli", "p": 0.5}, rounds=5).labels
        ['fedau:cutoff=5', 'fedau:cutoff=50']
    """
    if not callable(make_task):
        raise InputError("make_task", make_task, "a function from a seed to a task")
    numbers = seed_list(seeds)
    entries = _entries(algorithms, {} if sweep is None else sweep, ceiling)
    if out is not None:
        check_path(out, "out")
    # Once, before anything begins: a server that goes away later must not stop the comparison.
    check_trackers(checked_names(options.get("track")))
    runs: list[RunResult] = []
    # Where some algorithm has reports, those that have none may be compared with it.
    some_reports = any(find_algorithm(entry.algorithm).client_models for entry in entries)
    for entry in entries:
        of_run = {**options, **merged(options, entry.settings)}
        if some_reports and not find_algorithm(entry.algorithm).client_models:
            of_run.pop("reported", None)
        algorithm = {"name": entry.algorithm, **entry.options}
        for seed in numbers:
            task = _made_task(make_task, seed)
            folder = None if out is None else Path(out) / entry.label / f"seed-{seed}"
            result = RunResult(
                entry.algorithm,
                seed,
                task.clients,
                label=entry.label,
                condition=entry.condition,
            )
            if folder is not None and (kept := _kept_run(task, algorithm, seed, folder, of_run)):
                runs.append(replace(result, metrics=kept.metrics(), cost=kept.summary()["cost"]))
                continue
            try:
                ended = simulate(task, algorithm, seed=seed, out=folder, **{"group": out, **of_run})
            except DivergedError as error:
                runs.append(replace(result, failure=str(error)))
                continue
            lines = [metrics.as_dict() for metrics in ended.metrics]
            runs.append(replace(result, metrics=lines, cost=ended.cost))
    return Comparison(runs)


_OF_ENTRIES = SettingNames(
    ("links", "downlink"),
    {
        name: name
        for name in inspect.signature(simulate).parameters
        if name not in ("task", "algorithm", "seed", "out", "on_round", "track", "group")
    },
)
"""Options of :func:`simulate` that may differ between the entries of a comparison."""


def _entries(algorithms: Any, sweep: Any, ceiling: bool) -> list[Entry]:
    """The entries of a comparison, swept, with their ceilings last."""
    expected = "a list of names, tables or classes"
    if isinstance(algorithms, str) or not isinstance(algorithms, Sequence | Mapping):
        raise InputError("algorithms", algorithms, expected)
    if not algorithms:
        raise InputError("algorithms", algorithms, expected)
    given: Any = algorithms
    if not isinstance(algorithms, Mapping):
        given = [
            str(register_algorithm(each).name)
            if isinstance(each, type) and issubclass(each, Algorithm)
            else each
            for each in algorithms
        ]
    return comparison_entries(given, sweep, ceiling, _OF_ENTRIES)


def _kept_run(
    task: Task, algorithm: Any, seed: int, folder: Path, options: Mapping[str, Any]
) -> RunDirectory | None:
    """The finished run in a folder, if there is one; it must be the one that is asked for."""
    directory = RunDirectory(folder)
    if not directory.finished or damage_of(directory):
        return None
    # How a run was watched does not matter now.
    watching = ("on_round", "track", "group")
    settings = {key: value for key, value in options.items() if key not in watching}
    experiment = build_experiment(_config(task, algorithm, seed=seed, **settings))
    with closing(experiment.simulation):
        if experiment.about()["fingerprint"] != directory.summary()["fingerprint"]:
            raise FedpbcError(
                f"{folder} belongs to another run: its options are not these; choose a new folder"
            )
    return directory


def _made_task(make_task: Callable[[int], Task], seed: int) -> Task:
    """The task for a seed; how the user's function failed is a cause of the error."""
    try:
        task = make_task(seed)
    except FedpbcError:
        raise
    except Exception as error:
        raise InputError(f"make_task({seed}) failed: {one_line(error)}") from error
    _check_task(task)
    return task


def _check_task(task: Any) -> None:
    if not hasattr(task, "local_steps"):
        raise InputError("task", task, "a task, such as Supervised or Quadratic")
