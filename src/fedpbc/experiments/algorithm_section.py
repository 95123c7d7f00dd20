"""Whose the options of ``[algorithm]`` are where several algorithms are compared or tuned.

They belong to the algorithm that the section names. Without a name they belong to the only
algorithm that has such an option; if there is none, or more than one, they are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedpbc.algorithms import find_algorithm
from fedpbc.errors import InputError
from fedpbc.experiments.entries import Entry, no_such_option, value_text
from fedpbc.options import check_type, checked_given, options_of
from fedpbc.simulation.views import views_of
from fedpbc.text import listed

__all__ = ["AlgorithmOptions", "check_assigned", "take_algorithm"]


@dataclass(frozen=True)
class AlgorithmOptions:
    """The section ``[algorithm]``, checked.

    Attributes:
        name: of the algorithm; None if the section only has options.
        options: as given.
        settings: of the entry with the algorithm's name alone: the view to deploy.

    Example:
        >>> entries = [Entry("fedavg", "fedavg"), Entry("fedau", "fedau")]
        >>> AlgorithmOptions(None, {"cutoff": 5}).added_to(entries)[1].options
        {'cutoff': 5}
    """

    name: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def added_to(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries with the options of their algorithm; what an entry has itself stays."""
        name = self.name
        if name is not None:
            return [self._completed(e) if e.algorithm == name else e for e in entries]
        for option, value in self.options.items():
            owner = _owner(option, value, entries)
            entries = [
                replace(entry, options={option: value, **entry.options})
                if entry.algorithm == owner
                else entry
                for entry in entries
            ]
        return list(entries)

    def _completed(self, entry: Entry) -> Entry:
        settings = self.settings if entry.label == self.name else {}
        return replace(
            entry,
            options={**self.options, **entry.options},
            settings={**settings, **entry.settings},
        )


def take_algorithm(shared: dict[str, Any]) -> AlgorithmOptions | None:
    """Take the section ``[algorithm]`` out of a configuration's values, and check it.

    Example:
        >>> shared = {"algorithm": {"name": "fedau", "cutoff": 5}, "rounds": 9}
        >>> take_algorithm(shared).options, shared
        ({'cutoff': 5}, {'rounds': 9})
    """
    section = shared.pop("algorithm", None)
    if section is None:
        return None
    table = {"name": section} if isinstance(section, str) else section
    if not isinstance(table, Mapping):
        raise InputError("algorithm", section, "a name, or a table with a name")
    options = dict(table)
    name = options.pop("name", None)
    if name is None:
        return AlgorithmOptions(None, options) if options else None
    if not isinstance(name, str):
        raise InputError("algorithm.name", name, "a name in quotes")
    kind = find_algorithm(name)
    checked_given(kind.__init__, options, "algorithm")
    # A run writes down all of its algorithm's views; another algorithm may have more.
    if shared.get("views") == list(views_of(kind)):
        del shared["views"]
    # The view to deploy is this algorithm's; another may not have it.
    deployed = {key: shared.pop(key) for key in ("deploy_view",) if key in shared}
    return AlgorithmOptions(kind.name, options, deployed)


def _owner(option: str, value: Any, entries: Sequence[Entry]) -> str:
    """The only algorithm that has an option."""
    having = [entry for entry in entries if option in _options(entry.algorithm)]
    names = list(dict.fromkeys(entry.algorithm for entry in having))
    if not names:
        raise no_such_option(option, [entry.algorithm for entry in entries], "algorithm")
    given, text = f"algorithm.{option} is {value!r}", value_text(value, option)
    if len(names) > 1:
        raise InputError(
            f"{given}, but {listed(names)} have this option: write it with the one that is meant, "
            f"as in {names[0]}:{option}={text}"
        )
    check_type(f"algorithm.{option}", value, _options(names[0])[option].annotation)
    if all(option in entry.options for entry in having):
        raise _outranked(f"algorithm.{option}", value, having)
    return names[0]


def _outranked(key: str, value: Any, having: Sequence[Entry]) -> InputError:
    """The error for a setting that every entry has itself."""
    option = key.removeprefix("algorithm.")
    labels = [entry.label for entry in having]
    remedy = "leave one of them out"
    if (name := having[0].algorithm) in labels:
        remedy = f"write --set algorithms.{name}.{option}={value_text(value, option)}"
    have = "has a value of its own" if len(labels) == 1 else "have values of their own"
    return InputError(f"{key} is {value!r}, but {listed(labels)} {have}: {remedy}")


def _options(algorithm: str) -> dict[str, Any]:
    return options_of(find_algorithm(algorithm).__init__)


def check_assigned(
    assignments: Sequence[str] | None,
    values: Mapping[str, Any],
    entries: Sequence[Entry],
    options: Mapping[str, Any] | None = None,
    chosen: Mapping[str, str] | None = None,
) -> None:
    """Raise InputError if an option of the command line or ``--set`` changes none of the entries.

    The section of a file may be that of a run of another algorithm; what is typed is meant for one
    of those that are run. ``values`` are those of the whole configuration, ``options`` those that
    were typed besides, by key; ``chosen`` says by what a command chooses settings itself.

    Example:
        >>> check_assigned(["algorithm=mifa"], {"algorithm": "mifa"}, [Entry("fedau", "fedau")])
        Traceback (most recent call last):
        fedpbc.errors.InputError: algorithm is 'mifa', but should be fedau
    """
    keys = [assignment.partition("=")[0].strip() for assignment in assignments or ()]
    typed = [*keys, *(key for key, value in (options or {}).items() if value is not None)]
    for key in typed:
        if chosen and key in chosen:
            raise InputError(f"{key} has no effect here: {chosen[key]}")
        first, _, option = key.rpartition(".")
        if first.partition(".")[0] in ("algorithm", "algorithms") or option == "name":
            continue
        if entries and all(entry.has(key) for entry in entries):
            shared = values.get(first) if first else values
            value = shared.get(option) if isinstance(shared, Mapping) else None
            raise _outranked(key, value, entries)
    assigned = [key for key in keys if key.partition(".")[0] == "algorithm"]
    section = values.get("algorithm")
    table = section if isinstance(section, Mapping) else {"name": section}
    name = table.get("name")
    if not assigned or name is None:
        return
    having = [entry for entry in entries if entry.algorithm == name]
    for key in assigned:
        option = key.partition(".")[2]
        if option in ("", "name") and not having:
            raise InputError(key, name, _one_of(entries))
        if option in ("", "name"):
            continue
        value = table.get(option)
        if not having:
            raise InputError(
                f"{key} is {value!r}, but {name} is not among the algorithms: leave it out, or "
                f"add {name}:{option}={value_text(value, option)}"
            )
        if not any(entry.options.get(option) == value for entry in having):
            raise _outranked(f"algorithm.{option}", value, having)


def _one_of(entries: Sequence[Entry]) -> str:
    names = list(dict.fromkeys(entry.algorithm for entry in entries))
    if not names:
        return "left out: which one to run is what is looked for"
    return names[0] if len(names) == 1 else "one of " + ", ".join(names)
