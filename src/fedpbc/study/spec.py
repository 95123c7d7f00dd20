"""One run as a value: a :class:`Spec` is everything that changes its result, and nothing else.

How it is executed and read is an :class:`Execution` beside it. Both are declared here once, with
types, bounds, defaults and help: the options of the command line, TOML, Python and fleets are these
fields. A spec is complete, so that two ways of writing the same run are equal and have the same id.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, cast, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from fedpbc import defaults
from fedpbc.choices import Choice, Registry, located, plain, texts_of
from fedpbc.errors import InputError
from fedpbc.limits import (
    MAX_CLIENTS,
    MAX_INTEGER,
    MAX_LOCAL_STEPS,
    MAX_ROUNDS,
    check_values,
)
from fedpbc.options import Help, options_of, unknown_option, worded
from fedpbc.storage.files import open_regular_file
from fedpbc.storage.toml import parsed_toml
from fedpbc.study import registries
from fedpbc.synonyms import key_of

__all__ = [
    "COMPARED",
    "SECTIONS",
    "CommandOption",
    "Execution",
    "Settings",
    "Spec",
    "Train",
    "command_options",
    "dotted",
    "load_plugins",
    "patched",
    "read_values",
    "run_id",
    "short_names",
    "tables",
    "validated",
]

Seed = Annotated[int, Ge(0), Le(MAX_INTEGER)]
COMPARED = ("algorithms", "seeds", "sweep", "ceiling")
"""Keys of a configuration that say what is compared."""


def _chosen(registry: Registry) -> BeforeValidator:
    return BeforeValidator(lambda value: None if value is None else registry.parse(value))


def _list(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _trackers(value: Any) -> Any:
    if not value:
        return ()
    from fedpbc.experiments.tracking import checked_names

    return tuple(checked_names(list(value) if isinstance(value, tuple) else value))


Names = Annotated[tuple[str, ...], BeforeValidator(_list)]


class Settings(BaseModel):
    """Settings that are written as a table; a wrong value is an InputError of one line."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
    )

    def dump(self) -> dict[str, Any]:
        """Plain values, as in TOML; what is None is left out."""
        values: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Choice):
                values[name] = value.table()
            elif isinstance(value, Settings):
                values[name] = value.dump()
            elif value is not None:
                values[name] = list(value) if isinstance(value, tuple) else value
        return values


class Train(Settings):
    """The clients' local steps, and η_g.

    Example:
        >>> str(validated(Train, {"optimizer": "sgd:momentum=0.9"}).optimizer)
        'sgd:momentum=0.9'
    """

    local_steps: Annotated[int, Ge(1), Le(MAX_LOCAL_STEPS), Help("Local steps s per round")] = 5
    batch_size: Annotated[Annotated[int, Ge(1)] | None, Help("Samples per step")] = 16
    learning_rate: Annotated[float, Gt(0), Help("Local step size η_0")] = 0.05
    global_learning_rate: Annotated[float, Gt(0), Help("Server step size η_g")] = 1.0
    proximal: Annotated[float, Ge(0)] = 0.0
    optimizer: Annotated[
        Choice,
        _chosen(registries.optimizers),
        Help("Local optimizer, such as sgd:momentum=0.9, adam, or one of torch.optim", "sgd"),
    ] = registries.optimizers.parse("sgd")
    schedule: Annotated[
        Choice,
        _chosen(registries.schedules),
        Help("How η_t falls: constant, cosine:rounds=200, …", "inverse_sqrt"),
    ] = registries.schedules.parse("inverse_sqrt")


