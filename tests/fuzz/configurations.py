"""Configuration files: valid ones with faults in their keys, values, structure or text."""

from __future__ import annotations

import copy
import tomllib
from random import Random
from typing import Any

from tests.fuzz import hostile
from tests.fuzz.case import Case, Step
from tests.fuzz.commands import LONG, setting_keys
from tests.fuzz.place import Place
from tests.fuzz.templates import write_inputs

QUADRATIC: dict[str, Any] = {
    "rounds": 3,
    "evaluate_every": 1,
    "task": {"targets": "targets.npy"},
    "links": {"name": "bernoulli", "p": 0.6},
    "train": {"local_steps": 2},
}
DIGITS: dict[str, Any] = {
    "rounds": 2,
    "clients": 4,
    "evaluate_every": 1,
    "data": {"name": "digits"},
    "model": {"name": "softmax"},
    "links": {"name": "bernoulli", "p": 0.6},
    "train": {"local_steps": 1, "batch_size": 4},
}
APP: dict[str, Any] = {
    "rounds": 2,
    "clients": 4,
    "evaluate_every": 1,
    "task": {"app": "app.py"},
    "links": {"name": "bernoulli", "p": 0.6},
    "train": {"local_steps": 1, "batch_size": 4},
}
COMMANDS: dict[str, tuple[int, tuple[str, ...]]] = {
    # How often, and with which options.
    "run": (60, ("--out", "out")),
    "compare": (20, ("--out", "out", "--jobs", "1")),
    "theory": (20, ()),
    "tune": (10, ("--out", "out", "--jobs", "1", "--candidates", "2")),
    "advise": (3, ("--out", "out", "--jobs", "1", "--minutes", "0.001")),
    "links": (8, ()),
}
SECTIONS = ("task", "data", "model", "train", "links", "downlink", "algorithm", "algorithms")
PROCESSES = ("engine", "workers", "ray_address", "track")
"""Some of their right values start processes; see the commands."""


def make(random: Random, place: Place) -> Case:
    """A configuration for one of the commands that read one."""
    write_inputs(place.work)
    values = copy.deepcopy(random.choice((QUADRATIC, QUADRATIC, DIGITS, APP)))
    command = random.choices(tuple(COMMANDS), [share for share, _ in COMMANDS.values()])[0]
    of_several = command in ("tune", "advise") and random.random() < 0.7
    if command == "compare" or of_several:
        values |= {
            "algorithms": random.choice(
                (["fedavg"], {"fedau": {"cutoff": 3}}, {"fedavg": {"train": {"local_steps": 1}}})
            ),
            "seeds": [0],
        }
    elif random.random() < 0.5:
        values["algorithm"] = random.choice(("fedavg", {"name": "fedau", "cutoff": 5}, "mifa"))
    faults = random.choices((0, 1, 2), (10, 60, 30))[0]
    textual = random.random() < 0.35
    if not textual:
        for _ in range(faults):
            change(random, values)
    content = document(random, values).encode("utf-8", "replace")
    if textual and faults:
        content = hostile.mutate(random, content)
    place.write("config.toml", content)
    words = [command, "config.toml", *COMMANDS[command][1]]
    quick = is_small(content)
    expect = "success" if not faults and command in ("run", "compare", "tune", "links") else "any"
    return Case([Step(tuple(words), expect=expect, writes=("out",), quick=quick)])


def is_small(content: bytes) -> bool:
    """Whether what a file asks for takes no time; what cannot be parsed takes none either."""
    text = content.decode("utf-8", "replace")
    if LONG.search(text):
        return False
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError):
        return True
    rounds, clients = values.get("rounds"), values.get("clients")
    quadratic = "targets" in str(values.get("task"))
    # Otherwise the defaults are those of a real experiment.
    return isinstance(rounds, int) and rounds < 10 and (quadratic or clients == 4)


def change(random: Random, values: dict[str, Any]) -> None:
    """One fault in the values."""
    pick = random.random()
    if pick < 0.55:
        key = random.choice([key for key in setting_keys() if key not in PROCESSES])
        assign(values, key.split("."), hostile.unlike(random))
    elif pick < 0.65:
        values[random.choice(SECTIONS)] = hostile.unlike(random)
    elif pick < 0.75:
        table = random.choice([values, *(v for v in values.values() if isinstance(v, dict))])
        table[hostile.text(random)] = hostile.unlike(random)
    elif pick < 0.8:
        values.pop(random.choice([k for k in values if k not in ("rounds", "clients", "data")]))
    elif pick < 0.9:
        name = hostile.text(random)
        values["algorithms"] = random.choice(
            (
                {name: {}},
                {"../mine": {}},
                {"fedavg": {name: 1}},
                [name],
                [["fedavg"]],
                {"fedavg": 3},
                {"mine": {"name": "fedavg", name: 1}},
                {name: {"name": "fedavg"}},
                {"fedavg": {"links": {name: hostile.unlike(random)}}},
                {"ceiling": {"name": name}},
                [f"fedavg:{name}=1"],
                [f"fedavg:local_steps={name}"],
                [{"name": "fedavg", "label": name}],
                {"fedavg": {"links": {"name": name}}},
                {"fedavg": {"train": hostile.unlike(random)}},
                {"ceiling": {}, "fedavg": {}},
                {"ceiling": {"name": "fedau"}, "fedavg": {"data": {"alpha": 0.5}}},
                {"fedau": {"cutoff": hostile.unlike(random)}, "fedavg": {}},
                ["fedavg", {"name": "fedau", "cutoff": hostile.unlike(random)}],
            )
        )
        if random.random() < 0.3:
            values["sweep"] = random.choice(
                ({"train": {name: [1]}}, {"train.local_steps": [name]}, [f"{name}=1"], name)
            )
    elif pick < 0.93:
        key = random.choice(("seeds", "sweep", "ceiling", "sweep.train.local_steps", "tune.count"))
        assign(values, key.split("."), hostile.unlike(random))
    else:
        file = hostile.path(random)
        key = random.choice(
            ("task.targets", "task.app", "links.file", "links.p", "downlink.p", "plugins")
        )
        assign(values, key.split("."), [file] if key == "plugins" else file)


def assign(values: dict[str, Any], keys: list[str], value: Any) -> None:
    """Set a nested value, whatever stands on the way."""
    for key in keys[:-1]:
        if not isinstance(values.get(key), dict):
            values[key] = {"name": values[key]} if isinstance(values.get(key), str) else {}
        values = values[key]
    values[keys[-1]] = value


def document(random: Random, values: dict[str, Any]) -> str:
    """The values as TOML."""
    lines, tables = [], []
    for key, value in values.items():
        name = key if key.isidentifier() and key.isascii() else hostile.toml_string(key)
        if isinstance(value, dict) and random.random() < 0.8:
            tables.append(f"[{name}]")
            tables += [
                f"{hostile.toml_string(str(k))} = {hostile.as_toml(v)}" for k, v in value.items()
            ]
        else:
            lines.append(f"{name} = {hostile.as_toml(value)}")
    return "\n".join([*lines, *tables]) + "\n"
