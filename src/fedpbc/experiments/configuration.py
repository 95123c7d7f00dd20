"""What can be set, read from TOML or options, checked, and written back complete.

A section may be given by its name alone: ``links = "bernoulli"`` is short for a table ``[links]``
with ``name = "bernoulli"``.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import tomli_w
from annotated_types import Ge, Gt

from fedpbc.algorithms import find_algorithm
from fedpbc.errors import InputError, Verbatim
from fedpbc.experiments.tracking import checked_names
from fedpbc.links import find_scheme
from fedpbc.options import checked, unknown_option
from fedpbc.simulation.build import ProbabilityOptions, take_probability_options
from fedpbc.simulation.views import views_of
from fedpbc.storage.toml import parsed_toml
from fedpbc.tasks.local_training import LocalTraining

__all__ = ["Config", "read_toml"]


@dataclass(frozen=True, kw_only=True)
class General:
    """What stands at the top of the file.

    Attributes:
        rounds: T.
        seed: of everything random.
        clients: m; 100, or as many as a quadratic task has targets.
        engine: where local work runs.
        workers: how many processes it has, for «pool» and «ray»; 0: one a core.
        ray_address: an existing Ray cluster; this machine unless given.
        device: where tensors are trained and judged: cpu, cuda, cuda:1, …
        evaluate_every: rounds between evaluations.
        views: which models are judged; all that the algorithm has unless given.
        reported: where the view «reported» keeps each client's last report.
        checkpoint_every: rounds between checkpoints; 0: about every half minute.
        plugins: Python files to import first, with one's own algorithms and link schemes.
        track: where else the run's numbers go: tensorboard, mlflow, wandb.
    """

    rounds: Annotated[int, Ge(1)] = 500
    seed: Annotated[int, Ge(0)] = 0
    clients: Annotated[int, Ge(1)] | None = None
    engine: str = "auto"
    workers: Annotated[int, Ge(0)] = 0
    ray_address: str = ""
    device: str = "cpu"
    evaluate_every: Annotated[int, Ge(1)] = 10
    views: list[str] | None = None
    reported: Literal["memory", "disk"] = "memory"
    checkpoint_every: Annotated[int, Ge(0)] = 0
    plugins: list[str] | None = None
    track: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class TaskSection:
    """What is minimised: pictures are classified, or quadratics with the given targets (.npy)."""

    name: Literal["classification", "quadratic"] = "classification"
    targets: str | None = None


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """Which pictures, where their Parquet files are, and how they are shared out and judged."""

    name: str = "fashion"
    dir: str | None = None
    alpha: Annotated[float, Gt(0)] = 0.1
    train_samples: Annotated[int, Ge(0)] = 5000


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """Which network; the one that the paper has for the data unless given."""

    name: str = "mlp"


@dataclass(frozen=True, kw_only=True)
class TrainSection(LocalTraining):
    """The local steps, and η_g."""

    global_learning_rate: Annotated[float, Gt(0)] = 1.0


SECTIONS = ("algorithm", "task", "data", "model", "train", "links", "downlink")
FILES = (
    ("task", "targets"),
    ("links", "file"),
    ("downlink", "file"),
    ("links", "p"),
    ("downlink", "p"),
)
"""Options that name a file: copied into a run's folder, so that it can be resumed anywhere."""


