"""fedpbc compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedpbc.cli.options import (
    BatchSize,
    Clients,
    ConfigFile,
    Data,
    DataDir,
    Device,
    Downlink,
    Engine,
    EvaluateEvery,
    GlobalLearningRate,
    Jobs,
    Json,
    LearningRate,
    Links,
    LocalSteps,
    Model,
    Overwrite,
    Plugin,
    RayAddress,
    Reported,
    Rounds,
    Set,
    Trace,
    Track,
    Views,
    Workers,
    default,
)
from fedpbc.cli.workspace import free_folder, working_in
from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.overrides import gathered

if TYPE_CHECKING:
    from fedpbc.experiments.comparison_directory import ComparisonDirectory, ComparisonPlan

__all__ = ["compare", "run_comparison"]


def compare(
    config: ConfigFile = None,
    algorithms: Annotated[
        str | None, default("Names, separated by commas", "the paper's seven")
    ] = None,
    seeds: Annotated[str | None, default("Numbers, separated by commas", "0,1,2")] = None,
    links: Links = None,
    trace: Trace = None,
    downlink: Downlink = None,
    data: Data = None,
    data_dir: DataDir = None,
    model: Model = None,
    rounds: Rounds = None,
    clients: Clients = None,
    learning_rate: LearningRate = None,
    global_learning_rate: GlobalLearningRate = None,
    local_steps: LocalSteps = None,
    batch_size: BatchSize = None,
    engine: Engine = None,
    workers: Workers = None,
    ray_address: RayAddress = None,
    device: Device = None,
    views: Views = None,
    reported: Reported = None,
    evaluate_every: EvaluateEvery = None,
    plugin: Plugin = None,
    track: Track = None,
    set_: Set = None,
    out: Annotated[Path | None, default("Folder", "runs/compare")] = None,
    jobs: Jobs = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Compare several algorithms × seeds on the same links; ends with a table and a plot."""
    given = gathered(config, set_, locals())
    from fedpbc.experiments.comparison_directory import ComparisonDirectory, plan_comparison

    plan = plan_comparison(given)
    folder = ComparisonDirectory(out or free_folder(Path("runs"), "compare"))
    run_comparison(folder, plan, jobs, as_json, overwrite)


def run_comparison(
    folder: ComparisonDirectory,
    plan: ComparisonPlan,
    jobs: int | None,
    as_json: bool,
    overwrite: bool = False,
) -> None:
    """Run a comparison with a progress display, and show what came of it."""
    from fedpbc.algorithms import find_algorithm
    from fedpbc.cli.display import GridDisplay, GridRow, show_comparison
    from fedpbc.parallel import usable_cores
    from fedpbc.report.page import check_report_path
    from fedpbc.report.write import write_comparison

    if jobs is not None and jobs < 1:
        raise InputError("jobs", jobs, "at least 1")
    if folder.path.is_dir():
        # Found out now, and not when everything has been run.
        check_report_path(folder.report_path)
    cells = folder.cells(plan)
    count = min(jobs or usable_cores(), len(cells))
    rounds = plan.first().general.rounds
    # Where everyone trains a round takes about ten times as long.
    rows = [
        GridRow(f"{name} seed {k}", rounds, 10 if find_algorithm(name).everyone_trains else 1)
        for name, k, _ in cells
    ]
    with folder.opened(plan, overwrite=overwrite):
        working_in(folder.path)
        with GridDisplay(rows, folder.path, quiet=as_json) as display:
            comparison = folder.run(plan, count, display.on_progress)
        write_comparison(comparison, folder, plan)
    if as_json:
        print(json.dumps(comparison.as_dict(), indent=2))
    else:
        show_comparison(comparison, folder)
    if comparison.failed:
        first = comparison.failed[0]
        count = len(comparison.failed)
        raise FedpbcError(
            f"{count} of {len(cells)} runs failed, such as {first.algorithm} with seed "
            f"{first.seed}: {first.failure}"
        )
