"""Group the runs that can be compared: those that differ only in algorithm and seed.

Learning rates may differ between algorithms, as the paper tunes them for each; a note then lists
them. If one algorithm has several learning rates, each is a group, and so is any other difference.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import Any

from fedpbc.experiments.configuration import has_own_task
from fedpbc.experiments.settings import COMPUTE, EXECUTION, FILES
from fedpbc.report.load import LoadedRun, section
from fedpbc.report.style import in_registry_order
from fedpbc.storage.files import read_own_file

__all__ = ["LEARNING_RATES", "RunGroup", "flatten", "group_runs"]

LEARNING_RATES = ("train.learning_rate", "train.global_learning_rate")
NOT_SHARED = {
    "algorithm",
    "seed",
    "views",
    *EXECUTION,
    *COMPUTE,
    "data.dir",
    "task.app",
    *LEARNING_RATES,
}
"""What runs of a group may differ in."""
FILE_OPTIONS = {f"{section}.{option}" for section, option in FILES}
BY_ALGORITHM = attrgetter("algorithm")
STATES = ("finished", "failed", "unfinished", "damaged", "not begun")
"""Of copies of a run, the one in the earliest of these states is shown."""


@dataclass(frozen=True, eq=False)
class RunGroup:
    """Runs that can be compared.

    Attributes:
        title: data set or task, links, and what tells the group from others.
        runs: one for each algorithm and seed.
        shared: the options that all runs share, by dotted key.
        notes: what a reader must know about the grouping.
    """

    title: str
    runs: Sequence[LoadedRun]
    shared: Mapping[str, str]
    notes: Sequence[str] = ()


def group_runs(runs: Sequence[LoadedRun]) -> list[RunGroup]:
    """Group runs; groups are in the order of their first runs."""
    readable = [run for run in runs if run.config.get("links")]
    parts: list[tuple[dict[str, str], list[LoadedRun]]] = []
    for candidates in _group_by(readable, lambda run: tuple(shared_options(run).items())):
        for part in _split(candidates):
            distinct = _distinct_options(part, candidates)
            parts.append((shared_options(part[0]) | distinct, part))
    titles = _titles([options for options, _ in parts])
    for run in runs:
        # A run that has not begun has no configuration: it joins its comparison's other runs.
        if run.state == "not begun":
            matching = [part for _, part in parts if _root(run) in map(_root, part)]
            if matching:
                matching[0].append(run)
    return [
        RunGroup(title, _without_copies(part), options, _notes(part))
        for title, (options, part) in zip(titles, parts, strict=True)
    ]


def shared_options(run: LoadedRun) -> dict[str, str]:
    """Return what must be equal in a comparison, as text by key; files by their content."""
    options = flatten({k: v for k, v in run.config.items() if k not in NOT_SHARED})
    return {
        key: _file_label(run.path, value)
        if key in FILE_OPTIONS and isinstance(value, str)
        else _label(value)
        for key, value in sorted(options.items())
        if key not in NOT_SHARED
    }


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one, with dotted keys.

    Example:
        >>> flatten({"seed": 0, "data": {"name": "digits"}})
        {'seed': 0, 'data.name': 'digits'}
    """
    options: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            options |= flatten(value, f"{prefix}{key}.")
        else:
            options[f"{prefix}{key}"] = value
    return options


def _label(value: Any) -> str:
    """Return a short text that is different for different values."""
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value)} values, {_short_hash(json.dumps(value, default=str).encode())}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _file_label(folder: Path, name: str) -> str:
    """Return a file's name with a hash of its content, if it lies in the run's own folder."""
    try:
        return f"{Path(name).name} {_short_hash(read_own_file(folder, name))}"
    except (OSError, ValueError):
        return name


def _short_hash(content: bytes) -> str:
    return sha256(content).hexdigest()[:6]


def _group_by(
    runs: Iterable[LoadedRun], key: Callable[[LoadedRun], Hashable]
) -> list[list[LoadedRun]]:
    groups: dict[Hashable, list[LoadedRun]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.values())


def _learning_rates(run: LoadedRun) -> tuple[str, ...]:
    options = flatten({"train": section(run.config, "train")})
    return tuple(_label(options[key]) for key in LEARNING_RATES if key in options)


def _variant(run: LoadedRun) -> str:
    """Return the algorithm's options and views as text."""
    views = run.config.get("views") or (sorted(run.metrics[0]["views"]) if run.metrics else None)
    return json.dumps([section(run.config, "algorithm"), views], sort_keys=True, default=str)


def _has_several(runs: Sequence[LoadedRun], key: Callable[[LoadedRun], Hashable]) -> bool:
    """Return whether the runs of one algorithm differ in something."""
    return any(len(set(map(key, part))) > 1 for part in _group_by(runs, BY_ALGORITHM))


