"""What tells runs on disk apart: the labels of their comparison, or the options that differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from fedpbc.experiments.conditions import is_ceiling
from fedpbc.experiments.configuration import is_python_task
from fedpbc.experiments.entries import value_text
from fedpbc.limits import parse_json
from fedpbc.report.curve_names import curve_names
from fedpbc.report.load import LoadedRun, section

__all__ = ["comparison_label", "is_ceiling_run", "is_compared", "name_runs", "root_of"]

NAMES_FIRST = (
    "task.name",
    "data.name",
    "model.name",
    "links.name",
    "downlink.name",
    "aggregation.name",
)
"""A scheme's name says more than the options that only it has."""
SHORT = {"data.name": "data", "model.name": "model", "links.name": "links"}
SHORT |= {"aggregation.name": "aggregation"}
SHORT |= {"downlink.name": "downlink", "train.learning_rate": "learning_rate"}
SHORT |= {"train.global_learning_rate": "global_learning_rate"}


def root_of(run: LoadedRun) -> Path:
    """Return the directory of the comparison that a run belongs to, if it is in one."""
    return run.path.parent.parent if run.path.name.startswith("seed-") else run.path.parent


def is_ceiling_run(run: LoadedRun) -> bool:
    """Whether a run is the ceiling of a comparison: every link up."""
    of_comparison = run.path.name.startswith("seed-") and is_ceiling(run.path.parent.name)
    return of_comparison and section(run.config, "links").get("name") == "always"


def comparison_label(run: LoadedRun) -> str | None:
    """Return the label that a run has in its comparison's plan; None if it is in none."""
    label = run.path.parent.name
    planned = run.path.name.startswith("seed-") and label in run.planned_beside
    return label if planned else None


def is_compared(run: LoadedRun) -> bool:
    """Whether a run is one of a comparison; those from Python have no plan, but labels."""
    if comparison_label(run) is not None:
        return True
    label = run.path.parent.name
    labelled = label == run.algorithm or label.startswith(f"{run.algorithm}:") or is_ceiling(label)
    return is_python_task(run.config) and run.path.name.startswith("seed-") and labelled


def name_runs(
    runs: Sequence[LoadedRun],
    options: Mapping[LoadedRun, Mapping[str, str]],
    tuned: Collection[str],
) -> dict[LoadedRun, str]:
    """Return the name of each run: runs of different names differ in more than the seed.

    ``options`` are what may tell runs apart, as text by dotted key; an algorithm's own have no dot.
    Those in ``tuned`` may differ between algorithms without being told.
    """
    labels = {run: comparison_label(run) for run in runs}
    if len({root_of(run) for run in runs}) > 1 or None in labels.values():
        labels = dict(_labels_by_options(runs, options, tuned))
    names = curve_names({labels[run] or run.algorithm: run.algorithm for run in runs})
    return {run: names[labels[run] or run.algorithm] for run in runs}


def _labels_by_options(
    runs: Sequence[LoadedRun],
    options: Mapping[LoadedRun, Mapping[str, str]],
    tuned: Collection[str],
) -> dict[LoadedRun, str]:
    """Return labels of the fewest options that tell runs apart."""
    without_ceilings = [run for run in runs if run.config.get("links") and not is_ceiling_run(run)]
    heads = {run: _head(run) for run in runs}
    told: list[str] = []
    keys = dict.fromkeys(key for run in without_ceilings for key in options[run])
    for key in sorted(keys, key=lambda key: (key not in NAMES_FIRST, "." in key)):
        # What all algorithms share is always told if it differs.
        by_head = key in tuned or "." not in key
        classes: dict[tuple[str | None, ...], set[str | None]] = {}
        for run in without_ceilings:
            known = [options[run].get(k) for k in told]
            classes.setdefault((heads[run] if by_head else None, *known), set()).add(
                options[run].get(key)
            )
        if any(len(values) > 1 for values in classes.values()):
            told.append(key)
    labels = {}
    for run in runs:
        label_keys = [
            key for key in told if _distinguishes(key, run, without_ceilings, options, tuned)
        ]
        parts = [f"{SHORT.get(key, key)}={_text(options[run][key])}" for key in label_keys]
        labels[run] = ":".join([heads[run], *parts])
    return labels


def _distinguishes(
    key: str,
    run: LoadedRun,
    without_ceilings: Sequence[LoadedRun],
    options: Mapping[LoadedRun, Mapping[str, str]],
    tuned: Collection[str],
) -> bool:
    """Whether an option that differs somewhere is part of this run's name."""
    if key not in options[run] or not run.config.get("links"):
        return False
    if is_ceiling_run(run):
        return not key.startswith(("links.", "downlink.")) and key not in tuned
    if key not in tuned and "." in key:
        return True
    # Of an algorithm's own, only what differs between its own runs.
    same = [other for other in without_ceilings if other.algorithm == run.algorithm]
    return len({options[other].get(key) for other in same}) > 1


def _head(run: LoadedRun) -> str:
    """Return what an entry's label begins with: a label of its own, or the algorithm."""
    if is_ceiling_run(run):
        return "ceiling"
    label = comparison_label(run)
    generated = label is None or label.partition(":")[0] == run.algorithm
    return run.algorithm if generated or label is None else label


def _text(value: str) -> str:
    """Return a number as it is in labels, and other values as they are."""
    try:
        number = parse_json(value)
    except ValueError:
        return value
    return value_text(number) if isinstance(number, float) else value
