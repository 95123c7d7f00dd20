"""The entries of a comparison: an algorithm with settings of its own, under a label.

An entry is given by the algorithm's name (``"fedau"``), by a specification (``"fedau:cutoff=5"``),
or by a table: ``name`` is the algorithm (by default the label), further keys are its options, and
nested tables override sections of the configuration for this entry alone. The label names the
entry's rows, curves and folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedpbc.algorithms import ALGORITHMS, Algorithm, find_algorithm
from fedpbc.errors import InputError
from fedpbc.experiments.conditions import (
    CEILING,
    EVERY_LINK_UP,
    FEDAVG,
    Condition,
    condition_of,
    is_ceiling,
)
from fedpbc.experiments.overrides import parse_value, replaced_by, set_value
from fedpbc.experiments.setting_names import CONFIGURATION, SettingNames
from fedpbc.experiments.settings import FILES, PLACES, SECTIONS
from fedpbc.options import nearest, options_of, unknown_option
from fedpbc.storage.manifest import is_folder_name
from fedpbc.text import listed

__all__ = [
    "CEILING",
    "Entry",
    "entries_of",
    "entry_of",
    "is_ceiling",
    "merged",
    "no_such_option",
    "unknown_setting",
    "value_text",
]

OPTION_START = re.compile(r":(?=\s*[A-Za-z_][\w.]*\s*=)")


@dataclass(frozen=True)
class Entry:
    """One entry of a comparison.

    Attributes:
        label: the name of its rows, curves and folder.
        algorithm: the algorithm's name.
        options: the algorithm's options, as given.
        settings: what it overrides: tables by section, and settings outside of sections.

    Example:
        >>> entry = entry_of("fedau:cutoff=5:learning_rate=0.20")
        >>> entry.label, entry.options, entry.settings
        ('fedau:cutoff=5:learning_rate=0.2', {'cutoff': 5}, {'train': {'learning_rate': 0.2}})
    """

    label: str
    algorithm: str
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def table(self) -> dict[str, Any]:
        """Return the entry as a table ``[algorithms.LABEL]``."""
        name = {} if self.algorithm == self.label else {"name": self.algorithm}
        return {**name, **self.options, **self.settings}

    def applied_to(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a configuration with those of this entry."""
        algorithm = {"name": self.algorithm, **self.options}
        return {**merged(shared, self.settings), "algorithm": algorithm}

    @property
    def condition(self) -> Condition:
        """What it is run on, as far as that is its own."""
        return condition_of(self.settings, ceiling=is_ceiling(self.label))

    def with_value(self, name: str, value: Any, names: SettingNames = CONFIGURATION) -> Entry:
        """Return the entry with an option or a setting, without a change of its label."""
        kind = find_algorithm(self.algorithm)
        if name in options_of(kind.__init__):
            return replace(self, options={**self.options, name: value})
        key = names.find(name)
        if key is None:
            raise unknown_setting(name, [self.algorithm], names, f"algorithms.{self.label}")
        settings = {k: dict(v) if isinstance(v, Mapping) else v for k, v in self.settings.items()}
        section, _, option = key.rpartition(".")
        if section:
            settings.setdefault(section, {})[option] = value
        else:
            settings[key] = value
        return replace(self, settings=settings)

    def has(self, name: str, names: SettingNames = CONFIGURATION) -> bool:
        """Whether the entry has a value of its own for an option or a setting."""
        if name in options_of(find_algorithm(self.algorithm).__init__):
            return name in self.options
        section, _, option = (names.find(name) or name).rpartition(".")
        table = self.settings.get(section) if section else self.settings
        return isinstance(table, Mapping) and option in table

    def pairs(self, names: SettingNames = CONFIGURATION) -> dict[str, str]:
        """Return options and settings as they are in a label: values by their shortest names."""
        kind = find_algorithm(self.algorithm)
        texts = {name: value_text(value, name) for name, value in self.options.items()}
        for key, value in self.settings.items():
            for option, inner in value.items() if isinstance(value, Mapping) else [("", value)]:
                dotted = f"{key}.{option}" if option else key
                texts[names.short(dotted, kind)] = value_text(inner, dotted)
        return texts


