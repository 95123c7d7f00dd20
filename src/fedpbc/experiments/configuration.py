"""The configuration of a run: the one way to an experiment, from TOML, options or Python.

Values are checked against :mod:`fedpbc.experiments.settings` and completed with defaults. A section
may be given by its name alone: ``links = "bernoulli"`` is short for a table ``[links]`` with
``name = "bernoulli"``. From Python, a section may also be an object: a task, an algorithm's class,
a timetable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedpbc.algorithms import (
    ALGORITHMS,
    Aggregation,
    Algorithm,
    check_aggregation,
    find_algorithm,
)
from fedpbc.errors import InputError
from fedpbc.experiments.data_sections import (
    add_data_defaults,
    checked_data,
    checked_model,
    data_table,
)
from fedpbc.experiments.plugins import load_plugins
from fedpbc.experiments.settings import (
    EXECUTION,
    FILES,
    PLACES,
    SECTIONS,
    AlgorithmSection,
    DataSection,
    DownlinkSection,
    General,
    LinksSection,
    ModelSection,
    TaskSection,
    TrainSection,
    without_later,
)
from fedpbc.experiments.tracking import checked_names
from fedpbc.experiments.unused_settings import unused_settings
from fedpbc.limits import MAX_INTEGER, check_encodable, check_values
from fedpbc.links import Timetable, find_scheme
from fedpbc.links.probabilities import ProbabilityOptions
from fedpbc.links.trace import round_length
from fedpbc.options import check_kind, checked, checked_given, options_of, unknown_option
from fedpbc.simulation.build import take_probability_options
from fedpbc.simulation.views import check_deploy_view, views_of
from fedpbc.storage.files import expanded, read_regular_file
from fedpbc.tasks.local_training import PYTHON

__all__ = ["Config", "has_own_task", "identity", "is_python_task"]


@dataclass(frozen=True)
class Config:
    """A complete, checked configuration.

    Attributes:
        objects: sections that were given as Python objects, by name.
        given: the keys of what was given; all else are defaults.
        unused: why some of the settings that were given have no effect, by key.
        lenient: whether such settings are allowed.
        data_options, model_options: the options of the data set and of the network.

    Example:
        >>> config = Config.from_dict({"algorithm": "fedau", "rounds": 60})
        >>> config.algorithm
        {'name': 'fedau', 'cutoff': 50, 'over': 'all'}
        >>> config.train.learning_rate
        0.05
    """

    general: General
    algorithm: dict[str, Any]
    aggregation: Aggregation
    task: TaskSection
    data: DataSection
    model: ModelSection
    train: TrainSection
    links: dict[str, Any]
    downlink: dict[str, Any]
    objects: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    given: Collection[str] = field(default=(), repr=False, compare=False)
    unused: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    lenient: bool = field(default=False, repr=False, compare=False)
    data_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, lenient: bool = False) -> Config:
        """Check all values and fill in the defaults.

        A setting without effect is an error, unless ``lenient``: what was begun by an earlier
        version can be continued.
        """
        if not isinstance(values, Mapping):
            raise InputError("the configuration", values, "a table of settings")
        check_values(values)
        check_kind("lenient", lenient, bool, "True or False")
        top, sections, objects = split_sections(values)
        given = {"": top, **{name: dict(table) for name, table in sections.items()}}
        load_plugins(top)
        if "targets" in sections["task"]:
            sections["task"].setdefault("name", "quadratic")
        if "app" in sections["task"]:
            sections["task"].setdefault("name", "app")
        if _has_data_set(sections):
            add_data_defaults(top, sections)
        general = General(**checked(General, top))
        general = replace(general, track=checked_names(general.track) or None)
        if "task" in objects:
            general = replace(general, clients=objects["task"].clients)
            sections["train"] |= objects["task"].training.described()

        options = dict(sections["algorithm"])
        name = _name(options, "algorithm", AlgorithmSection.name)
        data, data_options = checked_data(sections["data"])
        model, model_options = checked_model(sections["model"])
        kind: type[Algorithm] = objects.get("algorithm") or find_algorithm(name)
        config = cls(
            general=replace(general, views=list(views_of(kind, general.views))),
            algorithm={"name": kind.name, **checked(kind.__init__, options, "algorithm")},
            aggregation=Aggregation(**checked(Aggregation, sections["aggregation"], "aggregation")),
            task=TaskSection(**checked(TaskSection, sections["task"], "task")),
            data=data,
            model=model,
            train=TrainSection(**checked(TrainSection, sections["train"], "train")),
            links=checked_links(sections, objects, "links", LinksSection.name),
            downlink=checked_links(sections, objects, "downlink", DownlinkSection.name),
            objects=objects,
            lenient=lenient,
            data_options=data_options,
            model_options=model_options,
        )
        keys = {f"{section}.{name}".lstrip(".") for section in given for name in given[section]}
        config = replace(config, given=keys, unused=unused_settings(given, config))
        config._check_task()
        check_deploy_view(kind.name, general.deploy_view, config.general.views or ())
        algorithm_options = {key: value for key, value in config.algorithm.items() if key != "name"}
        check_aggregation(kind, algorithm_options, config.aggregation)
        for reason in () if lenient else config.unused.values():
            raise InputError(reason)
        return config

    def _check_task(self) -> None:
        kind, targets = self.task.name, self.task.targets
        if kind == "quadratic" and targets is None:
            raise InputError("task.targets is missing: name a .npy file of clients × dimensions")
        if kind != "quadratic" and targets is not None:
            raise InputError("task.targets", targets, "left out: it is for 'quadratic'")
        if kind == "app" and self.task.app is None:
            raise InputError("task.app is missing: name a Python file, such as --app app.py")
        if kind != "app" and self.task.app is not None:
            raise InputError("task.app", self.task.app, "left out: it is for 'app'")
        if kind == "app" and self.general.clients is None:
            for reason in self.unused.values():
                raise InputError(reason)  # A contradiction: what is missing may be for another task
            raise InputError(
                "clients is missing: say for how many clients the app has data, as in --clients 20"
            )
        for name in ("optimizer", "schedule"):
            value = getattr(self.train, name)
            if kind != "python" and isinstance(value, str) and value.startswith(PYTHON):
                raise InputError(f"train.{name}", value, "a name: functions are for Python")
        if kind == "python" and "task" not in self.objects:
            raise InputError(
                "task.name", kind, "'classification', 'quadratic' or 'app' outside of Python"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in a TOML file; what is None or has no effect is left out."""
        nested: dict[str, Any] = asdict(self.general)
        nested["algorithm"] = self.algorithm
        if self.aggregation != Aggregation():
            # Left out by default: an earlier version did not write it.
            nested["aggregation"] = asdict(self.aggregation)
        nested["task"] = without_later("task", asdict(self.task))
        if self.task.name == "classification":
            nested["data"] = data_table(self.data, self.data_options)
            nested["model"] = {**asdict(self.model), **self.model_options}
        nested["train"] = without_later("train", asdict(self.train))
        nested |= {"links": dict(self.links), "downlink": dict(self.downlink)}
        for key in unused_settings({"": {}, **_sections_of(nested)}, self):
            section, _, name = key.partition(".")
            del nested[section][name]
        return _without_none(nested)

    @property
    def code(self) -> list[str]:
        """The Python files that the configuration names: plugins, and an app."""
        return [*(self.general.plugins or ()), *([self.task.app] if self.task.app else ())]

    def to_toml(self) -> str:
        """The whole configuration as TOML."""
        return tomli_w.dumps(self.to_dict())

    def self_contained(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """The values with files as ``inputs/NAME``, and the content of these files by name."""
        nested, inputs = self.to_dict(), {}

        def copy(name: str, file: Path) -> str:
            try:
                inputs[name] = read_regular_file(file, limit=MAX_INTEGER - 1)
            except OSError as error:
                raise InputError(f"{file} cannot be read: {error.strerror}") from None
            return f"inputs/{name}"

        for section, option in FILES:
            value = nested.get(section, {}).get(option)
            if isinstance(value, str):
                file = expanded(value, f"{section}.{option}")
                nested[section][option] = copy(f"{section}-{option}{file.suffix}", file)
        if self.general.plugins:
            nested["plugins"] = [
                copy(f"plugin-{k}.py", Path(file)) for k, file in enumerate(self.general.plugins)
            ]
        for section, option in PLACES:
            if folder := nested.get(section, {}).get(option):
                nested[section][option] = str(expanded(folder, f"{section}.{option}").resolve())
        check_encodable(nested)
        return nested, inputs


def identity(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that identify a run: without where files are and how it is executed."""
    identifying = {key: value for key, value in values.items() if key not in EXECUTION}
    for section, option in (*FILES, *PLACES):
        table = identifying.get(section, {})
        if isinstance(table.get(option), str):
            identifying[section] = {k: v for k, v in table.items() if k != option}
    if isinstance(table := identifying.get("algorithm"), Mapping):
        identifying["algorithm"] = _without_later_options(table)
    return identifying


def _without_later_options(table: Mapping[str, Any]) -> dict[str, Any]:
    """An algorithm's options as an earlier version wrote them, if it could have."""
    kind = ALGORITHMS.get(str(table.get("name")))
    if kind is None or not kind.later_options:
        return dict(table)
    options = options_of(kind.__init__)
    defaults = {name: options[name].default for name in kind.later_options if name in options}
    return {
        name: value
        for name, value in table.items()
        if name not in defaults or value != defaults[name]
    }


def is_python_task(values: Mapping[str, Any]) -> bool:
    """Whether these are the values of a run whose task was built in Python."""
    task = values.get("task")
    return isinstance(task, Mapping) and task.get("name") == "python"


def has_own_task(values: Mapping[str, Any]) -> bool:
    """Whether these are the values of a run whose task is code of the user: the values do not say
    what it is."""
    task = values.get("task")
    return isinstance(task, Mapping) and task.get("name") in ("app", "python")


Sections = dict[str, dict[str, Any]]
OF_COMPARISONS = ("seeds", "sweep", "ceiling")
"""Keys of a configuration that, like ``algorithms``, say what is compared."""


def split_sections(values: Mapping[str, Any]) -> tuple[dict[str, Any], Sections, dict[str, Any]]:
    """The settings outside of sections, the sections as tables, and sections that are objects."""
    top = {key: value for key, value in values.items() if key not in SECTIONS}
    names = [*General.__dataclass_fields__, *SECTIONS]
    if "algorithms" in top:
        raise InputError(
            "algorithms is for comparisons: name a configuration of one algorithm, such as "
            "tuned-fedau.toml"
        )
    for key in top:
        if key in OF_COMPARISONS:
            raise InputError(f"{key} is for 'fedpbc compare': leave it out")
        if key not in names:
            raise unknown_option(key, names)
    sections: Sections = {}
    objects: dict[str, Any] = {}
    for name in SECTIONS:
        value = values.get(name, {})
        if isinstance(value, Mapping):
            sections[name] = dict(value)
        elif isinstance(value, str):
            sections[name] = {"name": value}
        else:
            sections[name], is_object = _described(name, value)
            if is_object:
                objects[name] = value
    return top, sections, objects


def _described(section: str, value: Any) -> tuple[dict[str, Any], bool]:
    """A Python object as a section shows it, and whether the object itself is needed."""
    if section == "task" and hasattr(value, "local_steps"):
        return {"name": "python"}, True
    if section == "algorithm" and isinstance(value, type) and issubclass(value, Algorithm):
        return {}, True
    if section in ("links", "downlink"):
        if isinstance(value, Timetable | np.ndarray):
            return {}, True
        # A callable object, such as a module, has no name to find it by.
        if callable(value) and isinstance(name := getattr(value, "__name__", None), str):
            return {"name": name}, False
        raise InputError(section, value, "a name, a table with a name, a function or a timetable")
    if section == "algorithm":
        raise InputError(section, value, "a name, a table with a name, or a class")
    raise InputError(section, value, f"a name, or a table [{section}]")


def checked_links(
    sections: Sections, objects: Mapping[str, Any], section: str, default: str
) -> dict[str, Any]:
    """A link scheme's name, where its probabilities come from, and its own options."""
    if section in objects:
        return {"name": "table"}
    options = dict(sections[section])
    scheme = find_scheme(_name(options, section, default), section)
    # Only those that were given: what the scheme does not read is not written down.
    taken = checked_given(ProbabilityOptions, take_probability_options(options), section)
    probabilities = {name: value for name, value in taken.items() if value is not None}
    known = ProbabilityOptions.__dataclass_fields__
    scheme_options = checked(scheme.rows, options, section, also=known)
    if scheme.name == "trace":
        # Written down: what a run was does not depend on what a log says later.
        scheme_options["round_seconds"] = round_length(scheme_options, section)
    return {"name": scheme.name, **probabilities, **scheme_options}


def _has_data_set(sections: Sections) -> bool:
    """Whether the task is one of a named data set."""
    return bool(sections["task"].get("name", TaskSection.name) == "classification")


def _name(options: dict[str, Any], section: str, default: str) -> str:
    name = options.pop("name", default)
    if not isinstance(name, str):
        raise InputError(f"{section}.name", name, "a name in quotes")
    return name


def _sections_of(nested: Mapping[str, Any]) -> Sections:
    return {name: table for name, table in nested.items() if name in SECTIONS}


def _without_none(nested: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in nested.items()
        if value is not None
    }
