"""From names to a simulation: what the command line and Python both start with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpbc.algorithms import Algorithm, ServerInit, find_algorithm
from fedpbc.engines import choose_engine
from fedpbc.errors import InputError, Verbatim
from fedpbc.experiments.tracking import check_trackers, checked_names
from fedpbc.links import LinkScheme, Setting, Timetable, find_scheme, from_data, from_table
from fedpbc.options import checked, nearest
from fedpbc.simulation.last_reports import FILE as REPORTS_FILE
from fedpbc.simulation.last_reports import LastReports, choose_reports
from fedpbc.simulation.loop import Metrics, Simulation
from fedpbc.simulation.views import paper_view
from fedpbc.storage.arrays import read_array
from fedpbc.tasks import Task
from fedpbc.tasks.layout import Layout

__all__ = ["Result", "base_probabilities", "draw_timetable", "make_algorithm", "simulate"]

Probability = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True, kw_only=True)
class ProbabilityOptions:
    """Where p_i comes from.

    Attributes:
        p: one number, one for each client, or a .npy or .csv file of them. Not given, p_i is drawn
            from the classes that each client holds.
        sigma: σ₀, how unequally the classes contribute.
        delta: δ, the least probability.
    """

    p: Probability | list[Probability] | str | None = None
    sigma: Annotated[float, Ge(0), Le(50)] = 10.0
    delta: Annotated[float, Ge(0), Le(1)] = 0.02


LinksLike = str | Mapping[str, Any] | Callable[..., Any] | Timetable | NDArray[np.bool_]
AlgorithmLike = str | Mapping[str, Any] | type[Algorithm]


@dataclass(frozen=True)
class Result:
    """What a simulation gives back.

    Attributes:
        metrics: of every evaluation.
        models: the final model of each view, as flat vectors.
        layout: the names and shapes they stand for.
        engine: which engine ran, and why.

    Example:
        >>> from fedpbc.tasks import Quadratic
        >>> result = simulate(Quadratic([[8.0]]), "fedavg", "always", rounds=20)
        >>> [metrics.round for metrics in result.metrics]
        [10, 20]
    """

    metrics: list[Metrics]
    models: dict[str, Tensor]
    layout: Layout
    engine: str

    def accuracy(self, view: str | None = None) -> float:
        """The last test accuracy, in the view that the paper shows unless another is named."""
        views = self.metrics[-1].views
        accuracy = views[self._known(view or paper_view(tuple(views)))].test_accuracy
        if accuracy is None:
            raise InputError(
                "task", Verbatim("without classes"), "one with classes for an accuracy"
            )
        return accuracy

    def load_into(self, module: nn.Module, view: str) -> None:
        """Put a view's model into a module of the same parameters."""
        own = {name: tuple(p.shape) for name, p in module.named_parameters()}
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            if own.get(name) != shape:
                given = Verbatim(f"without a parameter {name} of shape {shape}")
                raise InputError("module", given, "the one that was trained")
        module.load_state_dict(self.layout.named(self.models[self._known(view)]), strict=False)

    def _known(self, view: str) -> str:
        if view not in self.models:
            raise InputError("view", view, nearest(view, self.models))
        return view


def make_algorithm(algorithm: AlgorithmLike, task: Task, global_lr: float = 1.0) -> Algorithm:
    """An algorithm from its name, its name and options, or its class.

    Example:
        >>> from fedpbc.tasks import Quadratic
        >>> make_algorithm({"name": "fedau", "cutoff": 20}, Quadratic([[1.0]])).cutoff
        20
    """
    options: dict[str, Any] = {}
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        kind = algorithm
    elif isinstance(algorithm, str):
        kind = find_algorithm(algorithm)
    elif isinstance(algorithm, Mapping):
        options = dict(algorithm)
        kind = find_algorithm(options.pop("name", "fedpbc"))
    else:
        raise InputError("algorithm", algorithm, "a name, a table with a name, or a class")
    options = checked(kind.__init__, options, "algorithm")
    return kind(ServerInit(task.init(), task.clients, global_lr), **options)


