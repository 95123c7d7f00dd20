"""fedpbc compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
)
from fedpbc.cli.terminal import say_json
from fedpbc.cli.workspace import begin_work, free_folder
from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.overrides import configuration_values, split_list

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
    baseline: Baseline = None,
    out: Annotated[Path | None, default("Folder", "runs/compare")] = None,
    jobs: Jobs = None,
    overwrite: Overwrite = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Compare several algorithms × seeds on the same links; ends with a table and a plot."""
    options["algorithms"] = split_list("algorithms", algorithms)
    options["seeds"] = split_list("seeds", seeds, int)
    values = configuration_values(config, options, set_, trace=trace, trust=trust)
    from fedpbc.experiments.comparison_directory import ComparisonDirectory, plan_comparison

    plan = plan_comparison(values)
    directory = ComparisonDirectory(out or free_folder(Path("runs"), "compare"))
    run_comparison(directory, plan, jobs, as_json, overwrite, baseline)


def run_comparison(
    directory: ComparisonDirectory,
    plan: ComparisonPlan,
    jobs: int | None,
    as_json: bool,
    overwrite: bool = False,
    baseline: str | None = None,
) -> None:
    """Run a comparison with a progress display, and print the results."""
    from fedpbc.algorithms import find_algorithm
    from fedpbc.cli.progress import GridDisplay
    from fedpbc.cli.results import show_comparison
    from fedpbc.experiments.paired import check_baseline
    from fedpbc.paper.catalog import ProgressRow
    from fedpbc.parallel import usable_cores
    from fedpbc.report.page import check_report_path
    from fedpbc.report.write import write_comparison

    check_baseline(baseline, list(plan.algorithms))
    if jobs is not None and jobs < 1:
        raise InputError("jobs", jobs, "at least 1")
    if directory.path.is_dir():
        # Checked now, not after all runs.
        check_report_path(directory.report_path)
    cells = directory.cells(plan)
    count = min(jobs or usable_cores(), len(cells))
    rounds = plan.first().general.rounds
    # Where everyone trains, a round takes about ten times as long.
    rows = [
        ProgressRow(f"{name} seed {k}", rounds, 10 if find_algorithm(name).everyone_trains else 1)
        for name, k, _ in cells
    ]
    with directory.opened(plan, overwrite=overwrite):
        begin_work(directory.path)
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
            f"{len(failed)} of {len(cells)} runs failed, such as {failed[0].algorithm} with seed "
            f"{failed[0].seed}: {failed[0].failure}"
        )
