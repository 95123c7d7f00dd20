"""Widen a comparison: more entries or seeds, with the same shared settings, in the same folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from fedpbc.errors import InputError
from fedpbc.experiments.comparison_plan import ComparisonPlan
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.entries import Entry, is_ceiling, value_text
from fedpbc.experiments.seeds import seeds_text

__all__ = ["describe_widening", "widened"]


def widened(begun: ComparisonPlan, requested: ComparisonPlan, folder: object) -> ComparisonPlan:
    """Return a plan of all entries and seeds of two plans, those of the first one first.

    Raises InputError if the plans differ in what entries share, or in an entry of the same label.
    Trackers may differ: they are those that are requested now.
    """
    everything = {**requested.entries, **begun.entries}
    for entry in everything.values():
        there, here = (_identity(plan.shared, entry) for plan in (begun, requested))
        if difference := _difference(there, here):
            raise InputError(
                f"out: {folder} holds another comparison ({difference}); choose a new folder, or "
                "replace it with --overwrite"
            )
    for label in requested.entries.keys() & begun.entries.keys():
        there, here = (_identity(begun.shared, plan.entries[label]) for plan in (begun, requested))
        if difference := _difference(there, here):
            raise InputError(
                f"out: {folder} holds another '{label}' ({difference}); choose a new folder, or "
                f"give the new one a label of its own: [algorithms.LABEL] with a name"
            )
    shared = {key: value for key, value in begun.shared.items() if key != "track"}
    if "track" in requested.shared:
        shared["track"] = requested.shared["track"]
    new = [entry for label, entry in requested.entries.items() if label not in begun.entries]
    entries = [*begun.entries.values(), *new]
    entries.sort(key=lambda entry: is_ceiling(entry.label))
    return replace(
        begun,
        shared=shared,
        entries={entry.label: entry for entry in entries},
        seeds=list(dict.fromkeys([*begun.seeds, *requested.seeds])),
    )


def _identity(shared: Mapping[str, Any], entry: Entry) -> dict[str, Any] | str:
    """Everything that determines an entry's runs but the seed, by dotted key; files by content.

    Why there are no such runs, if the entry does not go with these shared settings.
    """
    try:
        config = Config.from_dict(entry.applied_to(shared), lenient=True)
        nested, inputs = config.self_contained()
    except InputError as error:
        return str(error)
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{option}": inner for option, inner in value.items()}
        elif key not in ("seed", "track"):
            flat[key] = value
    hashes = {f"inputs/{n}": f"a file {sha256(c).hexdigest()[:12]}" for n, c in inputs.items()}

    def known(value: Any) -> Any:
        if isinstance(value, list):
            return list(map(known, value))
        return hashes.get(value, value) if isinstance(value, str) else value

    return {key: known(value) for key, value in flat.items()}


def _difference(there: dict[str, Any] | str, here: dict[str, Any] | str) -> str:
    """What differs first between two identities; empty if nothing does."""
    if isinstance(there, str) or isinstance(here, str):
        return "" if there == here else str(there if isinstance(there, str) else here)
    for key in [*there, *here]:
        if there.get(key) != here.get(key):
            old, new = ("not set" if v is None else value_text(v) for v in _both(there, here, key))
            return f"{key} is {old} there, {new} here"
    return ""


def _both(there: Mapping[str, Any], here: Mapping[str, Any], key: str) -> tuple[Any, Any]:
    return there.get(key), here.get(key)


def describe_widening(
    labels: Collection[str], seeds: Sequence[int], requested: ComparisonPlan, plan: ComparisonPlan
) -> str:
    """Say in one line what was added to a folder's entries and seeds; empty if it held the same.

    ``plan`` is the whole; what the folder has beyond the requested plan is said, too.
    """
    new = [label for label in plan.entries if label not in labels]
    new_seeds = [seed for seed in plan.seeds if seed not in seeds]
    added = [", ".join(new)] if new else []
    if new_seeds:
        added.append(_counted(new_seeds))
    kept = [label for label in plan.entries if label not in requested.entries]
    kept_seeds = [seed for seed in plan.seeds if seed not in requested.seeds]
    also = [", ".join(kept)] if kept else []
    if kept_seeds:
        also.append(_counted(kept_seeds))
    parts = [f"added {' and '.join(added)}"] if added else []
    parts += [f"it also has {' and '.join(also)}"] if also else []
    return "; ".join(parts)


def _counted(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {seeds_text(sorted(seeds))}"
