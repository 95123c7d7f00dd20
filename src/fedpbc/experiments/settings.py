"""Everything that can be set about a run, with its type, bounds, default and help.

The TOML file, ``--set``, the options of the command line and Python all take it from here. No
torch is imported, so that ``--help`` is quick.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt

from fedpbc import defaults
from fedpbc.aggregation import Aggregation
from fedpbc.limits import MAX_CLIENTS, MAX_ROUNDS, MAX_WORKERS
from fedpbc.options import Help, options_of
from fedpbc.tasks.local_training import LocalTraining
from fedpbc.tasks.loss_names import LossName

__all__ = [
    "COMPUTE",
    "EXECUTION",
    "FILES",
    "LATER",
    "PLACES",
    "SECTIONS",
    "AlgorithmSection",
    "CommandOption",
    "DataSection",
    "DownlinkSection",
    "General",
    "LinksSection",
    "ModelSection",
    "TaskSection",
    "TrainSection",
    "command_options",
    "without_later",
]


@dataclass(frozen=True, kw_only=True)
class General:
    """The settings outside of sections.

    Attributes:
        clients: None: 100, or as many as a quadratic task has targets.
        evaluate_every_at_end: rounds between evaluations in the last 100 rounds (at most the last
            fifth), over which results are averaged; None: ``evaluate_every``.
        views: which models are evaluated; None: all that the algorithm has.
        deploy_view: the view that a server is to deploy, chosen beforehand, as by a search on
            held-out samples; None: comparisons take the best by the values that they show.
        checkpoint_every: rounds between checkpoints; 0: about every half minute.
        plugins: Python files to import first, with custom algorithms and link schemes.
    """

    rounds: Annotated[int, Ge(1), Le(MAX_ROUNDS), Help("Number of rounds T")] = 500
    seed: Annotated[int, Ge(0), Help("Seed of everything random")] = 0
    clients: Annotated[
        Annotated[int, Ge(1), Le(MAX_CLIENTS)] | None,
        Help("Number of clients m", str(defaults.CLIENTS)),
    ] = None
    engine: Annotated[str, Help("auto, serial, stacked, pool or ray")] = "auto"
    workers: Annotated[
        int, Ge(0), Le(MAX_WORKERS), Help("Processes of the engine", "one per core")
    ] = 0
    ray_address: Annotated[str, Help("An existing Ray cluster", "this machine")] = ""
    device: Annotated[str, Help("Where to train: cpu, cuda, cuda:1, …")] = "cpu"
    evaluate_every: Annotated[int, Ge(1), Help("Rounds between evaluations")] = (
        defaults.EVALUATE_EVERY
    )
    evaluate_every_at_end: Annotated[int, Ge(1)] | None = None
    views: Annotated[
        list[str] | None, Help("Models to evaluate, such as server,averaged", "all")
    ] = None
    deploy_view: Annotated[
        str | None,
        Help("The view to deploy, by which comparisons rank", "the best by the values shown"),
    ] = None
    reported: Annotated[
        Literal["memory", "disk"], Help("Where last reports are kept: memory or disk")
    ] = "memory"
    checkpoint_every: Annotated[int, Ge(0)] = 0
    plugins: list[str] | None = None
    track: Annotated[
        list[str] | None,
        Help("Trackers, separated by commas: tensorboard, mlflow, wandb", "none"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class AlgorithmSection:
    """The algorithm; its own options are those of its class."""

    name: Annotated[str, Help("Algorithm; see 'fedpbc list'")] = "fedpbc"


@dataclass(frozen=True, kw_only=True)
class TaskSection:
    """What is minimised: images' classes, quadratics with targets (.npy), a user's app, or Python.

    Attributes:
        app: a Python file with ``model()`` and ``data(client)``, as a fleet has.
        validation: the share of each client's samples that is kept out of its training and
            evaluated in place of the test data; None: the test data is evaluated.
        running_statistics: of layers such as BatchNorm: averaged with the model, kept on the client
            together with the layers' parameters, or refused.
        loss: what is minimised, by name; None: cross-entropy, or what an app defines.
    """

    name: Literal["classification", "quadratic", "app", "python"] = "classification"
    targets: str | None = None
    app: Annotated[
        str | None, Help("Your model and data: a Python file with model() and data(client)")
    ] = None
    validation: Annotated[float, Gt(0), Lt(1)] | None = None
    running_statistics: Literal["average", "client", "refuse"] = "average"
    loss: LossName | None = None


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """The data set, and how clients share it; its own options are those of its function.

    Attributes:
        weigh: whether evaluations are means over all test samples, or over clients, where each
            brings its own.
    """

    name: Annotated[str, Help("Data set; see 'fedpbc list'")] = "fashion"
    dir: Annotated[str | None, Help("Folder of the data set's Parquet files", flag="data_dir")] = (
        None
    )
    alpha: Annotated[float, Gt(0), Help("α of the Dirichlet partition; small is heterogeneous")] = (
        defaults.ALPHA
    )
    train_samples: Annotated[int, Ge(0)] = defaults.TRAIN_SAMPLES
    weigh: Literal["volume", "clients"] = "volume"


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """The network; by default the data set's. Its own options are those of its function."""

    name: Annotated[str, Help("Network; see 'fedpbc list'", "the data set's, or mlp")] = "mlp"


