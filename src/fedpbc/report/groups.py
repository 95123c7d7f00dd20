"""Group the runs that can be compared: those that differ in algorithm, seed and one option.

Runs of one comparison's folder belong together, whatever they differ in; a ceiling joins its
comparison. Other runs are overlaid if they differ in one option, and any further difference is
a group of its own. Learning rates may differ between algorithms, as the paper tunes them for each;
a note then lists them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from fedpbc.experiments.configuration import has_own_task
from fedpbc.report.load import LoadedRun, section
from fedpbc.report.overlay import Cell, common_options, joined_cells
from fedpbc.report.run_names import (
    comparison_label,
    is_ceiling_run,
    is_compared,
    name_runs,
    root_of,
)
from fedpbc.report.run_options import (
    LEARNING_RATES,
    flatten,
    learning_rates,
    option_text,
    shared_options,
    telling_options,
    variant,
    views_text,
    without_links,
)
from fedpbc.report.style import in_registry_order

__all__ = ["LEARNING_RATES", "RunGroup", "flatten", "group_runs"]

BY_ALGORITHM = attrgetter("algorithm")
STATES = ("finished", "failed", "unfinished", "damaged", "not begun")
"""Of copies of a run, the one in the earliest of these states is shown."""


@dataclass(frozen=True, eq=False)
class RunGroup:
    """Runs that can be compared.

    Attributes:
        title: data set or task, links, and what tells the group from others.
        runs: one for each name and seed.
        shared: the options that all runs share, by dotted key; those of a ceiling do not count.
        notes: what a reader must know about the grouping.
        names: of the runs' rows and curves; by default the algorithms'.
    """

    title: str
    runs: Sequence[LoadedRun]
    shared: Mapping[str, str]
    notes: Sequence[str] = ()
    names: Mapping[LoadedRun, str] = field(default_factory=dict)

    def label_of(self, run: LoadedRun) -> str:
        """Return the name of a run's rows and curves."""
        return self.names.get(run, run.algorithm)


def group_runs(runs: Sequence[LoadedRun]) -> list[RunGroup]:
    """Group runs; groups are in the order of their first runs."""
    readable = [run for run in runs if run.config.get("links")]
    roots = {root_of(run) for run in readable if not is_ceiling_run(run)}
    ceilings = [run for run in readable if is_ceiling_run(run) and root_of(run) in roots]
    rest = [run for run in readable if run not in ceilings]
    cells = [
        (shared_options(members[0]), members)
        for members in _group_by(rest, lambda run: tuple(shared_options(run).items()))
    ]
    parts: list[Cell] = []
    for joined in joined_cells(cells):
        members = [run for _, runs in joined for run in runs]
        options = common_options([options for options, _ in joined])
        for part in _split(members, overlaid=len(joined) > 1):
            parts.append((options | _distinct_options(part, members), part))
    titles = _titles([options for options, _ in parts])
    _add_ceilings(parts, ceilings)
    for run in runs:
        # A run that has not begun has no configuration: it joins its comparison's other runs.
        if run.state == "not begun":
            matching = [part for _, part in parts if root_of(run) in map(root_of, part)]
            if matching:
                matching[0].append(run)
    return [
        _group(title, options, part) for title, (options, part) in zip(titles, parts, strict=True)
    ]


def _group(title: str, options: Mapping[str, str], runs: Sequence[LoadedRun]) -> RunGroup:
    names = name_runs(runs, telling_options(runs), {*LEARNING_RATES})
    unique = _without_copies(runs, names)
    return RunGroup(title, unique, options, _notes(runs, unique, names), names)


def _add_ceilings(parts: Sequence[Cell], ceilings: Sequence[LoadedRun]) -> None:
    """Add each ceiling to the runs of its comparison that differ from it in their links only."""
    for ceiling in ceilings:
        ceiling_options = without_links(ceiling)
        beside = [part for _, part in parts if any(root_of(r) == root_of(ceiling) for r in part)]
        exact = [
            part for part in beside if any(without_links(run) == ceiling_options for run in part)
        ]
        for part in exact or beside[:1]:
            part.append(ceiling)


def _group_by(
    runs: Iterable[LoadedRun], key: Callable[[LoadedRun], Hashable]
) -> list[list[LoadedRun]]:
    groups: dict[Hashable, list[LoadedRun]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.values())


def _has_several(runs: Sequence[LoadedRun], key: Callable[[LoadedRun], Hashable]) -> bool:
    """Return whether the runs of one algorithm differ in something."""
    return any(len(set(map(key, part))) > 1 for part in _group_by(runs, BY_ALGORITHM))


def _split(runs: list[LoadedRun], *, overlaid: bool) -> list[list[LoadedRun]]:
    """Split runs by learning rate, variant and Python task.

    Runs of one comparison stay together; so do runs of which an algorithm has several values of
    one option, unless they are ``overlaid`` for another one already.
    """
    parts = [runs]
    if not _is_one_comparison(runs) and (overlaid or len(_several_options(runs)) > 1):
        if _has_several(runs, learning_rates):
            parts = _group_by(runs, learning_rates)
        parts = [smaller for part in parts for smaller in _split_variants(part)]
    elif _has_several(runs, views_text) and not _is_one_comparison(runs):
        parts = _split_variants(runs)
    for directory in (root_of, lambda run: run.path):
        parts = [
            smaller
            for part in parts
            for smaller in (_group_by(part, directory) if _has_several_tasks(part) else [part])
        ]
    return parts


