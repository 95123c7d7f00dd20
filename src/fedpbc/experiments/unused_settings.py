"""Settings that were given, but that the experiment would not read: each is an error.

Whether a setting was given is never judged by its value: one that equals the default is given, too.
What a run writes down therefore leaves out what it does not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fedpbc.aggregation import Aggregation
from fedpbc.errors import InputError
from fedpbc.experiments.settings import General, TaskSection, TrainSection
from fedpbc.links import Timetable
from fedpbc.links.probabilities import ProbabilityOptions
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
NEED = {"mean_away": "away", "late_rounds": "late"}
"""Options of the scheme 'group' that say more about another one, which is 0 by default."""


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
    if section in ("links", "downlink"):
        return _why_link_option_is_unused(config, section, name)
    if (section, name) == ("task", "validation") and kind == "python":
        return "a task made in Python has its own samples: give it validation=…"
    if (section, name) in {("train", "batch_size"), ("task", "validation")} and kind == "quadratic":
        return "a quadratic task has no samples: leave it out"
    own_task = {("task", "running_statistics"), ("task", "loss")}
    if (section, name) in own_task and kind in ("quadratic", "python"):
        remedy = f"give it {name}=…" if kind == "python" else "leave it out"
        return f"a task of the kind '{kind}' does not use it: {remedy}"
    # In memory, nothing is kept as well.
    if (section, name, value) == ("", "reported", "disk") and STORED_VIEWS.isdisjoint(
        config.general.views or ()
    ):
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


def _why_link_option_is_unused(config: CheckedConfig, section: str, name: str) -> str | None:
    table = config.links if section == "links" else config.downlink
    if table["name"] == "group" and name in NEED and not table[NEED[name]]:
        return f"{section}.{NEED[name]} is 0: leave it out, or set {section}.{NEED[name]}, too"
    if name not in PROBABILITIES:
        return None
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
        if (value := table.get(name)) is not None:
            reason = _not_of_the_scheme(section, table["name"])
            raise InputError(f"{section}.{name} is {value!r}, but {reason}")
