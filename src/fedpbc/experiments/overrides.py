"""The values that a command line gives a configuration: a file, options and ``--set``."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpbc.errors import InputError
from fedpbc.experiments.conditions import (
    CEILING,
    EVERY_LINK_UP,
    FEDAVG,
    NOT_OF_THE_CEILING,
    is_ceiling,
)
from fedpbc.experiments.config_file import read_own_toml, read_toml
from fedpbc.experiments.fleet_trace import fleet_values, links_of
from fedpbc.experiments.trust import check_trust, is_of_results
from fedpbc.limits import check_path, check_text, check_values

__all__ = [
    "chosen_tables",
    "configuration_values",
    "parse_value",
    "replaced_by",
    "set_value",
    "split_items",
    "split_list",
]

SHARED = {
    "links": ("p", "sigma", "delta"),
    "downlink": ("p", "sigma", "delta"),
    "aggregation": ("clip",),
    "data": ("alpha", "train_samples", "weigh"),
}
"""Settings of a section that stay when another scheme or data set is chosen."""
REPLACED = {("train", "schedule"): ("decay",)}
"""Settings that another one of their section replaces."""
WITHOUT_PROBABILITIES = ("always", "by_volume", "label_cyclic", "table", "trace")
"""Schemes for which not even those stay: they use no probabilities."""


def configuration_values(
    file: Path | None = None,
    options: Mapping[str, Any] | None = None,
    assignments: Sequence[str] | None = None,
    *,
    trace: Path | None = None,
    of_folder: bool = False,
    trust: bool = False,
) -> dict[str, Any]:
    """The values of a configuration: the file's, then the options', then those of ``--set``.

    Options are values by key; None is skipped. ``trace`` is a recorded trace for the links, or the
    folder of a fleet's server, which also has a model, data and rounds. ``of_folder``: not the file
    was named, but the folder of results that it is in. The files that such a configuration names
    are in its folder, and its plugins need ``trust`` if this user has not run them yet.

    Example:
        >>> configuration_values(None, {"links.name": "markov", "seed": None}, ["links.p=0.5"])
        {'links': {'name': 'markov', 'p': 0.5}}
    """
    values: dict[str, Any] = {}
    if file is not None and (of_folder or is_of_results(file.parent)):
        values = read_own_toml(file)
        check_trust(file.parent, values, trust=trust)
    elif file is not None:
        values = read_toml(file)
    options = {key: value for key, value in (options or {}).items() if value is not None}
    check_values(options)
    if trace is not None and Path(trace).is_dir():
        trace = links_of(Path(trace))
        values = {**fleet_values(trace, {**values, **options}, trust=trust), **values}
    given: dict[str, Any] = {}
    if "task.app" in options:
        # Another task than the file's, which may describe a whole run.
        for section in ("task", "data", "model"):
            values.pop(section, None)

    def give(key: str, value: Any) -> None:
        set_value(values, key, value)
        given[key] = value

    for key, value in options.items():
        if key == "algorithms" and isinstance(values.get(key), Mapping):
            value = chosen_tables(value, values[key], ceiling=bool(options.get("ceiling")))
        give(key, value)
    if trace is not None:
        set_trace(values, trace, options.get("links.name"))
    for assignment in assignments or ():
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise InputError("--set", assignment, "KEY=VALUE, such as links.gamma=0.2")
        check_text(key, "--set")
        give(key.strip(), parse_value(text.strip(), key.strip()))
    check_values(values)
    check_kept(values, given, trace)
    return values


def chosen_tables(names: Sequence[str], tables: Any, *, ceiling: bool = False) -> dict[str, Any]:
    """The tables of a configuration's entries that are named; others have no settings.

    With ``ceiling``, or that name, also the configuration's ceiling, or that of its FedAvg, which
    has FedAvg's own settings although it is not named.

    Example:
        >>> chosen_tables(["fedau", "mifa"], {"fedau": {"cutoff": 5}, "fedavg": {}})
        {'fedau': {'cutoff': 5}, 'mifa': {}}
    """
    if not names or len(set(names)) < len(names):
        raise InputError("algorithms", names, "different names, at least one")
    configured = tables if isinstance(tables, Mapping) else {}
    chosen = {name: configured.get(name, {}) for name in names if name != CEILING}
    ceilings = {label: table for label, table in configured.items() if is_ceiling(str(label))}
    fedavg = configured.get(FEDAVG)
    if not ceilings and FEDAVG not in chosen and isinstance(fedavg, Mapping) and fedavg:
        settings = {k: v for k, v in fedavg.items() if k not in NOT_OF_THE_CEILING}
        ceilings = {CEILING: {"name": FEDAVG, **settings, **EVERY_LINK_UP}}
    if CEILING in names:
        # By its name alone it is what --ceiling adds.
        ceilings, ceiling = {CEILING: {}, **ceilings}, True
    return chosen | ceilings if ceiling else chosen


def check_kept(values: Mapping[str, Any], given: Mapping[str, Any], trace: Path | None) -> None:
    """Raise InputError if a later setting replaced the section of an earlier one."""
    for key, value in given.items():
        *sections, last = key.split(".")
        table: Any = values
        for section in sections:
            table = table.get(section) if isinstance(table, Mapping) else None
        if sections and last != "name" and not (isinstance(table, Mapping) and last in table):
            raise InputError(
                f"{key} is {value!r}, but a later '--set {sections[0]}' replaces it: leave one out"
            )
    links = values.get("links")
    if trace is not None and (
        not isinstance(links, Mapping)
        or (links.get("name"), links.get("file")) != ("trace", str(trace))
    ):
        raise InputError("--trace", str(trace), "left out: a later '--set links' replaces it")


def set_trace(values: dict[str, Any], file: Path, links: str | None) -> None:
    """Use a recorded trace; a fleet's log also has its round length and number of clients."""
    from fedpbc.links.trace import fleet_log_settings

    check_path(file, "--trace")
    if links not in (None, "trace"):
        raise InputError("--trace", str(file), f"left out with --links {links}")
    set_value(values, "links.name", "trace")
    set_value(values, "links.file", str(file))
    header = fleet_log_settings(str(file))
    if header is not None:
        values["links"].setdefault("round_seconds", header[0])
        task = values.get("task", {})
        task = {"name": task} if isinstance(task, str) else task
        # What is not a table is refused later.
        if not isinstance(task, Mapping) or task.keys() <= {"app"} or task.get("name") == "app":
            # A quadratic task has as many clients as targets.
            values.setdefault("clients", header[1])


