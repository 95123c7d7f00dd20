"""Settings that were given, but that the experiment would not read: each is an error.

What a run writes down is complete, so a value that equals the default is not counted as given,
except in a section that such a file leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fedpbc.aggregation import Aggregation
from fedpbc.errors import InputError
from fedpbc.experiments.settings import SECTIONS, General, TaskSection, TrainSection
from fedpbc.links import Timetable
from fedpbc.links.probabilities import ProbabilityOptions
from fedpbc.options import options_of
from fedpbc.simulation.views import STORED_VIEWS

__all__ = ["check_probabilities_are_read", "unused_settings"]


class CheckedConfig(Protocol):
    """What is needed of a configuration."""

    @property
    def general(self) -> General: ...
    @property
    def algorithm(self) -> Mapping[str, Any]: ...
    @property
    def aggregation(self) -> Aggregation: ...
    @property
    def task(self) -> TaskSection: ...
    @property
    def train(self) -> TrainSection: ...
    @property
    def links(self) -> Mapping[str, Any]: ...
    @property
    def downlink(self) -> Mapping[str, Any]: ...
    @property
    def objects(self) -> Mapping[str, Any]: ...
    @property
    def lenient(self) -> bool: ...


PROBABILITIES = tuple(ProbabilityOptions.__dataclass_fields__)
HORIZONS = ("inverse", "exponential", "step", "linear", "cosine")
"""The schedules that have a horizon."""


def unused_settings(
    given: Mapping[str, Mapping[str, Any]], config: CheckedConfig
) -> dict[str, str]:
    """Why each setting without effect has none, by its key.

    ``given`` are the settings that were given, by section; those outside of sections are in "".
    """
    reasons = {}
    for section, settings in given.items():
        for name, value in settings.items():
            if hasattr(value, "tolist"):  # An array has no single truth value.
                value = value.tolist()
            reason = _reason(config, section, name, value)
            if value is not None and reason:
                key = f"{section}.{name}" if section else name
                reasons[key] = f"{key} is {value!r}, but {reason}"
    return reasons


def _reason(config: CheckedConfig, section: str, name: str, value: Any) -> str | None:
    kind, algorithm = config.task.name, config.algorithm["name"]
    if section in ("data", "model") and kind != "classification":
        return f"a task of the kind '{kind}' does not use it: leave it out"
    if kind == "python" and (reason := _why_the_task_outranks(config, section, name, value)):
        return reason
    if value == _default(section, name):
        return None
    if section in ("links", "downlink") and name in PROBABILITIES:
        return _why_probability_is_unused(config, section, name)
    if (section, name) == ("aggregation", "trim") and config.aggregation.name != "trimmed_mean":
        return (
            f"the aggregation '{config.aggregation.name}' does not use it: choose another with "
            "--aggregation trimmed_mean"
        )
    if (section, name) == ("train", "momentum") and config.train.optimizer != "momentum":
        return (
            f"the optimizer '{config.train.optimizer}' does not use it: choose another with "
            "--set train.optimizer=momentum"
        )
    if (section, name) == ("train", "schedule_rounds") and config.train.schedule not in HORIZONS:
        return (
            f"the schedule '{config.train.schedule}' does not use it: choose another with "
            "--set train.schedule=cosine"
        )
    if (section, name) == ("train", "decay") and config.train.schedule is not None:
        return f"the schedule '{config.train.schedule}' replaces it: leave it out"
    if (section, name) == ("task", "validation") and kind == "python":
        return "a task made in Python has its own samples: give it validation=…"
    if (section, name) in {("train", "batch_size"), ("task", "validation")} and kind == "quadratic":
        return "a quadratic task has no samples: leave it out"
    own_task = {("task", "running_statistics"), ("task", "loss")}
    if (section, name) in own_task and kind in ("quadratic", "python"):
        remedy = f"give it {name}=…" if kind == "python" else "leave it out"
        return f"a task of the kind '{kind}' does not use it: {remedy}"
    if (section, name) == ("", "reported") and STORED_VIEWS.isdisjoint(config.general.views or ()):
        return f"{algorithm} keeps no last reports with these views: leave it out"
    return None


def _why_the_task_outranks(
    config: CheckedConfig, section: str, name: str, value: Any
) -> str | None:
    if section == "train" and name != "global_learning_rate":
        task_value = getattr(config.train, name, value)
    elif (section, name) in {("", "clients"), ("", "device")}:
        task_value = config.general.clients if name == "clients" else General.device
    else:
        return None
    return None if value == task_value else f"the task has its own, {task_value!r}: leave it out"


def _why_probability_is_unused(config: CheckedConfig, section: str, name: str) -> str | None:
    table = config.links if section == "links" else config.downlink
    if section == "downlink" and table["name"] == "always":
        return _not_of_the_scheme(section, table["name"])
    if name != "p" and table.get("p") is not None:
        return f"it is only for drawing {section}.p, which is given: leave one of them out"
    return None


def _not_of_the_scheme(section: str, scheme: str) -> str:
    return f"{section} '{scheme}' does not use it: choose a scheme with --{section} bernoulli"


def check_probabilities_are_read(config: CheckedConfig, section: str, timetable: Timetable) -> None:
    """Raise InputError if probabilities were given to a scheme that did not ask for them."""
    table = config.links if section == "links" else config.downlink
    if config.lenient or section in config.objects or timetable.base_probabilities is not None:
        return
    for name in PROBABILITIES:
        value = table.get(name)
        if value != getattr(ProbabilityOptions, name):
            reason = _not_of_the_scheme(section, table["name"])
            raise InputError(f"{section}.{name} is {value!r}, but {reason}")


def _default(section: str, name: str) -> Any:
    if section in ("links", "downlink") and name in PROBABILITIES:
        return getattr(ProbabilityOptions, name)
    settings = options_of(SECTIONS[section] if section else General)
    return settings[name].default if name in settings else None