def base_probabilities(
    task: Task, options: ProbabilityOptions, seed: int, option: str = "links"
) -> NDArray[np.float64] | None:
    """p_i: the given ones, or else drawn from the classes that each client holds.

    Example:
        >>> from fedpbc.tasks import Quadratic
        >>> base_probabilities(Quadratic([[1.0], [2.0]]), ProbabilityOptions(p=0.3), seed=0)
        array([0.3, 0.3])
    """
    if options.p is not None:
        p = options.p
        given = read_array(p, f"{option}.p").ravel() if isinstance(p, str) else np.asarray(p)
        if given.shape not in {(), (task.clients,)}:
            right = f"one number, or one for each of the {task.clients} clients"
            raise InputError(f"{option}.p", Verbatim(f"{given.size} numbers"), right)
        return np.broadcast_to(given.astype(np.float64), task.clients).copy()
    if task.class_shares is None:
        return None
    return from_data(seed, task.class_shares, options.sigma, options.delta)


def draw_timetable(
    links: LinksLike, task: Task, rounds: int, seed: int, *, option: str = "links"
) -> Timetable:
    """Who gets through, from a scheme's name (and options), a table, or a timetable as it is.

    Example:
        >>> from fedpbc.tasks import Quadratic
        >>> task = Quadratic([[1.0], [2.0]])
        >>> draw_timetable({"name": "bernoulli", "p": 0.5}, task, rounds=10, seed=0).clients
        2
    """
    if isinstance(links, Timetable):
        return links
    if isinstance(links, np.ndarray | list | tuple):
        return from_table(np.asarray(links))
    if callable(links):
        links = links.__name__
    if not isinstance(links, str | Mapping):
        raise InputError(option, links, "a name, a table with a name, a function or a timetable")
    if type(rounds) is not int or rounds < 1:
        raise InputError("rounds", rounds, "a whole number, at least 1")
    options = {"name": links} if isinstance(links, str) else dict(links)
    scheme: LinkScheme = find_scheme(options.pop("name", "bernoulli_varying"), option)
    drawn_from = ProbabilityOptions(
        **checked(ProbabilityOptions, take_probability_options(options), option)
    )
    setting = Setting(
        seed=seed,
        clients=task.clients,
        rounds=rounds,
        base_probabilities=base_probabilities(task, drawn_from, seed, option),
        stream="uplink" if option == "links" else "downlink",
        option=option,
    )
    return Timetable.draw(scheme, setting, options)


def take_probability_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take out those options of a section that are not the scheme's own."""
    names = ProbabilityOptions.__dataclass_fields__
    taken = {name: options.pop(name) for name in names if name in options}
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in taken.items()}


