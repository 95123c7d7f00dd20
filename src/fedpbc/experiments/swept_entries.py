"""Entries that follow from others: one for each value of a sweep, and the ceilings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from fedpbc.algorithms import FedAvg, find_algorithm
from fedpbc.errors import InputError
from fedpbc.experiments.algorithm_section import AlgorithmOptions
from fedpbc.experiments.conditions import EVERY_LINK_UP, NOT_OF_THE_CEILING
from fedpbc.experiments.entries import (
    CEILING,
    Entry,
    check_distinct,
    check_label,
    entries_of,
    is_ceiling,
    label_part,
    unknown_setting,
)
from fedpbc.experiments.overrides import parse_value, split_items
from fedpbc.experiments.setting_names import CONFIGURATION, SettingNames
from fedpbc.options import check_type, options_of

__all__ = ["sweep_values", "swept_entries", "with_ceilings"]

MAX_ENTRIES = 10_000
Sweep = Mapping[str, Sequence[Any]]


def comparison_entries(
    algorithms: Any,
    sweep: Any,
    ceiling: Any,
    names: SettingNames,
    section: AlgorithmOptions | None = None,
) -> list[Entry]:
    """Return all entries of a comparison: swept, and with the ceilings last.

    ``section`` has the options of ``[algorithm]``, which hold for the entries of that algorithm.
    """
    ceiling = check_type("ceiling", ceiling, bool)
    values = sweep_values(sweep)
    given: Any = algorithms
    # The ceiling may be named among the algorithms.
    if isinstance(given, Mapping):
        ceiling = ceiling or given.get(CEILING) == {}
        given = {key: value for key, value in given.items() if (key, value) != (CEILING, {})}
    elif isinstance(given, list | tuple):
        ceiling = ceiling or any(isinstance(each, str) and each == CEILING for each in given)
        given = [each for each in given if not (isinstance(each, str) and each == CEILING)]
    entries = entries_of(given, names)
    if section is not None:
        entries = section.added_to(entries)
    swept = swept_entries(entries, values, names)
    if ceiling:
        swept = with_ceilings(entries, swept, values, names)
    if not swept:
        raise InputError("algorithms", algorithms, "a list of names, or tables [algorithms.LABEL]")
    check_distinct(swept)
    return sorted(swept, key=lambda entry: is_ceiling(entry.label))


def sweep_values(sweep: Any) -> dict[str, list[Any]]:
    """Return the values of each key: from texts ``KEY=VALUE,VALUE``, or from a table of lists.

    Example:
        >>> sweep_values(["data.alpha=0.1,1", "links=markov,always"])
        {'data.alpha': [0.1, 1], 'links': ['markov', 'always']}
        >>> sweep_values({"data": {"alpha": [0.1, 1]}})
        {'data.alpha': [0.1, 1]}
    """
    values: dict[str, list[Any]] = {}
    for key, items in _assignments(sweep):
        if key in values:
            raise InputError("sweep", key, "named once")
        if not items:
            raise InputError(f"sweep.{key}", items, "one value at least")
        if any(item in items[:k] for k, item in enumerate(items)):
            raise InputError(f"sweep.{key}", items, "different values")
        values[key] = items
    return values


def _assignments(sweep: Any) -> Iterator[tuple[str, list[Any]]]:
    expected = "KEY=VALUE,VALUE, such as data.alpha=0.1,0.5,1"
    if isinstance(sweep, Mapping):
        yield from _lists(sweep, "")
        return
    texts = [sweep] if isinstance(sweep, str) else sweep
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise InputError("sweep", sweep, f"a table of lists, or {expected}")
    for text in texts:
        key, equals, items = text.partition("=")
        if not equals or not key.strip():
            raise InputError("sweep", text, expected)
        yield key.strip(), [parse_value(item, key.strip()) for item in split_items(items)]


def _lists(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, list[Any]]]:
    for key, items in table.items():
        if isinstance(items, Mapping):
            yield from _lists(items, f"{prefix}{key}.")
        elif isinstance(items, str) or not hasattr(items, "__iter__"):
            raise InputError(f"sweep.{prefix}{key}", items, "a list of values")
        else:
            yield f"{prefix}{key}", list(items)


def swept_entries(
    entries: Sequence[Entry], sweep: Sweep, names: SettingNames = CONFIGURATION
) -> list[Entry]:
    """Return each entry once for each combination of the values that are swept.

    An option of algorithms is swept for those that have it.

    Example:
        >>> pair = [Entry("fedpbc", "fedpbc"), Entry("fedau", "fedau")]
        >>> [entry.label for entry in swept_entries(pair, {"cutoff": [5, 50]})]
        ['fedpbc', 'fedau:cutoff=5', 'fedau:cutoff=50']
    """
    for key in sweep:
        if entries and not any(_takes(entry, key, names) for entry in entries):
            raise unknown_setting(key, [entry.algorithm for entry in entries], names, "sweep")
    swept: list[Entry] = []
    for entry in entries:
        keys = [key for key in sweep if _takes(entry, key, names)]
        for key in keys:
            if entry.has(key, names):
                raise InputError(
                    f"sweep: {key} is also set by algorithms.{entry.label}: leave one of them out"
                )
        for values in product(*(sweep[key] for key in keys)):
            combined = entry
            for key, value in zip(keys, values, strict=True):
                combined = combined.with_value(key, value, names)
                part = label_part(entry, key, value, names)
                combined = replace(combined, label=f"{combined.label}:{part}")
            check_label(combined.label)
            swept.append(combined)
            if len(swept) > MAX_ENTRIES:
                raise InputError(f"sweep has more than {MAX_ENTRIES:,} combinations")
    return swept


def _takes(entry: Entry, key: str, names: SettingNames) -> bool:
    """Whether an entry has an option or setting that is swept; links do not change a ceiling."""
    if key in options_of(find_algorithm(entry.algorithm).__init__):
        return True
    dotted_key = names.find(key)
    of_links = (dotted_key or "").partition(".")[0] in EVERY_LINK_UP
    return dotted_key is not None and not (of_links and is_ceiling(entry.label))


def with_ceilings(
    entries: Sequence[Entry], swept: Sequence[Entry], sweep: Sweep, names: SettingNames
) -> list[Entry]:
    """Return the swept entries and their ceilings: FedAvg's training with every link up.

    ``entries`` are those before the sweep. A ceiling has the options and settings of FedAvg's
    entry, if there is one; there is one ceiling for each value of a sweep that changes it. Those
    that are among the entries already are not added again.

    Example:
        >>> entries = [Entry("fedpbc", "fedpbc")]
        >>> [e.label for e in with_ceilings(entries, entries, {}, CONFIGURATION)]
        ['fedpbc', 'ceiling']
    """
    if any(entry.label == CEILING for entry in entries):
        return list(swept)  # It is there already, with settings of its own.
    present = [entry for entry in swept if is_ceiling(entry.label)]
    entries = [entry for entry in entries if not is_ceiling(entry.label)]
    plain = [entry for entry in entries if entry.label == FedAvg.name]
    sources = plain or [entry for entry in entries if entry.algorithm == FedAvg.name]
    sources = sources or _conditions(entries, names) or [Entry(FedAvg.name, FedAvg.name)]
    ceilings: list[Entry] = []
    for source in sources:
        settings = {k: v for k, v in source.settings.items() if k not in NOT_OF_THE_CEILING}
        ceiling = Entry(source.label, FedAvg.name, source.options, {**settings, **EVERY_LINK_UP})
        if not any(_same(ceiling, other) for other in ceilings):
            ceilings.append(ceiling)
    if len(ceilings) == 1:
        ceilings = [replace(ceilings[0], label=CEILING)]
    else:
        ceilings = [
            replace(c, label=f"{CEILING}:{c.label.removeprefix(f'{FedAvg.name}:')}")
            for c in ceilings
        ]
    kept = {key: values for key, values in sweep.items() if _takes(ceilings[0], key, names)}
    added = swept_entries(ceilings, kept, names)
    return [*swept, *(c for c in added if not any(_is_there(c, other) for other in present))]


def _is_there(ceiling: Entry, other: Entry) -> bool:
    return ceiling.label == other.label or _same(ceiling, other)


def _same(one: Entry, other: Entry) -> bool:
    return (one.options, one.settings) == (other.options, other.settings)


def _conditions(entries: Sequence[Entry], names: SettingNames) -> list[Entry]:
    """FedAvg in each condition that the entries have, but for their links and step sizes."""
    conditions = []
    for entry in entries:
        settings = {
            key: value
            for key, value in entry.settings.items()
            if key not in NOT_OF_THE_CEILING and key != "train"
        }
        condition = Entry("", FedAvg.name, {}, settings)
        parts = [f"{name}={text}" for name, text in condition.pairs(names).items()]
        conditions.append(replace(condition, label=":".join([FedAvg.name, *parts])))
    return conditions