def value_text(value: Any, key: str = "") -> str:
    """Return a value as it is in a label; a file by its name.

    Example:
        >>> [value_text(v) for v in (0.10, 5.0, 1e-3, True, "markov", [0.1, 1])]
        ['0.1', '5', '0.001', 'true', 'markov', '[0.1,1]']
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(value_text, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}={value_text(v)}" for k, v in value.items()) + "}"
    is_file = tuple(key.split(".")) in {*FILES, *PLACES}
    return Path(value).name if is_file and isinstance(value, str) else str(value)


def merged(shared: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return shared values with those of an entry; another scheme drops the options of the first.

    Example:
        >>> merged({"links": {"name": "markov", "p": 0.5}}, {"links": {"name": "always"}})
        {'links': {'name': 'always'}}
    """
    values = dict(shared)
    for key, value in settings.items():
        if key not in SECTIONS or not isinstance(value, Mapping):
            values[key] = value
            continue
        base = values.get(key, {})
        if isinstance(base, list | int | float):
            raise InputError(key, base, f"a name, or a table [{key}]")
        if not isinstance(base, Mapping | str) and "name" not in value:
            raise InputError(f"{key}.{next(iter(value), '')} cannot be set: {key} is an object")
        section: dict[str, Any] = {"name": base} if isinstance(base, str) else {}
        section |= base if isinstance(base, Mapping) else {}
        if "name" in value:
            section.setdefault("name", getattr(SECTIONS[key], "name", None))
            changed: dict[str, Any] = {key: section}
            set_value(changed, f"{key}.name", value["name"])
            section = changed[key]
        replaced = replaced_by(key, value)
        values[key] = {k: v for k, v in section.items() if k not in replaced} | {**value}
    return values


def no_such_option(option: str, algorithms: Iterable[str], where: str) -> InputError:
    """The error for an option that none of these algorithms has.

    Example:
        >>> print(no_such_option("cutoff", ["fedavg", "mifa"], "sweep"))
        sweep.cutoff is unknown: fedavg and mifa have no such option, but fedau has
    """
    here = list(dict.fromkeys(algorithms))
    others = [name for name, kind in ALGORITHMS.items() if option in options_of(kind.__init__)]
    if not others:
        known = [o for name in here for o in options_of(find_algorithm(name).__init__)]
        return unknown_option(option, dict.fromkeys(known), where)
    have, has = ("has" if len(names) == 1 else "have" for names in (here, others))
    return InputError(
        f"{where}.{option} is unknown: {listed(here)} {have} no such option, but {listed(others)} "
        f"{has}"
    )


def unknown_setting(
    name: str, algorithms: Iterable[str], names: SettingNames, where: str
) -> InputError:
    """The error for what is neither an option of these algorithms nor a setting.

    Example:
        >>> print(unknown_setting("seed", ["fedavg"], CONFIGURATION, "sweep"))
        sweep.seed is unknown: all entries have the same seeds, which are set by --seeds 0,1,2
    """
    if name in ("seed", "seeds"):
        return InputError(
            f"{where}.{name} is unknown: all entries have the same seeds, which are set by "
            "--seeds 0,1,2"
        )
    kinds = [find_algorithm(algorithm) for algorithm in dict.fromkeys(algorithms)]
    if any(name in options_of(kind.__init__) for kind in ALGORITHMS.values()):
        return no_such_option(name, [kind.name for kind in kinds], where)
    options = [option for kind in kinds for option in options_of(kind.__init__)]
    example = "data.alpha" if "data" in names.sections else "links.p"
    known = dict.fromkeys([*options, *names.keys])
    return unknown_option(name, known, where, f"another setting by its key, such as {example}")


def entry_of(specification: str, names: SettingNames = CONFIGURATION) -> Entry:
    """Return the entry of a specification: a name, and options after colons.

    The name may be that of the ceiling.

    Example:
        >>> entry_of("ceiling:learning_rate=0.3").settings["links"]
        {'name': 'always'}
    """
    name, *assignments = (part.strip() for part in OPTION_START.split(specification.strip()))
    label = name
    if name == CEILING:
        entry = Entry("", FEDAVG, {}, EVERY_LINK_UP)
    else:
        entry = Entry("", _algorithm(name, "algorithms", specification).name)
    for assignment in assignments:
        key, _, text = (word.strip() for word in assignment.partition("="))
        if not text:
            raise InputError("algorithms", specification, f"a value after {key}=")
        value = parse_value(text, key)
        if name == CEILING and (names.find(key) or "").partition(".")[0] in EVERY_LINK_UP:
            raise InputError(
                "algorithms", specification, f"without {key}: the ceiling has every link up"
            )
        if entry.has(key, names):
            raise InputError("algorithms", specification, f"with one value for {key}")
        entry = replace(entry, label=specification.strip()).with_value(key, value, names)
        label += f":{label_part(entry, key, value, names)}"
    return replace(entry, label=label)


def label_part(entry: Entry, name: str, value: Any, names: SettingNames) -> str:
    """Return ``name=value`` as it is in the label of an entry, with the shortest name."""
    kind = find_algorithm(entry.algorithm)
    if name in options_of(kind.__init__):
        return f"{name}={value_text(value, name)}"
    key = names.find(name) or name
    return f"{names.short(key, kind)}={value_text(value, key)}"