class Spec(Settings):
    """Everything that changes the result of a run.

    Attributes:
        clients: m; None: as many as the data brings.
        evaluate_every_at_end: rounds between evaluations in the last 100 rounds (at most the last
            fifth), over which results are averaged; None: ``evaluate_every``.
        views: which models are evaluated; by default all that the algorithm has.
        plugins: Python files with algorithms, link schemes, data sets and models, imported first.
        data, model: None where the task is not ``classification``.

    Example:
        >>> spec = Spec.of({"algorithm": "fedau:cutoff=5", "data": "digits", "rounds": 60})
        >>> spec.algorithm["over"], spec.train.learning_rate, str(spec.links)
        ('all', 0.05, 'bernoulli_varying')
        >>> table = {"algorithm": {"name": "fedau", "cutoff": 5}, "data": {"name": "digits"}}
        >>> Spec.of({**table, "rounds": 60}).id == spec.id
        True
    """

    rounds: Annotated[int, Ge(1), Le(MAX_ROUNDS), Help("Number of rounds T")] = 500
    seed: Annotated[Seed, Help("Seed of everything random")] = 0
    clients: Annotated[
        Annotated[int, Ge(1), Le(MAX_CLIENTS)] | None,
        Help("Number of clients m", f"{defaults.CLIENTS}, or those of the data"),
    ] = None
    evaluate_every: Annotated[int, Ge(1), Le(MAX_INTEGER), Help("Rounds between evaluations")] = (
        defaults.EVALUATE_EVERY
    )
    evaluate_every_at_end: Annotated[int, Ge(1), Le(MAX_INTEGER)] | None = None
    views: Annotated[Names, Help("Models to evaluate, such as server,averaged", "all")]
    plugins: Names = ()
    algorithm: Annotated[
        Choice, _chosen(registries.algorithms), Help("Algorithm; see 'fedpbc list'", "fedpbc")
    ]
    aggregation: Annotated[
        Choice,
        _chosen(registries.aggregations),
        Help("How uploads are combined: mean, trimmed_mean or median", "mean"),
    ]
    task: Annotated[Choice, _chosen(registries.tasks)]
    data: Annotated[
        Choice | None, _chosen(registries.data_sets), Help("Data set; see 'fedpbc list'", "fashion")
    ] = None
    model: Annotated[
        Choice | None,
        _chosen(registries.models),
        Help("Network; see 'fedpbc list'", "the data set's, or mlp"),
    ] = None
    train: Train
    links: Annotated[
        Choice,
        _chosen(registries.uplinks),
        Help("Link scheme of the uplinks; see 'fedpbc list'", "bernoulli_varying"),
    ]
    downlink: Annotated[
        Choice, _chosen(registries.downlinks), Help("Link scheme of the downlinks", "always")
    ]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The complete spec of a configuration's values; raises InputError for a wrong one."""
        return validated(cls, values)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Fill in what depends on other settings."""
        return _completed(values)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        from fedpbc.aggregation import Aggregation

        aggregation = Aggregation(**self.aggregation.table())
        if not aggregation.is_mean or aggregation.clip:
            from fedpbc.algorithms import check_aggregation, find_algorithm

            kind = find_algorithm(self.algorithm.name)
            check_aggregation(kind, self.algorithm.options, aggregation)
        return self

    @property
    def choices(self) -> Iterator[tuple[str, Choice]]:
        """What was chosen in each section that is one."""
        for name in type(self).model_fields:
            if isinstance(value := getattr(self, name), Choice):
                yield name, value

    def files(self) -> dict[str, str]:
        """The checksum of each file that it names, by path; empty for what does not count."""
        files = {path: content_of(path) for path in self.plugins}
        for _, choice in self.choices:
            for option, kind in choice.kept.items():
                path = choice[option]
                files[path] = "" if kind == "folder" else content_of(path)
        return files

    def inputs(self) -> dict[str, str]:
        """The files that are copied into a run's folder: each path, and its name there."""
        paths = {
            choice[option]: f"{section}-{option}"
            for section, choice in self.choices
            for option, kind in choice.kept.items()
            if kind == "input"
        }
        return {
            path: f"inputs/{name}-{content_of(path)[:12]}{Path(path).suffix}"
            for path, name in paths.items()
        }

    @property
    def id(self) -> str:
        """Which run it is: the same for all ways of writing it, on any machine."""
        return run_id(self.dump(), self.files())


