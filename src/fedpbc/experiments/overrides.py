"""What was given on the command line: a file, options, and --set; the later outranks."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpbc.errors import InputError

__all__ = ["gathered"]

SECTION_OF = {
    "algorithm": ("algorithm", "name"),
    "links": ("links", "name"),
    "downlink": ("downlink", "name"),
    "data": ("data", "name"),
    "data_dir": ("data", "dir"),
    "model": ("model", "name"),
    "learning_rate": ("train", "learning_rate"),
    "global_learning_rate": ("train", "global_learning_rate"),
    "local_steps": ("train", "local_steps"),
    "batch_size": ("train", "batch_size"),
}
SHARED = {
    "links": ("p", "sigma", "delta"),
    "downlink": ("p", "sigma", "delta"),
    "data": ("alpha", "train_samples"),
}
"""Options of a section that stay when another of its kind is named."""
TOP = (
    "rounds",
    "clients",
    "seed",
    "engine",
    "workers",
    "ray_address",
    "device",
    "reported",
    "evaluate_every",
)


def gathered(
    config: Path | None, settings: list[str] | None, options: dict[str, Any]
) -> dict[str, Any]:
    """What was given: the file, then the options, then --set; the later outranks."""
    given: dict[str, Any] = {}
    if config is not None:
        from fedpbc.experiments.configuration import read_toml

        given = read_toml(config)
    for name, (section, key) in SECTION_OF.items():
        if options.get(name) is not None:
            value = options[name]
            put(given, f"{section}.{key}", str(value) if isinstance(value, Path) else value)
    for name in TOP:
        if options.get(name) is not None:
            given[name] = options[name]
    if options.get("trace") is not None:
        put_trace(given, options["trace"], options.get("links"))
    for name, convert in (("views", str), ("algorithms", str), ("seeds", int), ("track", str)):
        if options.get(name) is not None:
            given[name] = separated(name, options[name], convert)
    if options.get("plugin"):
        given["plugins"] = [str(path) for path in options["plugin"]]
    for setting in settings or ():
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise InputError("--set", setting, "KEY=VALUE, such as links.gamma=0.2")
        put(given, key.strip(), value_of(text.strip()))
    return given


def put_trace(given: dict[str, Any], file: Path, links: str | None) -> None:
    """A recorded trace; a fleet's own log also says how long a round is, and how many clients."""
    from fedpbc.links.trace import fleet_log_settings

    if links not in (None, "trace"):
        raise InputError("--trace", str(file), f"left out with --links {links}")
    put(given, "links.name", "trace")
    put(given, "links.file", str(file))
    said = fleet_log_settings(str(file))
    if said is not None:
        given["links"].setdefault("round_seconds", said[0])
        if "task" not in given:
            # Of quadratics there are as many clients as targets.
            given.setdefault("clients", said[1])


def put(given: dict[str, Any], key: str, value: Any) -> None:
    """Set a key with dots; another scheme or algorithm does not get the options of the old one."""
    *sections, last = key.split(".")
    if not all([*sections, last]):
        raise InputError("--set", key, "a key, such as links.gamma")
    if sections[:1] == ["algorithms"]:
        from fedpbc.algorithms import PAPER_ALGORITHMS

        # An option of one of them: a list of names becomes a table of them.
        names = given.get("algorithms", PAPER_ALGORITHMS)
        given["algorithms"] = names if isinstance(names, dict) else {name: {} for name in names}
    table = given
    for section in sections:
        inner = table.get(section, {})
        table[section] = {"name": inner} if isinstance(inner, str) else inner
        table = table[section]
        if not isinstance(table, dict):
            raise InputError("--set", key, f"a key; {section} is no section")
    if last == "name" and table.get("name") not in (None, value):
        for own in set(table) - set(SHARED.get(sections[0], ())):
            del table[own]
    table[last] = value


def value_of(text: str) -> Any:
    """A TOML value; anything else is taken as a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def separated(option: str, text: str, convert: Callable[[str], Any]) -> list[Any]:
    """A list written with commas."""
    try:
        return [convert(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(option, text, "numbers separated by commas, such as 0,1,2") from None
