"""Run several algorithms on the same links: :func:`compare`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le

from fedpbc.algorithms import PAPER_ALGORITHMS, Algorithm, find_algorithm, register_algorithm
from fedpbc.errors import InputError
from fedpbc.experiments.entries import Entry, merged
from fedpbc.experiments.seeds import DEFAULT_SEEDS, seed_list
from fedpbc.experiments.setting_names import SettingNames
from fedpbc.experiments.swept_entries import comparison_entries
from fedpbc.experiments.tracking import check_trackers, checked_names
from fedpbc.limits import MAX_WORKERS, check_path
from fedpbc.options import check_type, unknown_keyword
from fedpbc.python.compared_runs import ComparedRun, run_all
from fedpbc.python.comparison import Comparison
from fedpbc.python.simulate import simulate
from fedpbc.tasks import Task

__all__ = ["compare"]


def compare(
    make_task: Callable[[int], Task],
    algorithms: Sequence[Any] | Mapping[str, Any] = PAPER_ALGORITHMS,
    seeds: Sequence[int] | str = DEFAULT_SEEDS,
    *,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    ceiling: bool = False,
    out: Path | str | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Comparison:
    """Run algorithms × seeds on the same links, on all cores where that pays.

    Args:
        make_task: returns the task for a seed.
        algorithms: names, specifications (``"fedau:cutoff=5"``), tables or classes. A table has a
            ``name``, options of the algorithm, options of :func:`fedpbc.simulate` for this entry
            alone, and a ``label`` for its rows; without one, those of the same algorithm are
            labelled by what differs. Or tables by label.
        seeds: one run of each algorithm for each: numbers, or ranges such as ``"0-4"``.
        sweep: each algorithm runs once for each combination of these values: of options of the
            algorithms or of :func:`fedpbc.simulate`, such as ``{"links.p": [0.1, 0.5]}``.
        ceiling: also FedAvg with every link up, under the label ``ceiling``.
        out: a folder for the runs, each in LABEL/seed-K; finished ones are kept, so a comparison
            can be continued, and widened by more algorithms or seeds.
        jobs: runs side by side, in processes of their own; None: one per core if the first run
            shows that the others would take long, else one after another here. The results are the
            same to the bit.
        progress: whether to show a progress bar; None: in a notebook and in a terminal, with
            records of the logger ``fedpbc.progress`` elsewhere.
        options: of :func:`fedpbc.simulate`.

    Example:
        >>> from fedpbc import Quadratic
        >>> task = lambda seed: Quadratic([[0.0], [100.0]], seed=seed)
        >>> result = compare(task, ["fedpbc", "fedavg"], links={"name": "bernoulli", "p": 0.5},
        ...                  rounds=20)
        >>> len(result.rows())
        7
        >>> tables = [{"name": "fedau", "cutoff": 5}, {"name": "fedau", "cutoff": 50}]
        >>> compare(task, tables, "0-1", links={"name": "bernoulli", "p": 0.5}, rounds=5).labels
        ['fedau:cutoff=5', 'fedau:cutoff=50']
    """
    if not callable(make_task):
        raise InputError("make_task", make_task, "a function from a seed to a task")
    known = inspect.signature(simulate).parameters
    for name in options:
        if name not in known:
            raise unknown_keyword(compare, name, [*inspect.signature(compare).parameters, *known])
    numbers = seed_list(seeds)
    entries = _entries(algorithms, {} if sweep is None else sweep, ceiling)
    if out is not None:
        check_path(out, "out")
    check_type("jobs", jobs, Annotated[int, Ge(1), Le(MAX_WORKERS)] | None)
    check_type("progress", progress, bool | None)
    if jobs not in (None, 1) and options.get("on_round") is not None:
        raise InputError("jobs", jobs, "left out: on_round is called in this process")
    # Once, before anything begins: a server that goes away later must not stop the comparison.
    check_trackers(checked_names(options.get("track")))
    # Where some algorithm has reports, those that have none may be compared with it.
    some_reports = any(find_algorithm(entry.algorithm).client_models for entry in entries)
    runs = []
    for entry in entries:
        of_run = {**options, **merged(options, entry.settings)}
        if some_reports and not find_algorithm(entry.algorithm).client_models:
            of_run.pop("reported", None)
        for seed in numbers:
            folder = None if out is None else Path(out) / entry.label / f"seed-{seed}"
            group = None if out is None else Path(out)
            runs.append(ComparedRun(entry, seed, folder, {"group": group, **of_run}))
    ended = run_all(make_task, runs, jobs, progress)
    records = [(run.entry.label, each.record) for run, each in zip(runs, ended, strict=True)]
    return Comparison(
        [each.result for each in ended],
        folder=None if out is None else Path(out),
        records=[(label, record) for label, record in records if record is not None],
    )


_OF_ENTRIES = SettingNames(
    ("links", "downlink", "aggregation"),
    {
        name: name
        for name in inspect.signature(simulate).parameters
        if name
        not in ("task", "algorithm", "seed", "out", "on_round", "track", "group", "progress")
    },
)
"""Options of :func:`simulate` that may differ between the entries of a comparison."""


def _entries(algorithms: Any, sweep: Any, ceiling: bool) -> list[Entry]:
    """The entries of a comparison, swept, with their ceilings last."""
    expected = "a list of names, tables or classes"
    if isinstance(algorithms, str) or not isinstance(algorithms, Sequence | Mapping):
        raise InputError("algorithms", algorithms, expected)
    if not algorithms:
        raise InputError("algorithms", algorithms, expected)
    given: Any = algorithms
    if not isinstance(algorithms, Mapping):
        given = [
            str(register_algorithm(each).name)
            if isinstance(each, type) and issubclass(each, Algorithm)
            else each
            for each in algorithms
        ]
    return comparison_entries(given, sweep, ceiling, _OF_ENTRIES)
