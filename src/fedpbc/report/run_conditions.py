"""What the runs of a group were run on, where that differs."""

from __future__ import annotations

from collections.abc import Sequence

from fedpbc.experiments.conditions import LINKS, Condition
from fedpbc.report.load import LoadedRun
from fedpbc.report.run_names import is_ceiling_run
from fedpbc.report.run_options import shared_options

__all__ = ["conditions_of"]


def conditions_of(runs: Sequence[LoadedRun]) -> dict[LoadedRun, Condition]:
    """Return the condition of each run: the options of data, model and links that differ.

    How clients train may differ between the rows of one comparison.
    """
    options = {run: shared_options(run) for run in runs}
    compared = [options[run] for run in runs if not is_ceiling_run(run) and run.config]
    keys = sorted({key for each in compared for key in each if not key.startswith("train.")})
    differing = [key for key in keys if len({each.get(key) for each in compared}) > 1]
    conditions = {}
    for run in runs:
        texts: dict[bool, list[str]] = {True: [], False: []}
        for key in differing:
            if key in options[run]:
                name = key.removesuffix(".name")
                texts[key.partition(".")[0] in LINKS].append(f"{name}={options[run][key]}")
        links = "" if is_ceiling_run(run) else ", ".join(texts[True])
        conditions[run] = Condition(", ".join(texts[False]), links)
    return conditions