@dataclass(frozen=True, kw_only=True)
class TrainSection(LocalTraining):
    """The local steps, and η_g."""

    global_learning_rate: Annotated[float, Gt(0), Help("Server step size η_g")] = 1.0


@dataclass(frozen=True, kw_only=True)
class LinksSection:
    """Who gets through; a scheme's own options are those of its function."""

    name: Annotated[str, Help("Link scheme of the uplinks; see 'fedpbc list'")] = (
        "bernoulli_varying"
    )


@dataclass(frozen=True, kw_only=True)
class DownlinkSection:
    """Who hears the server's answer."""

    name: Annotated[str, Help("Link scheme of the downlinks")] = "always"


SECTIONS: dict[str, type] = {
    "algorithm": AlgorithmSection,
    "aggregation": Aggregation,
    "task": TaskSection,
    "data": DataSection,
    "model": ModelSection,
    "train": TrainSection,
    "links": LinksSection,
    "downlink": DownlinkSection,
}

FILES = (
    ("task", "targets"),
    ("links", "file"),
    ("downlink", "file"),
    ("links", "p"),
    ("downlink", "p"),
)
"""Settings that name a file. It is copied into the run's directory, so that the run can be resumed
anywhere."""
PLACES = (("data", "dir"), ("task", "app"))
"""Settings that name what stays where it is: a data set, and an app, which reads files beside it.
The run's identity has their content, and not their path."""
LATER = (
    ("task", "running_statistics"),
    ("train", "weight_decay"),
    ("train", "schedule_rounds"),
)
"""Settings that a later version added: left out of what is written at their defaults, so that a run
of before is still the same."""
EXECUTION = (
    *("checkpoint_every", "plugins", "workers", "ray_address", "reported", "track"),
    "deploy_view",
)
"""General settings of how a run is executed and read: they may change when it is resumed."""
COMPUTE = ("engine", "device")
"""General settings that may change bits, but not what is computed."""


def without_later(section: str, table: dict[str, Any]) -> dict[str, Any]:
    """A section's values without later settings at their defaults."""
    defaults = {name: getattr(SECTIONS[section], name) for part, name in LATER if part == section}
    return {k: v for k, v in table.items() if k not in defaults or v != defaults[k]}


@dataclass(frozen=True)
class CommandOption:
    """A setting as an option of the command line."""

    name: str
    key: str
    """Of the setting, such as ``train.learning_rate``."""
    type: type
    """int, float, str, or list for values separated by commas."""
    help: str
    """One line, with the default."""


def command_options() -> Iterator[CommandOption]:
    """The settings that are options of the command line: those with a help text."""
    for section, settings in {"": General, **SECTIONS}.items():
        for option in options_of(settings).values():
            for help in (each for each in get_args(option.annotation) if isinstance(each, Help)):
                default = help.default or option.default
                text = help.text + (f" (default: {default})." if default is not None else ".")
                name = help.flag or (section if option.name == "name" else option.name)
                key = f"{section}.{option.name}" if section else option.name
                yield CommandOption(name, key, _plain_type(option.annotation), text)


def _plain_type(annotation: Any) -> type:
    """The type that a value on the command line is converted to."""
    if get_origin(annotation) is Annotated:
        return _plain_type(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return str
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation
    if get_origin(annotation) is list:
        return list
    [plain] = [part for part in get_args(annotation) if part is not type(None)]
    return _plain_type(plain)