class Execution(Settings):
    """How a run is executed and read: it may change when the run goes on.

    Attributes:
        engine: where segments run.
        reported: where each client's last report is kept.
        checkpoint_every: rounds between checkpoints; 0: about every half minute.
        deploy_view: the view that a server is to deploy, chosen beforehand; None: comparisons take
            the best by the values that they show.
    """

    engine: Annotated[
        Choice,
        _chosen(registries.engines),
        Help("auto, serial, stacked, pool:workers=4 or ray:address=…", "auto"),
    ] = registries.engines.parse("auto")
    device: Annotated[str, Help("Where to train: cpu, cuda, cuda:1, …")] = "cpu"
    reported: Annotated[str, Help("Where last reports are kept: memory or disk")] = "memory"
    checkpoint_every: Annotated[int, Ge(0), Le(MAX_INTEGER)] = 0
    track: Annotated[
        tuple[str, ...],
        BeforeValidator(_trackers),
        Help("Trackers, separated by commas: tensorboard, mlflow, wandb", "none"),
    ] = ()
    deploy_view: Annotated[
        str | None,
        Help("The view to deploy, by which comparisons rank", "the best by the values shown"),
    ] = None

    @classmethod
    def of(cls, values: Mapping[str, Any], spec: Spec) -> Self:
        """The execution of this spec; settings that are the spec's are not looked at."""
        from fedpbc.simulation.views import STORED_VIEWS, check_deploy_view

        made = validated(cls, {k: v for k, v in values.items() if k in cls.model_fields})
        check_deploy_view(spec.algorithm.name, made.deploy_view, spec.views)
        if made.reported not in ("memory", "disk"):
            raise InputError("reported", made.reported, "'memory' or 'disk'")
        if made.reported == "disk" and STORED_VIEWS.isdisjoint(spec.views):
            raise InputError(
                f"reported is 'disk', but {spec.algorithm.name} keeps no last reports with these "
                "views: leave it out"
            )
        return made


# -------------------------------------------------------------------------- errors, in one place


Kind = TypeVar("Kind", bound=Settings)


