"""fedpbc compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedpbc.cli.options import (
    RUN_OPTIONS,
    ConfigFile,
    Jobs,
    Json,
    Overwrite,
    Set,
    Trust,
    config_options,
    default,
)
from fedpbc.cli.terminal import say_json
from fedpbc.cli.workspace import begin_work, free_folder
from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.overrides import configuration_values, split_items

if TYPE_CHECKING:
    from fedpbc.experiments.comparison_directory import ComparisonDirectory, ComparisonPlan

__all__ = ["compare", "run_comparison"]

SHARED_OPTIONS = [name for name in RUN_OPTIONS if name not in ("algorithm", "seed")]


@config_options(*SHARED_OPTIONS)
def compare(
    options: dict[str, Any],
    config: ConfigFile = None,
    algorithms: Annotated[
        str | None, default("Names, separated by commas", "the paper's seven")
    ] = None,
    seeds: Annotated[str | None, default("Numbers, separated by commas", "0,1,2")] = None,
    trace: Path | None = None,
    set_: Set = None,
    out: Annotated[Path | None, default("Folder", "runs/compare")] = None,
    jobs: Jobs = None,
    overwrite: Overwrite = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Compare several algorithms × seeds on the same links; ends with a table and a plot."""
    options["algorithms"] = None if algorithms is None else split_items(algorithms)
    options["seeds"] = seeds
    values = configuration_values(config, options, set_, trace=trace, trust=trust)
    from fedpbc.experiments.comparison_directory import ComparisonDirectory, plan_comparison

    plan = plan_comparison(values)
    directory = ComparisonDirectory(out or free_folder(Path("runs"), "compare"))
    run_comparison(directory, plan, jobs, as_json, overwrite)


def run_comparison(
    directory: ComparisonDirectory,
    plan: ComparisonPlan,
    jobs: int | None,
    as_json: bool,
    overwrite: bool = False,
) -> None:
    """Run a comparison with a progress display, and print the results."""
    from fedpbc.algorithms import find_algorithm
    from fedpbc.cli.progress import GridDisplay
    from fedpbc.cli.results import show_comparison
    from fedpbc.paper.catalog import ProgressRow
    from fedpbc.parallel import usable_cores
    from fedpbc.report.page import check_report_path
    from fedpbc.report.write import write_comparison

    if jobs is not None and jobs < 1:
        raise InputError("jobs", jobs, "at least 1")
    if directory.path.is_dir():
        # Checked now, not after all runs.
        check_report_path(directory.report_path)
    cells = directory.cells(plan)
    count = min(jobs or usable_cores(), len(cells))
    rounds = {label: plan.checked(label).general.rounds for label in plan.entries}
    # Where everyone trains, a round takes about ten times as long.
    weights = {
        label: 10 if find_algorithm(entry.algorithm).everyone_trains else 1
        for label, entry in plan.entries.items()
    }
    rows = [
        ProgressRow(f"{label} seed {seed}", rounds[label], weights[label])
        for label, seed, _ in cells
    ]
    with directory.opened(plan, overwrite=overwrite):
        begin_work(directory.path)
        with GridDisplay(rows, directory.path, quiet=as_json) as display:
            comparison = directory.run(plan, count, display.on_progress)
        write_comparison(comparison, directory, plan)
    if as_json:
        say_json(comparison.as_dict())
    else:
        show_comparison(comparison, directory)
    if comparison.failed:
        failed = comparison.failed
        raise FedpbcError(
            f"{len(failed)} of {len(cells)} runs failed, such as {failed[0].label} with seed "
            f"{failed[0].seed}: {failed[0].failure}"
        )