def set_value(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; choosing another scheme or algorithm drops the options of the old one."""
    *sections, last = key.split(".")
    if not all([*sections, last]):
        raise InputError("--set", key, "a key such as links.gamma")
    if sections[:1] == ["algorithms"]:
        values["algorithms"] = _algorithm_tables(values)
    table = values
    for section in sections:
        inner = table.get(section, {})
        table[section] = {"name": inner} if isinstance(inner, str) else inner
        table = table[section]
        if not isinstance(table, dict):
            raise InputError(
                "--set", key, f"a key such as links.gamma: '{section}' is not a section"
            )
    if sections and last == "name":
        shared = SHARED.get(sections[0], ())
        for option in set(table) - set(shared) if table.get("name") not in (None, value) else ():
            del table[option]
        for option in shared if value in WITHOUT_PROBABILITIES else ():
            table.pop(option, None)
        if sections[0] == "data" and _has_clients(value):
            table.pop("alpha", None)
    for option in replaced_by(".".join(sections), {last: value}):
        table.pop(option, None)
    table[last] = value


def replaced_by(section: str, given: Mapping[str, Any]) -> set[str]:
    """The settings of a section that others, which are given, replace.

    Example:
        >>> replaced_by("train", {"schedule": "cosine"})
        {'decay'}
    """
    return {each for name in given for each in REPLACED.get((section, name), ())}


def _has_clients(data: Any) -> bool:
    """Whether the clients of a data set bring their own samples, which α does not split."""
    from fedpbc.data.sources import SOURCES

    return isinstance(data, str) and data in SOURCES and SOURCES[data].has_clients({})


def _algorithm_tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a comparison as tables: an option of one of them is to be set."""
    from fedpbc.algorithms import PAPER_ALGORITHMS

    names = values.get("algorithms")
    if isinstance(names, dict):
        return names
    if names is None:
        alone = values.get("algorithm")
        alone = alone.get("name") if isinstance(alone, Mapping) else alone
        names = PAPER_ALGORITHMS if alone is None else [alone]
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InputError("algorithms", names, "a list of names, or tables [algorithms.LABEL]")
    return {name: {} for name in names}


def parse_value(text: str, key: str = "--set") -> Any:
    """A TOML value; anything else is a string."""
    check_text(text, key)
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text


def split_items(text: str) -> list[str]:
    """The items of a list that are separated by commas, but not by those in brackets or quotes.

    Example:
        >>> split_items("fedau:cutoff=5, fedpbc:links.p=[0.1,0.2]")
        ['fedau:cutoff=5', 'fedpbc:links.p=[0.1,0.2]']
    """
    items, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "[]{}":
            depth = max(0, depth + (1 if character in "[{" else -1))
        if character == "," and not depth and not quote:
            items.append("")
        else:
            items[-1] += character
    return [item.strip() for item in items if item.strip()]


def split_list(
    option: str, text: str | None, convert: Callable[[str], Any] = str
) -> list[Any] | None:
    """A list from its items separated by commas; None remains None."""
    if text is None:
        return None
    try:
        return [convert(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(option, text, "numbers separated by commas, such as 0,1,2") from None
