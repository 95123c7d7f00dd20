"""Which runs may stand in one comparison: those that differ in nothing but algorithm and seed.

Learning rates may differ between algorithms, as the paper tunes them for each; they are then said.
Where one algorithm has several, each is a group of its own, and so is anything else that differs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedpbc.report.load import ShownRun, section
from fedpbc.report.style import in_order

__all__ = ["RunGroup", "grouped"]

OWN = ("algorithm", "seed", "views")
PLACES = (
    "engine",
    "workers",
    "ray_address",
    "device",
    "reported",
    "checkpoint_every",
    "plugins",
    "track",
    "data.dir",
)
"""Where and how a run is computed: no part of what it is."""
RATES = ("train.learning_rate", "train.global_learning_rate")
FILES = ("task.targets", "links.file", "downlink.file", "links.p", "downlink.p")


@dataclass(frozen=True, eq=False)
class RunGroup:
    """Runs that can be compared.

    Attributes:
        title: what is learned, over which links, and what tells it from other groups.
        runs: one for each algorithm and seed.
        shared: what they share, by key.
        notes: what a reader must know about the grouping.
    """

    title: str
    runs: Sequence[ShownRun]
    shared: Mapping[str, str]
    notes: Sequence[str] = ()


def grouped(runs: Sequence[ShownRun]) -> list[RunGroup]:
    """Runs in groups, in the order in which they were found.

    Example:
        >>> def run(algorithm, alpha, rate=0.05):
        ...     config = {"algorithm": {"name": algorithm}, "data": {"name": "d", "alpha": alpha},
        ...               "links": {"name": "l"}, "train": {"learning_rate": rate}, "seed": 0}
        ...     return ShownRun(Path(f"{algorithm}-{alpha}-{rate}"), config, "finished")
        >>> [(g.title, len(g.runs)) for g in grouped([run("fedavg", 0.1), run("fedpbc", 0.1, 0.1),
        ...                                           run("fedavg", 1)])]
        [('d · l · data.alpha=0.1', 2), ('d · l · data.alpha=1', 1)]
    """
    readable = [run for run in runs if run.config.get("links")]
    parts: list[tuple[dict[str, str], list[ShownRun]]] = []
    for members in _by(readable, lambda run: tuple(shared_options(run).items())):
        for part in _apart(members):
            shared = shared_options(part[0])
            parts.append((shared | _varied(part, members), part))
    titles = _titles([shared for shared, _ in parts])
    for run in runs:
        # A comparison knows what it has not begun yet; its other runs say to which group it goes.
        if run.state == "not begun":
            beside = [part for _, part in parts if _root(run) in map(_root, part)]
            if beside:
                beside[0].append(run)
    return [
        RunGroup(title, _once(part), shared, _notes(part))
        for title, (shared, part) in zip(titles, parts, strict=True)
    ]


def shared_options(run: ShownRun) -> dict[str, str]:
    """What must be the same in a comparison, by key, as text; files by what is in them."""
    flat = flattened({k: v for k, v in run.config.items() if k not in OWN})
    shared = {}
    for key, value in flat.items():
        if key in PLACES or key in RATES:
            continue
        named = key in FILES and isinstance(value, str)
        shared[key] = _file(run.path / value) if named else shown(value)
    return dict(sorted(shared.items()))


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= flattened(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def shown(value: Any) -> str:
    """A value as a title shows it, different for different values."""
    if isinstance(value, list) and len(value) > 4:
        mark = sha256(json.dumps(value).encode()).hexdigest()[:6]
        return f"{len(value)} values, {mark}"
    return value if isinstance(value, str) else json.dumps(value)


def _file(path: Path) -> str:
    try:
        return f"{path.name} {sha256(path.read_bytes()).hexdigest()[:6]}"
    except OSError:
        return path.name


def _by(runs: Iterable[ShownRun], key: Callable[[ShownRun], Hashable]) -> list[list[ShownRun]]:
    found: dict[Hashable, list[ShownRun]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return list(found.values())


def rates(run: ShownRun) -> tuple[str, ...]:
    """η_0 and η_g."""
    flat = flattened({"train": section(run.config, "train")})
    return tuple(shown(flat[key]) for key in RATES if key in flat)


def options(run: ShownRun) -> str:
    """What an algorithm was told, and which of its models are judged."""
    return json.dumps([section(run.config, "algorithm"), run.config.get("views")], sort_keys=True)


def made_in_python(run: ShownRun) -> bool:
    """Whether nobody but the program that made it knows its task."""
    return section(run.config, "task").get("name") == "python"


def _has_several(runs: Sequence[ShownRun], own: Callable[[ShownRun], Hashable]) -> bool:
    """Whether an algorithm has several of something."""
    return any(len({own(run) for run in part}) > 1 for part in _by(runs, lambda r: r.algorithm))


def _apart(runs: list[ShownRun]) -> list[list[ShownRun]]:
    """Split runs that share their options, where they are different all the same."""
    parts = _by(runs, rates) if _has_several(runs, rates) else [runs]
    parts = [smaller for part in parts for smaller in _by_variant(part)]
    for place in (_root, lambda run: run.path):
        parts = [
            smaller
            for part in parts
            for smaller in (_by(part, place) if _has_several_tasks(part) else [part])
        ]
    return parts


def _by_variant(runs: list[ShownRun]) -> list[list[ShownRun]]:
    """The variant of an algorithm that most runs have stays; each other one goes apart."""
    usual = {}
    for part in _by(runs, lambda run: run.algorithm):
        usual[part[0].algorithm] = Counter(map(options, part)).most_common(1)[0][0]

    def variant(run: ShownRun) -> tuple[str, str] | None:
        own = options(run)
        return None if own == usual[run.algorithm] else (run.algorithm, own)

    return _by(runs, variant)


def _has_several_tasks(runs: Sequence[ShownRun]) -> bool:
    """Whether runs made in Python with the same seed have different tasks or links."""
    if not made_in_python(runs[0]):
        return False

    def mark(run: ShownRun) -> tuple[str, bytes]:
        up = run.fleet.up
        return run.fleet.task, b"" if up is None else up.tobytes()

    return any(len({mark(run) for run in part}) > 1 for part in _by(runs, lambda run: run.seed))


def _root(run: ShownRun) -> Path:
    """The folder of the comparison that a run belongs to, if it is in one."""
    return run.path.parent.parent if run.path.name.startswith("seed-") else run.path.parent


def _varied(part: Sequence[ShownRun], members: Sequence[ShownRun]) -> dict[str, str]:
    """What tells a part of otherwise equal runs from the others."""
    if len(part) == len(members):
        return {}
    found = {}
    if _has_several(members, rates):
        found = dict(zip(RATES, rates(part[0]), strict=False))
    alike = [run for run in members if rates(run) == rates(part[0])] if found else members
    if _has_several(alike, options) and len({options(run) for run in part}) == 1:
        found |= flattened({part[0].algorithm: section(part[0].config, "algorithm")})
        found.pop(f"{part[0].algorithm}.name", None)
        found["views"] = ",".join(part[0].config.get("views") or ())
    if made_in_python(part[0]):
        found["folder"] = str(_root(part[0]) if len(part) > 1 else part[0].path)
    return {key: value if isinstance(value, str) else shown(value) for key, value in found.items()}


def _titles(groups: Sequence[Mapping[str, str]]) -> list[str]:
    """What is learned over which links; among equals, all that differs."""
    names = [_name(shared) for shared in groups]
    titles = []
    for name, shared in zip(names, groups, strict=True):
        equals = [other for n, other in zip(names, groups, strict=True) if n == name]
        keys = sorted({key for other in equals for key in other})
        differing = [k for k in keys if len({other.get(k) for other in equals}) > 1]
        own = [f"{k}={shared[k]}" for k in differing if k in shared]
        titles.append(" · ".join([name, *own]))
    return titles


def _name(shared: Mapping[str, str]) -> str:
    task = shared.get("task.name", "classification")
    what = shared.get("data.name", "?") if task == "classification" else task
    if task == "python":
        what = "a task made in Python"
    down = shared.get("downlink.name", "always")
    also = [f"downlink {down}"] if down != "always" else []
    return " · ".join([what, shared.get("links.name", "?"), *also])


WORTH = ("finished", "failed", "unfinished", "damaged", "not begun")


def _once(runs: Sequence[ShownRun]) -> list[ShownRun]:
    """One run for each algorithm and seed: of copies, the one that has come furthest."""
    kept = []
    for copies in _by(runs, lambda run: (run.algorithm, run.seed)):
        kept.append(min(copies, key=lambda run: (WORTH.index(run.state), -run.done)))
    order = in_order(run.algorithm for run in kept)
    return sorted(kept, key=lambda run: (order.index(run.algorithm), run.seed or 0))


def _notes(runs: Sequence[ShownRun]) -> list[str]:
    notes = []
    copies = len(runs) - len(_once(runs))
    if copies:
        notes.append(f"{copies} of the runs are there more than once; each is counted once.")
    own = {run.algorithm: rates(run) for run in runs if rates(run)}
    if len(set(own.values())) > 1:
        each = "; ".join(f"{name} η_0 = {r[0]}, η_g = {r[-1]}" for name, r in own.items())
        notes.append(f"learning rates differ between algorithms: {each}.")
    return notes
