"""What a search tunes: entries, as those of a comparison, and which of their settings are fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpbc.algorithms import ALGORITHMS
from fedpbc.errors import InputError
from fedpbc.experiments.algorithm_section import take_algorithm
from fedpbc.experiments.entries import Entry, entry_of
from fedpbc.experiments.overrides import chosen_tables
from fedpbc.experiments.setting_names import CONFIGURATION
from fedpbc.experiments.settings import AlgorithmSection
from fedpbc.experiments.swept_entries import comparison_entries

__all__ = ["tuned_entries"]


def tuned_entries(
    shared: dict[str, Any], names: Sequence[str] | None, *, ceiling: bool = False
) -> tuple[dict[str, Entry], dict[str, set[str]]]:
    """Take the entries out of a configuration's values, and say which settings are not tuned.

    ``names`` chooses among the configuration's entries, or adds others: names, specifications
    (``fedau:cutoff=5``), ``ceiling``, or ``all`` algorithms. What a specification sets is part of
    its label and stays, in a table with such a label, too, as a search writes it; what else a
    table sets is only where the search begins.

    Example:
        >>> entries, fixed = tuned_entries({"data": "digits"}, ["fedpbc", "fedau:cutoff=5"])
        >>> list(entries), fixed["fedau:cutoff=5"]
        (['fedpbc', 'fedau:cutoff=5'], {'algorithm.cutoff'})
        >>> tables = {"fedau:cutoff=5": {"cutoff": 5, "name": "fedau", "over": "heard"}}
        >>> tuned_entries({"data": "digits", "algorithms": tables}, None)[1]
        {'fedau:cutoff=5': {'algorithm.cutoff'}}
    """
    for key in ("seed", "seeds"):
        shared.pop(key, None)
    tables, of_file = shared.pop("algorithms", None), shared.pop("ceiling", False)
    ceiling = ceiling or of_file
    section = take_algorithm(shared)
    if tables is None or tables == {}:
        named = section is not None and section.name
        tables = [named or AlgorithmSection.name]
    chosen: Any = tables
    if names is not None:
        given = [*ALGORITHMS] if list(names) == ["all"] else list(names)
        chosen = chosen_tables(given, tables, ceiling=bool(ceiling))
    entries = comparison_entries(chosen, {}, ceiling, CONFIGURATION, section)
    fixed = {entry.label: _named_by_label(entry) for entry in entries if ":" in entry.label}
    return {entry.label: entry for entry in entries}, fixed


def _named_by_label(entry: Entry) -> set[str]:
    """The keys that the label has values for, read as a specification; none if it is not one."""
    try:
        named = entry_of(entry.label)
    except InputError:
        return set()  # a name that somebody chose, with a colon
    return _dotted(named) if named.algorithm == entry.algorithm else set()


def _dotted(entry: Entry) -> set[str]:
    """The keys of all settings that an entry has for itself."""
    keys = {f"algorithm.{option}" for option in entry.options}
    for section, table in entry.settings.items():
        keys |= {f"{section}.{key}" for key in table} if isinstance(table, Mapping) else {section}
    return keys