def entry_from_table(
    label: str | None, table: Mapping[str, Any], names: SettingNames = CONFIGURATION
) -> Entry:
    """Return the entry of a table; without a label, it is the algorithm's name for now."""
    given = dict(table)
    where = "algorithms" if label is None else f"algorithms.{label}"
    if label is not None and is_ceiling(label) and not _is_specification(label, given):
        # FedAvg's training with every link up, which the table need not say.
        given = {"name": FEDAVG, **EVERY_LINK_UP, **given}
    name = given.pop("name", None)
    if name is None and label is None:
        raise InputError(where, table, "tables with a name")
    if name is None and label is not None:
        entry = replace(entry_of(label, names), label=label)
    else:
        kind = _algorithm(name, f"{where}.name", name)
        entry = Entry(kind.name if label is None else label, kind.name)
    algorithm_options = options_of(find_algorithm(entry.algorithm).__init__)
    for key, value in given.items():
        if key not in names.sections or key in algorithm_options:
            entry = entry.with_value(key, value, names)
        elif isinstance(value, Mapping):
            for option, inner in value.items():
                entry = entry.with_value(f"{key}.{option}", inner, names)
        elif isinstance(value, str):
            entry = entry.with_value(f"{key}.name", value, names)
        elif names.keys.get(key) == key:  # From Python, links may be a table or a timetable.
            entry = entry.with_value(key, value, names)
        else:
            raise InputError(f"{where}.{key}", value, f"a name, or a table [{where}.{key}]")
    return entry


def _is_specification(label: str, table: Mapping[str, Any]) -> bool:
    """Whether the label of a table says what it is, and not the table."""
    return "name" not in table and OPTION_START.search(label) is not None


def _algorithm(name: Any, option: str, given: Any) -> type[Algorithm]:
    names = [*ALGORITHMS, *([CEILING] if option == "algorithms" else [])]
    if isinstance(name, str) and name.partition(":")[0].strip() in names and ":" in name:
        raise InputError(option, given, "NAME:OPTION=VALUE, such as fedau:cutoff=5")
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise InputError(option, given, nearest(name, names))
    return find_algorithm(name)


def entries_of(algorithms: Any, names: SettingNames = CONFIGURATION) -> list[Entry]:
    """Return the entries of a list of names, specifications and tables, or of labelled tables.

    Tables of one algorithm without labels are labelled by what differs between them.

    Example:
        >>> tables = [{"name": "fedau", "cutoff": n, "over": "heard"} for n in (5, 50)]
        >>> [entry.label for entry in entries_of(["fedpbc", *tables])]
        ['fedpbc', 'fedau:cutoff=5', 'fedau:cutoff=50']
    """
    if isinstance(algorithms, Mapping):
        entries = []
        for label, table in algorithms.items():
            check_label(label)
            if not isinstance(table, Mapping):
                raise InputError(f"algorithms.{label}", table, f"a table [algorithms.{label}]")
            entries.append(entry_from_table(label, table, names))
    elif isinstance(algorithms, list | tuple):
        entries = _of_list(algorithms, names)
    else:
        raise InputError("algorithms", algorithms, "a list of names, or tables [algorithms.LABEL]")
    for entry in entries:
        check_label(entry.label)
    check_distinct(entries)
    return entries


def check_label(label: Any) -> None:
    """Raise InputError unless a label can be the name of a folder."""
    if not isinstance(label, str) or not is_folder_name(label):
        raise InputError("algorithms", label, "a label that a folder can have as its name")


def check_distinct(entries: Iterable[Entry]) -> None:
    """Raise InputError if two entries have the same label."""
    labels = [entry.label for entry in entries]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError("algorithms", label, "different ones: each has a label of its own")


def _of_list(items: Sequence[Any], names: SettingNames) -> list[Entry]:
    entries, unlabelled = [], []
    for item in items:
        if isinstance(item, str):
            entries.append(entry_of(item, names))
        elif isinstance(item, Mapping):
            table = dict(item)
            label = table.pop("label", None)
            if label is not None:
                check_label(label)
            else:
                unlabelled.append(len(entries))
            entries.append(entry_from_table(label, table, names))
        else:
            raise InputError("algorithms", items, "a list of names and tables with a name")
    texts = [entry.pairs(names) for entry in entries]
    for k in unlabelled:
        entry = entries[k]
        same = [t for e, t in zip(entries, texts, strict=True) if e.algorithm == entry.algorithm]
        differing = [n for n in texts[k] if len({other.get(n) for other in same}) > 1]
        parts = [entry.algorithm, *(f"{name}={texts[k][name]}" for name in differing)]
        entries[k] = replace(entry, label=":".join(parts))
    return entries