def _is_one_comparison(runs: Sequence[LoadedRun]) -> bool:
    return len({root_of(run) for run in runs}) == 1 and all(map(is_compared, runs))


def _several_options(runs: Sequence[LoadedRun]) -> set[str]:
    """Return the options of which some algorithm has several values, learning rates included."""
    several: set[str] = set()
    for part in _group_by(runs, BY_ALGORITHM):
        options = list(telling_options(part).values())
        several |= {k for o in options for k in o if len({x.get(k) for x in options}) > 1}
    return several


def _split_variants(runs: list[LoadedRun]) -> list[list[LoadedRun]]:
    """Keep each algorithm's most frequent variant together; every other one is a part."""
    usual = {
        part[0].algorithm: Counter(map(variant, part)).most_common(1)[0][0]
        for part in _group_by(runs, BY_ALGORITHM)
    }

    def unusual_variant(run: LoadedRun) -> tuple[str, str] | None:
        run_variant = variant(run)
        return None if run_variant == usual[run.algorithm] else (run.algorithm, run_variant)

    return _group_by(runs, unusual_variant)


def _has_several_tasks(runs: Sequence[LoadedRun]) -> bool:
    """Return whether runs of own tasks with the same seed have different tasks or links."""
    if not has_own_task(runs[0].config):
        return False

    def identity(run: LoadedRun) -> tuple[str, bytes]:
        up = run.fleet.up
        return run.fleet.task, b"" if up is None else up.tobytes()

    def same_links(run: LoadedRun) -> Hashable:
        links = (section(run.config, name) for name in ("links", "downlink"))
        return run.seed, run.rounds, json.dumps(list(links), sort_keys=True, default=str)

    return any(len(set(map(identity, part))) > 1 for part in _group_by(runs, same_links))


def _distinct_options(part: Sequence[LoadedRun], candidates: Sequence[LoadedRun]) -> dict[str, str]:
    """Return what tells a part from the other runs that it was among."""
    if len(part) == len(candidates):
        return {}
    first, options = part[0], {}
    if _has_several(candidates, learning_rates):
        options = dict(zip(LEARNING_RATES, learning_rates(first), strict=False))
        candidates = [r for r in candidates if learning_rates(r) == learning_rates(first)]
    if _has_several(candidates, variant) and len(set(map(variant, part))) == 1:
        algorithm_options = flatten({first.algorithm: section(first.config, "algorithm")})
        algorithm_options.pop(f"{first.algorithm}.name", None)
        options |= {key: option_text(value) for key, value in algorithm_options.items()}
        views = first.config.get("views")
        options["views"] = ",".join(map(str, views)) if isinstance(views, list) else ""
    if has_own_task(first.config):
        options["folder"] = str(root_of(first) if len(part) > 1 else first.path)
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
    subject = shared.get("data.name", "several data sets") if task == "classification" else task
    subject = {"python": "a task made in Python", "app": "a custom model and data"}.get(
        task, subject
    )
    downlink = shared.get("downlink.name", "always" if "links.name" in shared else "several")
    parts = [subject, shared.get("links.name", "several links")]
    return " · ".join(parts if downlink == "always" else [*parts, f"downlink {downlink}"])


def _without_copies(runs: Sequence[LoadedRun], names: Mapping[LoadedRun, str]) -> list[LoadedRun]:
    """Return one run for each name and seed: of copies, the one that is furthest."""
    unique = [
        min(copies, key=lambda run: (STATES.index(run.state), -run.done))
        for copies in _group_by(runs, lambda run: (names[run], run.seed))
    ]
    algorithms = in_registry_order(run.algorithm for run in unique)
    listed = list(dict.fromkeys(names.values()))

    def sort_key(run: LoadedRun) -> tuple[bool, int, int, int]:
        label = comparison_label(run)
        order = algorithms.index(run.algorithm)
        if label is not None and label in run.planned_beside:
            order = list(run.planned_beside).index(label)
        return is_ceiling_run(run), order, listed.index(names[run]), run.seed or 0

    return sorted(unique, key=sort_key)


def _notes(
    runs: Sequence[LoadedRun], unique: Sequence[LoadedRun], names: Mapping[LoadedRun, str]
) -> list[str]:
    notes = []
    copies = len(runs) - len(unique)
    if copies:
        notes.append(f"{copies} of the runs are copies of others; each is counted once.")
    without_ceilings = [run for run in unique if not is_ceiling_run(run) and learning_rates(run)]
    several = _has_several(without_ceilings, learning_rates)
    rates = {
        names[run] if several else run.algorithm: learning_rates(run) for run in without_ceilings
    }
    if len(set(rates.values())) > 1 and not all("learning_rate=" in name for name in rates):
        listed = "; ".join(f"{name} η_0 = {r[0]}, η_g = {r[-1]}" for name, r in rates.items())
        notes.append(f"learning rates differ between algorithms: {listed}.")
    if len({json.dumps(_drawn(run), sort_keys=True) for run in without_ceilings}) > 1:
        notes.append(f"links and data of the clients are drawn for {names[without_ceilings[0]]}.")
    return notes


def _drawn(run: LoadedRun) -> dict[str, str]:
    """Return the options that the charts of links and of clients' data depend on."""
    sections = ("links.", "data.", "task.")
    options = shared_options(run)
    return {k: v for k, v in options.items() if k.startswith(sections) or k == "clients"}
