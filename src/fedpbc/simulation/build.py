"""From names and options to the parts of a simulation: the algorithm and the timetables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpbc.algorithms import Aggregation, Algorithm, ServerInit, find_algorithm
from fedpbc.errors import InputError
from fedpbc.links import Setting, Timetable, find_scheme, from_data, from_table
from fedpbc.links.probabilities import ProbabilityOptions, hidden_shares
from fedpbc.options import checked
from fedpbc.simulation.model_parts import ModelParts
from fedpbc.storage.arrays import read_array
from fedpbc.tasks import Task

__all__ = [
    "AlgorithmLike",
    "LinksLike",
    "draw_timetable",
    "make_algorithm",
    "take_probability_options",
]

LinksLike = str | Mapping[str, Any] | Callable[..., Any] | Timetable | NDArray[np.bool_]
AlgorithmLike = str | Mapping[str, Any] | type[Algorithm]


def make_algorithm(
    algorithm: AlgorithmLike,
    task: Task,
    global_lr: float = 1.0,
    aggregation: Aggregation | None = None,
) -> Algorithm:
    """An algorithm from its name, its name and options, or its class."""
    options: dict[str, Any] = {}
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        kind = algorithm
    elif isinstance(algorithm, str):
        kind = find_algorithm(algorithm)
    elif isinstance(algorithm, Mapping) and "name" in algorithm:
        options = dict(algorithm)
        kind = find_algorithm(options.pop("name"))
    else:
        raise InputError("algorithm", algorithm, "a name, a table with a name, or a class")
    options = checked(kind.__init__, options, "algorithm")
    x0 = ModelParts.of(task.init(), task.layout).x0
    init = ServerInit(x0, task.clients, global_lr, aggregation or Aggregation())
    return kind(init, **options)


def base_probabilities(
    task: Task, options: ProbabilityOptions, seed: int, option: str = "links"
) -> NDArray[np.float64] | None:
    """p_i of each client, from the options or else drawn from the classes that the client holds.

    Clients that bring their own data are drawn as if they held a Dirichlet partition: all writers
    write the same letters, so that from these all of them would have the same p_i.
    """
    if options.p is not None:
        if isinstance(options.p, str):
            p = read_array(options.p, f"{option}.p").ravel()
        else:
            p = np.asarray(options.p)
        if p.shape not in {(), (task.clients,)}:
            raise InputError(
                f"{option}.p has {p.size} numbers, but should have one, or one for each of the "
                f"{task.clients} clients"
            )
        return np.broadcast_to(p.astype(np.float64), task.clients).copy()
    if getattr(task, "has_natural_clients", False):
        return from_data(seed, hidden_shares(seed, task.clients), options.sigma, options.delta)
    if task.class_shares is None:
        return None
    return from_data(seed, task.class_shares, options.sigma, options.delta)


def draw_timetable(
    links: LinksLike, task: Task, rounds: int, seed: int, *, option: str = "links"
) -> Timetable:
    """Draw the timetable of a scheme, given by name or name and options, or convert a table."""
    if isinstance(links, Timetable):
        return links
    if isinstance(links, np.ndarray):
        return from_table(links)
    if callable(links):
        links = links.__name__
    options: dict[str, Any] = {"name": links} if isinstance(links, str) else dict(links)
    scheme = find_scheme(options.pop("name"), option)
    probabilities = ProbabilityOptions(
        **checked(ProbabilityOptions, take_probability_options(options), option)
    )
    data: dict[str, Any] = {}
    if scheme.needs_data(options):
        data = {"class_shares": task.class_shares, "samples": getattr(task, "samples", None)}
    setting = Setting(
        seed=seed,
        clients=task.clients,
        rounds=rounds,
        base_probabilities=base_probabilities(task, probabilities, seed, option),
        stream="uplink" if option == "links" else "downlink",
        option=option,
        **data,
    )
    return Timetable.draw(scheme, setting, options)


def take_probability_options(options: dict[str, Any]) -> dict[str, Any]:
    """Remove and return the options of a links section that are not the scheme's own."""
    names = ProbabilityOptions.__dataclass_fields__
    taken = {name: options.pop(name) for name in names if name in options}
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in taken.items()}