@dataclass(frozen=True)
class Config:
    """A complete, checked configuration.

    Example:
        >>> config = Config.from_dict({"algorithm": "fedau", "rounds": 60})
        >>> config.algorithm
        {'name': 'fedau', 'cutoff': 50}
        >>> config.train.learning_rate
        0.05
    """

    general: General
    algorithm: dict[str, Any]
    task: TaskSection
    data: DataSection
    model: ModelSection
    train: TrainSection
    links: dict[str, Any]
    downlink: dict[str, Any]

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Config:
        """Check everything that was given and fill in the rest."""
        top, sections = split_sections(given)
        general = General(**checked(General, top))
        general = replace(general, track=checked_names(general.track) or None)
        for plugin in general.plugins or ():
            load_plugin(plugin)
        if "targets" in sections["task"]:
            sections["task"].setdefault("name", "quadratic")

        algorithm = dict(sections["algorithm"])
        kind = find_algorithm(_name(algorithm, "algorithm", "fedpbc"))
        options = checked(kind.__init__, algorithm, "algorithm")
        links = checked_links(sections["links"], "links", "bernoulli_varying")
        downlink = checked_links(sections["downlink"], "downlink", "always")
        config = cls(
            general=replace(general, views=list(views_of(kind, general.views))),
            algorithm={"name": kind.name, **options},
            task=TaskSection(**checked(TaskSection, sections["task"], "task")),
            data=DataSection(**checked(DataSection, sections["data"], "data")),
            model=ModelSection(**checked(ModelSection, with_model(sections), "model")),
            train=TrainSection(**checked(TrainSection, sections["train"], "train")),
            links=links,
            downlink=downlink,
        )
        if config.task.name == "quadratic" and config.task.targets is None:
            raise InputError(
                "task.targets", Verbatim("missing"), "a .npy file, clients × dimensions"
            )
        if config.task.name != "quadratic" and config.task.targets is not None:
            raise InputError("task.targets", config.task.targets, "left out: it is for 'quadratic'")
        return config

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in a TOML file; what is None is left out."""
        nested: dict[str, Any] = asdict(self.general)
        nested["algorithm"] = self.algorithm
        nested["task"] = asdict(self.task)
        if self.task.name == "classification":
            nested |= {"data": asdict(self.data), "model": asdict(self.model)}
        nested["train"] = asdict(self.train)
        nested |= {"links": self.links, "downlink": self.downlink}
        return _without_none(nested)

    def to_toml(self) -> str:
        """The whole configuration as TOML."""
        return tomli_w.dumps(self.to_dict())

    def files(self) -> dict[tuple[str, str], Path]:
        """The files that the configuration names."""
        nested, found = self.to_dict(), {}
        for section, option in FILES:
            value = nested.get(section, {}).get(option)
            if isinstance(value, str):
                found[section, option] = Path(value)
        return found


def split_sections(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The top of the file, and its sections as tables."""
    top = {key: value for key, value in given.items() if key not in SECTIONS}
    known = [*General.__dataclass_fields__, *SECTIONS]
    for key in top:
        if key not in known:
            raise unknown_option(key, known)
    sections: dict[str, dict[str, Any]] = {}
    for name in SECTIONS:
        section = given.get(name, {})
        if isinstance(section, str):
            section = {"name": section}
        if not isinstance(section, Mapping):
            raise InputError(name, section, f"a name, or a table [{name}]")
        sections[name] = dict(section)
    return top, sections


PAPER_MODELS = {"svhn": "cnn_svhn", "cifar10": "cnn_cifar10", "cinic10": "cnn_cinic10"}


def with_model(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The section «model», with the network that the paper has for the data unless one is named."""
    data = sections["data"].get("name", DataSection.name)
    return {"name": PAPER_MODELS.get(str(data), "mlp"), **sections["model"]}


def checked_links(given: Mapping[str, Any], section: str, default: str) -> dict[str, Any]:
    """A link scheme's name, what its probabilities come from, and its own options."""
    options = dict(given)
    scheme = find_scheme(_name(options, section, default), section)
    probabilities = checked(ProbabilityOptions, take_probability_options(options), section)
    own = checked(scheme.rows, options, section, also=probabilities)
    return {"name": scheme.name, **probabilities, **own}


def _name(options: dict[str, Any], section: str, default: str) -> str:
    name = options.pop("name", default)
    if not isinstance(name, str):
        raise InputError(f"{section}.name", name, "a name in quotes")
    return name


def _without_none(nested: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in nested.items()
        if value is not None
    }


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file's content; files that it names are looked for beside it, then here."""
    given = parsed_toml(path)
    for section, option in (*FILES, ("data", "dir")):
        table = given.get(section)
        if isinstance(table, dict) and isinstance(table.get(option), str):
            table[option] = str(_beside(path, table[option]))
    plugins = given.get("plugins")
    if isinstance(plugins, list):
        given["plugins"] = [str(_beside(path, p)) if isinstance(p, str) else p for p in plugins]
    return given


def _beside(config: Path, named: str) -> Path:
    here = Path(named).expanduser()
    beside = config.parent / here
    return (beside if beside.exists() or not here.exists() else here).resolve()


def load_plugin(path: str, option: str = "plugins") -> ModuleType:
    """Import a Python file, so that the algorithms and link schemes in it become known."""
    place = Path(path)
    if not place.is_file():
        raise InputError(option, path, "a Python file that exists")
    # Named by its content: a run's copy of a plugin is the same plugin.
    name = f"fedpbc_plugin_{sha256(place.read_bytes()).hexdigest()[:16]}"
    specification = importlib.util.spec_from_file_location(name, place)
    if specification is None or specification.loader is None:
        raise InputError(option, path, "a Python file, ending in .py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, InputError):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise InputError(option, path, f"importable ({' '.join(reason.split())})") from error
    return module