def simulate(
    task: Task,
    algorithm: AlgorithmLike = "fedpbc",
    links: LinksLike = "bernoulli_varying",
    *,
    rounds: int = 500,
    downlink: LinksLike = "always",
    seed: int | None = None,
    global_lr: float = 1.0,
    evaluate_every: int = 10,
    views: Sequence[str] | None = None,
    reported: str = "memory",
    engine: str = "auto",
    workers: int = 0,
    ray_address: str = "",
    out: Path | str | None = None,
    on_round: Callable[[int, Metrics | None], None] | None = None,
    track: Sequence[str] | str = (),
    group: Path | str | None = None,
) -> Result:
    """Train a task with an algorithm over unreliable links.

    Args:
        task: what is minimised, such as a ``Supervised``.
        algorithm: a name, a name with options (``{"name": "fedau", "cutoff": 20}``) or a class.
        links: the uplinks: a scheme's name, a name with options, a scheme's function, a bool table
            (rounds × clients) or a ``Timetable``.
        rounds: T; a table's own number if it is one.
        downlink: the same for the way back; a client that does not hear keeps what it has.
        seed: of the links; the task's own unless given.
        global_lr: η_g.
        evaluate_every: rounds between evaluations.
        views: which models are judged; None: all that the algorithm has.
        reported: where the view «reported» keeps each client's last report: «memory», or «disk»: a
            file in the run's folder, without one a temporary file.
        engine: «auto», «serial», «stacked», «pool» or «ray».
        workers: processes of the engine; 0: one a core.
        ray_address: an existing Ray cluster.
        out: a folder for the run; a run that was interrupted there goes on.
        on_round: called after every round with its number and its metrics, if it was evaluated.
        track: where else the numbers go: «tensorboard», «mlflow», «wandb», or several of them.
        group: a folder above ``out`` whose runs belong together there.

    Example:
        >>> from fedpbc.tasks import Quadratic
        >>> task = Quadratic([[0.0], [100.0]])
        >>> result = simulate(task, "fedpbc", {"name": "bernoulli", "p": 0.5}, rounds=200)
        >>> abs(float(result.models["mean"]) - 50) < 1
        True
    """
    own_seed = task.seed if seed is None else seed
    if type(own_seed) is not int or own_seed < 0:
        raise InputError("seed", own_seed, "a whole number from 0")
    trackers = checked_names(track)
    if trackers and out is None:
        raise InputError("track", track, "given together with out, the run's folder")
    if group is None:
        check_trackers(trackers)
    reports = choose_reports(reported, None if out is None else Path(out) / REPORTS_FILE)
    uplink = draw_timetable(links, task, rounds, own_seed)
    simulation, chosen = make_simulation(
        task,
        make_algorithm(algorithm, task, global_lr),
        uplink,
        downlink,
        seed=own_seed,
        evaluate_every=evaluate_every,
        views=views,
        reports=reports,
        engine=engine,
        workers=workers,
        ray_address=ray_address,
    )
    if out is None:
        metrics = []
        with closing(simulation):
            for found in simulation.steps():
                if found is not None:
                    metrics.append(found)
                if on_round is not None:
                    on_round(simulation.progress.round, found)
            return Result(metrics, simulation.view_models(), task.layout, chosen)
    from fedpbc.experiments.run import run_in_folder

    described = {
        "algorithm": {**_described(algorithm), "name": simulation.algorithm.name},
        "links": _described(links),
        "downlink": _described(downlink),
        "rounds": uplink.rounds,
        "seed": own_seed,
        "clients": task.clients,
        "evaluate_every": evaluate_every,
        "views": list(simulation.views),
        "train": {**asdict(task.training), "global_learning_rate": global_lr},
        "task": {"name": "python"},
    }
    above = None if group is None else Path(group)
    metrics = run_in_folder(simulation, chosen, Path(out), described, on_round, trackers, above)
    return Result(metrics, simulation.view_models(), task.layout, chosen)


def make_simulation(
    task: Task,
    algorithm: Algorithm,
    uplink: Timetable,
    downlink: LinksLike = "always",
    *,
    seed: int,
    evaluate_every: int = 10,
    views: Sequence[str] | None = None,
    reports: LastReports | None = None,
    engine: str = "auto",
    workers: int = 0,
    ray_address: str = "",
) -> tuple[Simulation, str]:
    """A simulation at its beginning, and one line on its engine."""
    name = downlink.get("name") if isinstance(downlink, Mapping) else downlink
    lossy = None
    if not (isinstance(name, str) and name == "always"):
        lossy = draw_timetable(downlink, task, uplink.rounds, seed, option="downlink")
    if algorithm.everyone_trains:
        client_rounds = task.clients * uplink.rounds
    else:
        client_rounds = int(uplink.shares().sum() * uplink.rounds)
    chosen, line = choose_engine(
        engine, task, workers=workers, ray_address=ray_address, client_rounds=client_rounds
    )
    simulation = Simulation(
        task,
        algorithm,
        chosen,
        uplink,
        lossy,
        evaluate_every=evaluate_every,
        views=views,
        reports=reports,
    )
    return simulation, line


def _described(chosen: LinksLike | AlgorithmLike) -> dict[str, Any]:
    """Links or an algorithm as a configuration can show them."""
    if isinstance(chosen, Mapping):
        plain = np.ndarray | np.generic
        return {k: v.tolist() if isinstance(v, plain) else v for k, v in chosen.items()}
    if isinstance(chosen, str):
        return {"name": chosen}
    return {"name": getattr(chosen, "__name__", "table")}