def _split(runs: list[LoadedRun]) -> list[list[LoadedRun]]:
    """Split runs with equal shared options by learning rate, variant and Python task."""
    several_rates = _has_several(runs, _learning_rates)
    parts = _group_by(runs, _learning_rates) if several_rates else [runs]
    parts = [smaller for part in parts for smaller in _split_variants(part)]
    for directory in (_root, lambda run: run.path):
        parts = [
            smaller
            for part in parts
            for smaller in (_group_by(part, directory) if _has_several_tasks(part) else [part])
        ]
    return parts


def _split_variants(runs: list[LoadedRun]) -> list[list[LoadedRun]]:
    """Keep each algorithm's most frequent variant together; every other one is a part."""
    usual = {
        part[0].algorithm: Counter(map(_variant, part)).most_common(1)[0][0]
        for part in _group_by(runs, BY_ALGORITHM)
    }

    def unusual_variant(run: LoadedRun) -> tuple[str, str] | None:
        variant = _variant(run)
        return None if variant == usual[run.algorithm] else (run.algorithm, variant)

    return _group_by(runs, unusual_variant)


def _has_several_tasks(runs: Sequence[LoadedRun]) -> bool:
    """Return whether runs of own tasks with the same seed have different tasks or links."""
    if not has_own_task(runs[0].config):
        return False

    def identity(run: LoadedRun) -> tuple[str, bytes]:
        up = run.fleet.up
        return run.fleet.task, b"" if up is None else up.tobytes()

    return any(len(set(map(identity, part))) > 1 for part in _group_by(runs, lambda run: run.seed))


def _root(run: LoadedRun) -> Path:
    """Return the directory of the comparison that a run belongs to, if it is in one."""
    return run.path.parent.parent if run.path.name.startswith("seed-") else run.path.parent


def _distinct_options(part: Sequence[LoadedRun], candidates: Sequence[LoadedRun]) -> dict[str, str]:
    """Return what tells a part from other runs with equal shared options."""
    if len(part) == len(candidates):
        return {}
    first, options = part[0], {}
    if _has_several(candidates, _learning_rates):
        options = dict(zip(LEARNING_RATES, _learning_rates(first), strict=False))
        candidates = [r for r in candidates if _learning_rates(r) == _learning_rates(first)]
    if _has_several(candidates, _variant) and len(set(map(_variant, part))) == 1:
        variant = flatten({first.algorithm: section(first.config, "algorithm")})
        variant.pop(f"{first.algorithm}.name", None)
        options |= {key: _label(value) for key, value in variant.items()}
        views = first.config.get("views")
        options["views"] = ",".join(map(str, views)) if isinstance(views, list) else ""
    if has_own_task(first.config):
        options["folder"] = str(_root(first) if len(part) > 1 else first.path)
    return options


def _titles(groups: Sequence[Mapping[str, str]]) -> list[str]:
    """Return each group's name and, among groups of one name, the options that differ."""
    names = list(map(_name, groups))
    titles = []
    for name, shared in zip(names, groups, strict=True):
        namesakes = [other for n, other in zip(names, groups, strict=True) if n == name]
        keys = sorted({key for other in namesakes for key in other})
        differing = [k for k in keys if len({other.get(k) for other in namesakes}) > 1]
        titles.append(" · ".join([name, *(f"{k}={shared[k]}" for k in differing if k in shared)]))
    return titles


def _name(shared: Mapping[str, str]) -> str:
    task = shared.get("task.name", "classification")
    subject = shared.get("data.name", "?") if task == "classification" else task
    subject = {"python": "a task made in Python", "app": "a model and data of one's own"}.get(
        task, subject
    )
    downlink = shared.get("downlink.name", "always")
    parts = [subject, shared.get("links.name", "?")]
    return " · ".join(parts if downlink == "always" else [*parts, f"downlink {downlink}"])


def _without_copies(runs: Sequence[LoadedRun]) -> list[LoadedRun]:
    """Return one run for each algorithm and seed: of copies, the one that is furthest."""
    unique = [
        min(copies, key=lambda run: (STATES.index(run.state), -run.done))
        for copies in _group_by(runs, lambda run: (run.algorithm, run.seed))
    ]
    order = in_registry_order(run.algorithm for run in unique)
    return sorted(unique, key=lambda run: (order.index(run.algorithm), run.seed or 0))


def _notes(runs: Sequence[LoadedRun]) -> list[str]:
    notes = []
    copies = len(runs) - len(_without_copies(runs))
    if copies:
        notes.append(f"{copies} of the runs are copies of others; each is counted once.")
    rates = {run.algorithm: _learning_rates(run) for run in runs if _learning_rates(run)}
    if len(set(rates.values())) > 1:
        listed = "; ".join(f"{name} η_0 = {r[0]}, η_g = {r[-1]}" for name, r in rates.items())
        notes.append(f"learning rates differ between algorithms: {listed}.")
    return notes