def validated(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """Settings of these values; whatever is wrong with them is an InputError of one line.

    Example:
        >>> validated(Train, {"learning_rate": -1.0})
        Traceback (most recent call last):
        fedpbc.errors.InputError: train.learning_rate is -1.0, but should be above 0
    """
    if not isinstance(values, Mapping):
        raise InputError("the configuration", values, "a table of settings")
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise _one_line(kind, error) from None


def _one_line(kind: type[Settings], error: ValidationError) -> InputError:
    """pydantic's first finding as an error of ours."""
    first = error.errors(include_url=False)[0]
    own = first.get("ctx", {}).get("error")
    if isinstance(own, InputError):
        return own
    is_unknown = first["type"] == "extra_forbidden"
    # Of a list, or of several types, there are further parts.
    path = [str(part) for part in first["loc"] if is_unknown or part in _FIELDS]
    if kind is Train:
        path.insert(0, "train")
    key, holder = ".".join(path), Train if path[0] == "train" and len(path) > 1 else kind
    if is_unknown:
        name = (key_of(path[-1]) or path[-1]).rpartition(".")[2]
        if (meant := short_names().get(name, "")).count(".") == 2:
            return InputError(f"{key} is unknown: use {meant}")
        known = (
            [*Spec.model_fields, *Execution.model_fields] if holder is Spec else holder.model_fields
        )
        return unknown_option(path[-1], known, ".".join(path[:-1]))
    if first["type"] == "missing":
        return InputError(f"{key} is missing: it has no default")
    return InputError(key, first["input"], worded([first]))


# ---------------------------------------------------------- nested values before they are checked

REGISTRIES: dict[str, Registry] = {
    "algorithm": registries.algorithms,
    "aggregation": registries.aggregations,
    "task": registries.tasks,
    "data": registries.data_sets,
    "model": registries.models,
    "links": registries.uplinks,
    "downlink": registries.downlinks,
    "engine": registries.engines,
}
SECTIONS = (*REGISTRIES, "train")
_FIELDS = {*Spec.model_fields, *Train.model_fields, *Execution.model_fields}
IMPLIED = {"targets": "quadratic", "app": "app"}
"""The task that an option of it implies."""


def tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values with every section as a table, so that they can be patched.

    Example:
        >>> tables({"links": "markov:p=0.3", "train": {"optimizer": "adam"}})
        {'links': {'name': 'markov', 'p': 0.3}, 'train': {'optimizer': {'name': 'adam'}}}
    """
    if not isinstance(values, Mapping):
        raise InputError("the configuration", values, "a table of settings")
    made: dict[str, Any] = {}
    for key, value in values.items():
        if key in REGISTRIES and isinstance(value, str | Mapping | Choice):
            made[key] = REGISTRIES[key].table(value)
        elif key == "train" and isinstance(value, Mapping):
            made[key] = {
                k: TRAIN[k].table(v) if k in TRAIN and isinstance(v, str | Mapping) else v
                for k, v in value.items()
            }
        else:
            made[key] = value
    if isinstance(task := made.get("task"), dict) and "name" not in task:
        implied = next((name for option, name in IMPLIED.items() if option in task), None)
        made["task"] = {**({} if implied is None else {"name": implied}), **task}
    return made


def read_values(file: Path, *, follow_links: bool = True) -> dict[str, Any]:
    """The values in a TOML file; files that they name are looked up beside it, then here."""
    values = parsed_toml(file, follow_links=follow_links)
    return tables(texts_of(values, file.absolute().parent))


TRAIN = {"optimizer": registries.optimizers, "schedule": registries.schedules}


def patched(values: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with those of a patch: one that names something else replaces what was there.

    Example:
        >>> patched({"links": {"name": "markov", "p": 0.5}}, {"links": {"p": 0.3}})
        {'links': {'name': 'markov', 'p': 0.3}}
        >>> patched({"links": {"name": "markov", "p": 0.5}}, {"links": {"name": "always"}})
        {'links': {'name': 'always'}}
    """
    result = dict(values)
    for key, value in patch.items():
        old = result.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            names = {table["name"] for table in (old, value) if "name" in table}
            result[key] = patched(old, value) if len(names) < 2 else dict(value)
        else:
            result[key] = value
    return result


def dotted(key: str, value: Any) -> dict[str, Any]:
    """The patch that a dotted key and its value stand for.

    Example:
        >>> dotted("train.learning_rate", 0.1)
        {'train': {'learning_rate': 0.1}}
    """
    for part in reversed(key.split(".")):
        value = {part: value}
    result: dict[str, Any] = value
    return result


@lru_cache(maxsize=1)
def short_names() -> Mapping[str, str]:
    """The dotted key of each setting that can be named by its last part alone.

    Example:
        >>> short_names()["learning_rate"], short_names()["alpha"], "p" in short_names()
        ('train.learning_rate', 'data.alpha', False)
    """
    keys = {f"train.{name}" for name in Train.model_fields}
    for section, registry in TRAIN.items():
        for each in registry.names():
            keys |= {f"train.{section}.{name}" for name in registry.options(registry.find(each))}
    for section, functions in registries.SHARED.items():
        keys |= {f"{section}.{name}" for each in functions for name in options_of(each)}
    short: dict[str, str] = {}
    for key in sorted(keys):
        last = key.rpartition(".")[2]
        short[last] = "" if last in short or last in _TOP else key
    return {last: key for last, key in short.items() if key}


_TOP = {*Spec.model_fields, *Execution.model_fields}


@dataclass(frozen=True)
class CommandOption:
    """A setting as an option of the command line.

    Attributes:
        name: of the option.
        key: of the setting, such as ``train.learning_rate``.
        type: int, float, str, or list for values separated by commas.
        help: one line, with the default.
    """

    name: str
    key: str
    type: type
    help: str


def command_options() -> Iterator[CommandOption]:
    """The settings that are options of the command line: those with a help text.

    Example:
        >>> options = {option.name: option for option in command_options()}
        >>> options["learning_rate"].key, options["data_dir"].key, options["engine"].type.__name__
        ('train.learning_rate', 'data.dir', 'str')
        >>> options["rounds"].help
        'Number of rounds T (default: 500).'
    """
    for prefix, model in (("", Spec), ("train.", Train), ("", Execution)):
        for name, field in model.model_fields.items():
            default = None if field.is_required() or name == "train" else field.default
            for mark in field.metadata:
                if isinstance(mark, Help):
                    yield _command_option(name, prefix + name, field.annotation, mark, default)
    for section, functions in registries.SHARED.items():
        for option in (each for function in functions for each in options_of(function).values()):
            default = None if option.required else option.default
            for mark in get_args(option.annotation):
                if isinstance(mark, Help):
                    key = f"{section}.{option.name}"
                    yield _command_option(option.name, key, option.annotation, mark, default)


def _command_option(
    name: str, key: str, annotation: Any, mark: Help, default: Any
) -> CommandOption:
    shown = mark.default or (default if isinstance(default, int | float | str) else None)
    text = mark.text + (f" (default: {shown})." if shown is not None else ".")
    return CommandOption(mark.flag or name, key, _plain_type(annotation), text)


def _plain_type(annotation: Any) -> type:
    """The type that a value on the command line is converted to."""
    if annotation in (int, float, str):
        return cast("type", annotation)
    if get_origin(annotation) is tuple:
        return list
    parts = [part for part in get_args(annotation) if part is not type(None)]
    return _plain_type(parts[0]) if parts else str


# ------------------------------------------------------------------------------ completing a spec


def _completed(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a spec, with what depends on other settings."""
    check_values(given)
    values = tables({key: plain(value) for key, value in given.items() if value is not None})
    for key in COMPARED:
        if key in values:
            raise InputError(f"{key} is for 'fedpbc compare': leave it out")
    for key in Execution.model_fields:
        values.pop(key, None)
    for key in SECTIONS:
        if key not in ("data", "model", "engine"):
            values.setdefault(key, {})
    for key, registry in REGISTRIES.items():
        if key in values:
            values[key] = registry.table(values[key])
    values["plugins"] = load_plugins(values.get("plugins"))
    train = values["train"]
    if not isinstance(train, Mapping):
        raise InputError("train", train, "a table [train]")
    task = registries.tasks.parse(values["task"])
    if task.name == "classification":
        values.setdefault("data", {})
        values.setdefault("model", {})
        values = _with_data(values)
    else:
        for section in ("data", "model"):
            if section in values:
                shown = values[section]
                shown = shown.get("name", shown) if isinstance(shown, Mapping) else shown
                raise InputError(
                    f"{section} is {shown!r}, but a task of the kind '{task.name}' does not use "
                    "it: leave it out"
                )
    if task.name == "quadratic":
        values = _with_targets(values, task["targets"])
    if task.name == "app" and values.get("clients") is None:
        raise InputError(
            "clients is missing: say for how many clients the app has data, as in --clients 20"
        )
    for option in TRAIN if task.name != "python" else ():
        name: Any = values["train"].get(option, {})
        name = name.get("name") if isinstance(name, Mapping) else name
        if isinstance(name, str) and name.startswith(registries.PYTHON):
            raise InputError(f"train.{option}", name, "a name: functions are for Python")
    every = values.get("evaluate_every", defaults.EVALUATE_EVERY)
    if values.get("evaluate_every_at_end") == every:
        del values["evaluate_every_at_end"]
    return {**values, "task": task, "views": _views(values)}


def load_plugins(given: Any) -> list[str]:
    """Import the plugins, each content once; returns their paths."""
    from fedpbc.experiments.plugins import load_plugin

    if given is not None and not (
        isinstance(given, list) and all(isinstance(p, str) for p in given)
    ):
        raise InputError("plugins", given, "a list of Python files")
    paths = [located(plugin, "plugins") for plugin in given or ()]
    for path, plugin in zip(paths, given or (), strict=True):
        if not Path(path).is_file():
            raise InputError("plugins", str(plugin), "a Python file that exists")
        if content_of(path) not in _imported:
            load_plugin(path)
            _imported.add(content_of(path))
    return paths


_imported: set[str] = set()
"""Checksums of the plugins of this process."""


def _views(values: Mapping[str, Any]) -> list[str]:
    from fedpbc.algorithms import find_algorithm
    from fedpbc.simulation.views import views_of

    algorithm = registries.algorithms.parse(values["algorithm"])
    return list(views_of(find_algorithm(algorithm.name), values.get("views")))


def _with_data(values: dict[str, Any]) -> dict[str, Any]:
    """The settings that suit a data set, where others are not given."""
    from fedpbc.data import find_source

    table = values["data"]
    source = find_source(table.get("name", registries.data_sets.default))
    known = {"", "train", "data", "model", "links", "downlink", "aggregation", "task"}
    for section in source.settings:
        if section not in known:
            names = ", ".join(filter(None, known))
            raise InputError(f"a section in the settings of {source.name}", section, names)
    settings = {key: table for key, table in source.settings.items() if key}
    suited = patched(tables({**source.settings.get("", {}), **settings}), values)
    suited["model"].setdefault("name", source.model_for(table))
    if suited.get("clients") is None and source.is_ours and not source.has_clients(table):
        suited["clients"] = defaults.CLIENTS
    return suited


def _with_targets(values: dict[str, Any], file: str) -> dict[str, Any]:
    """As many clients as there are targets, and no batches."""
    from fedpbc.storage.arrays import read_array

    batch_size = Train.model_fields["batch_size"].default
    if values["train"].get("batch_size", batch_size) not in (None, batch_size):
        raise InputError(
            f"train.batch_size is {values['train']['batch_size']!r}, but a quadratic task has no "
            "samples: leave it out"
        )
    clients = len(read_array(file, "task.targets"))
    if values.get("clients") not in (None, clients):
        expected = f"left out, or {clients} as there are targets"
        raise InputError("clients", values["clients"], expected)
    return {**values, "clients": clients, "train": {**values["train"], "batch_size": None}}


# -------------------------------------------------------------------------------------- identity


def run_id(values: Mapping[str, Any], files: Mapping[str, str]) -> str:
    """The id of a run from its written values; ``files`` are the checksums of what they name.

    What is read of a file counts, not where it is. Nothing is imported, and no file is opened.

    Example:
        >>> one = run_id({"links": {"name": "table", "file": "a.csv"}}, {"a.csv": "0f3a"})
        >>> one == run_id({"links": {"name": "table", "file": "b.csv"}}, {"b.csv": "0f3a"})
        True
    """
    kept = {key: value for key, value in values.items() if key not in Execution.model_fields}
    text = json.dumps(_by_content(kept, files), sort_keys=True, default=_refused)
    return sha256(text.encode()).hexdigest()[:16]


def _refused(value: Any) -> Any:
    raise InputError(
        f"an option is a {type(value).__name__}: only numbers, texts, lists and tables can be kept "
        "with a run"
    )


def _by_content(value: Any, files: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        inner = {key: _by_content(each, files) for key, each in value.items()}
        return {key: each for key, each in inner.items() if each != ""}
    if isinstance(value, list):
        return [_by_content(each, files) for each in value]
    return files.get(value, value) if isinstance(value, str) else value


def content_of(path: str | Path) -> str:
    """The SHA-256 of a file's content."""
    try:
        status = os.stat(path)  # noqa: PTH116
        return _content_of(str(path), status.st_size, status.st_mtime_ns, status.st_ino)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


@lru_cache(maxsize=256)
def _content_of(path: str, size: int, changed: int, number: int) -> str:
    """Read once while the file does not change: every run of a study names it."""
    checksum = sha256()
    with open_regular_file(Path(path)) as file:
        while block := file.read(1 << 20):
            checksum.update(block)
    return checksum.hexdigest()
