"""fedpbc compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpbc.cli.options import (
    RUN_OPTIONS,
    Baseline,
    ConfigFile,
    Jobs,
    Json,
    Overwrite,
    Set,
    Trust,
    config_options,
    default,
    names_of,
)
from fedpbc.cli.terminal import say, say_json
from fedpbc.cli.workspace import begin_work, free_folder
from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.overrides import configuration_values, split_items
from fedpbc.text import shell_quoted

if TYPE_CHECKING:
    from fedpbc.experiments.comparison_directory import ComparisonDirectory, ComparisonPlan
    from fedpbc.paper.catalog import ProgressRow

__all__ = ["compare", "run_comparison"]

SHARED_OPTIONS = [name for name in RUN_OPTIONS if name not in ("algorithm", "seed")]


Sweep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUES",
        help="Each algorithm once per value: data.alpha=0.1,0.5,1; repeatable: all combinations.",
    ),
]
Ceiling = Annotated[
    bool,
    typer.Option("--ceiling", help="Also run FedAvg with every link up, as the upper reference."),
]


@config_options(*SHARED_OPTIONS)
def compare(
    options: dict[str, Any],
    config: ConfigFile = None,
    algorithms: Annotated[
        str | None,
        default(
            "Names, separated by commas, with settings after colons: fedpbc,fedau:cutoff=5",
            "the paper's seven",
            names_of("algorithms"),
        ),
    ] = None,
    seeds: Annotated[str | None, default("Seeds and ranges of seeds: 0-4,7", "0-2")] = None,
    sweep: Sweep = None,
    ceiling: Ceiling = False,
    trace: Path | None = None,
    set_: Set = None,
    baseline: Baseline = None,
    out: Annotated[
        Path | None, default("Folder; one with a comparison is widened", "runs/compare")
    ] = None,
    jobs: Jobs = None,
    overwrite: Overwrite = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Compare algorithms over several seeds on the same links: tables, a verdict, a page."""
    options["algorithms"] = None if algorithms is None else split_items(algorithms)
    options["seeds"] = seeds
    options["sweep"] = sweep
    options["ceiling"] = ceiling or None
    from fedpbc.experiments.algorithm_section import check_assigned
    from fedpbc.experiments.comparison_directory import ComparisonDirectory, plan_comparison

    directory = ComparisonDirectory(out or free_folder(Path("runs"), "compare"))
    if config is None and not overwrite and directory.holds_comparison:
        # What is not given is as in the folder.
        config = directory.plan_path
    values = configuration_values(config, options, set_, trace=trace, trust=trust)
    plan = plan_comparison(values)
    chosen = {"seed": "--seeds says which seeds"} if seeds is not None else {}
    check_assigned(set_, values, [*plan.entries.values()], options, chosen)
    run_comparison(directory, plan, jobs, as_json, overwrite, baseline)


def run_comparison(
    directory: ComparisonDirectory,
    requested: ComparisonPlan,
    jobs: int | None,
    as_json: bool,
    overwrite: bool = False,
    baseline: str | None = None,
) -> None:
    """Run a comparison with a progress display, and print the results."""
    from fedpbc.cli.progress import GridDisplay
    from fedpbc.cli.results import show_comparison
    from fedpbc.experiments.comparison import names_for
    from fedpbc.experiments.paired import check_baseline
    from fedpbc.experiments.widening import describe_widening
    from fedpbc.parallel import usable_cores
    from fedpbc.report.page import check_report_path
    from fedpbc.report.write import write_comparison

    labels, seeds = directory.planned()
    names = [name for e in requested.entries.values() for name in names_for(e.label, e.algorithm)]
    # What the folder holds already is compared, too.
    check_baseline(baseline, list(dict.fromkeys([*names, *([] if overwrite else labels)])))
    if jobs is not None and jobs < 1:
        raise InputError("jobs", jobs, "at least 1")
    if directory.path.is_dir():
        # Checked now, not after all runs.
        check_report_path(directory.report_path)
    with directory.opened(requested, overwrite=overwrite) as plan:
        begin_work(directory.path)
        change = describe_widening(labels, seeds, requested, plan)
        if labels and change and not overwrite and not as_json:
            say(f"{shell_quoted(directory.path)} holds this comparison: {change}")
        rows = progress_rows(directory, plan)
        count = min(jobs or usable_cores(), len(rows))
        with GridDisplay(rows, directory.path, quiet=as_json) as display:
            comparison = directory.run(plan, count, display.on_progress)
        write_comparison(comparison, directory, plan, baseline)
    if as_json:
        say_json(comparison.as_dict(baseline))
    else:
        show_comparison(comparison, directory, baseline)
    if comparison.failed:
        failed = comparison.failed
        raise FedpbcError(
            f"{len(failed)} of {len(rows)} runs failed, such as {failed[0].label} with seed "
            f"{failed[0].seed}: {failed[0].failure}"
        )


def progress_rows(directory: ComparisonDirectory, plan: ComparisonPlan) -> list[ProgressRow]:
    """A row of the progress display for each run; those that are finished are done."""
    from fedpbc.experiments.run_directory import RunDirectory
    from fedpbc.experiments.sweep import everyone_trains, round_weight
    from fedpbc.paper.catalog import ProgressRow

    rounds = {label: plan.checked(label).general.rounds for label in plan.entries}
    rows = []
    for label, seed, cell in directory.cells(plan):
        weight = round_weight(everyone_trains(label, plan.algorithm_of(label)))
        done = rounds[label] if RunDirectory(cell.path).finished else 0
        rows.append(ProgressRow(f"{label} seed {seed}", rounds[label], weight, done))
    return rows
