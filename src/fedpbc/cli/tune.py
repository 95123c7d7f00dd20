"""fedpbc tune."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    names_of,
)
from fedpbc.cli.terminal import (
    command,
    say,
    say_json,
    say_omitted,
    say_written,
    show_fitted,
)
from fedpbc.cli.workspace import begin_work, free_folder
from fedpbc.errors import InputError
from fedpbc.experiments.conditions import is_ceiling
from fedpbc.experiments.overrides import (
    configuration_values,
    parse_value,
    split_items,
)

if TYPE_CHECKING:
    from fedpbc.experiments.tuning.directory import TuningDirectory
    from fedpbc.experiments.tuning.plan import TuningPlan
    from fedpbc.experiments.tuning.result import TuningResult

__all__ = ["resume_tuning", "run_tuning", "tune"]

TUNED_OPTIONS = [
    name
    for name in RUN_OPTIONS
    if name not in ("algorithm", "seed", "views", "deploy_view", "track")
]


CHOSEN = {
    "seed": "--seeds says which seeds",
    "seeds": "--seeds says which seeds",
    "deploy_view": "the search chooses the view",
    "data.train_samples": "a search evaluates on what is kept out of training",
}
"""Settings that a search chooses itself."""


@config_options(*TUNED_OPTIONS)
def tune(
    options: dict[str, Any],
    config: ConfigFile = None,
    algorithms: Annotated[
        str | None,
        default(
            "Names, separated by commas, with settings after colons, or 'all'",
            "the configuration's",
            names_of("algorithms"),
        ),
    ] = None,
    ceiling: Annotated[
        bool,
        typer.Option(
            "--ceiling", help="Also run FedAvg with every link up, as the upper reference."
        ),
    ] = False,
    space: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,VALUE",
            help="Values to try: learning_rate=0.05,0.1 or fedau.cutoff=5,50; repeatable.",
        ),
    ] = None,
    candidates: Annotated[
        int | None, default("Settings tried per algorithm", "12, or 18 if any has own options")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(help="Instead of --candidates: total rounds of all runs.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Instead of --candidates: minutes; the first runs are timed."),
    ] = None,
    validation: Annotated[
        float | None, default("Share of each client's samples kept out for scoring", "0.2")
    ] = None,
    seeds: Annotated[str | None, default("Seeds: 0,1 or 0-4; a score is their mean", "0")] = None,
    trace: Path | None = None,
    set_: Set = None,
    out: Annotated[Path | None, default("Folder", "runs/tune")] = None,
    jobs: Jobs = None,
    overwrite: Overwrite = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Tune step sizes and options: successive halving on held-out training data."""
    values = configuration_values(config, options, set_, trace=trace, trust=trust)
    from fedpbc.experiments.algorithm_section import check_assigned
    from fedpbc.experiments.tuning.directory import TuningDirectory
    from fedpbc.experiments.tuning.plan import plan_tuning
    from fedpbc.experiments.tuning.request import TuningRequest

    request = TuningRequest(
        algorithms=None if algorithms is None else split_items(algorithms),
        ceiling=ceiling,
        space=parse_space(space or ()),
        candidates=candidates,
        budget=budget,
        minutes=minutes,
        seeds=(0,) if seeds is None else seeds,
        validation=validation,
    )
    plan = plan_tuning(values, request)
    check_assigned(set_, values, [*plan.entries.values()], options, CHOSEN)
    directory = TuningDirectory(out or free_folder(Path("runs"), "tune"))
    run_tuning(directory, plan, jobs, as_json, overwrite)


def parse_space(items: Sequence[str]) -> dict[str, list[Any]]:
    """The values of each setting, from KEY=VALUE,VALUE."""
    space: dict[str, list[Any]] = {}
    for item in items:
        key, equals, text = item.partition("=")
        texts = split_items(text)
        if not equals or not key.strip() or not texts:
            raise InputError("--space", item, "KEY=VALUE,VALUE, such as learning_rate=0.05,0.1")
        if key.strip() in space:
            raise InputError("--space", item, "given once for each setting")
        space[key.strip()] = [parse_value(part, key) for part in texts]
    return space


def run_tuning(
    directory: TuningDirectory,
    plan: TuningPlan,
    jobs: int | None,
    as_json: bool,
    overwrite: bool = False,
) -> None:
    """Run a search with a progress display, and print the choice."""
    from fedpbc.cli.progress import GridDisplay
    from fedpbc.experiments.sweep import round_weight
    from fedpbc.experiments.tuning.directory import planned_steps
    from fedpbc.paper.catalog import ProgressRow
    from fedpbc.parallel import usable_cores
    from fedpbc.report.tuning import write_tuning

    if jobs is not None and jobs < 1:
        raise InputError("jobs", jobs, "at least 1")
    displays: list[GridDisplay] = []

    def on_plan(plan: TuningPlan) -> Any:
        rows = [
            ProgressRow(label, rounds, round_weight(everyone))
            for label, rounds, everyone in planned_steps(plan)
        ]
        displays.append(GridDisplay(rows, directory.path, quiet=as_json))
        displays[0].__enter__()
        return displays[0].on_progress

    with directory.opened(plan, overwrite=overwrite) as plan:
        begin_work(directory.path)
        try:
            result = directory.run(plan, jobs or usable_cores(), on_plan)
        finally:
            for display in displays:
                display.__exit__()
        write_tuning(directory, result)
        directory.remove_checkpoints()
    if as_json:
        say_json({**result.as_dict(), "folder": str(directory.path)})
    else:
        show_tuning(result, directory)


def resume_tuning(directory: TuningDirectory, jobs: int | None, as_json: bool, trust: bool) -> None:
    """Continue a search; of a finished one, say so."""
    from fedpbc.text import shell_quoted

    plan = directory.load_plan(trust=trust)
    if directory.finished:
        directory.remove_checkpoints()
        if as_json:
            say_json({**directory.result(), "folder": str(directory.path)})
            return
        say(f"{shell_quoted(directory.path)} was already finished")
        chosen = [k for k, e in directory.result()["algorithms"].items() if e["chosen"]]
        say(f"next: {comparing(directory, chosen)}")
        return
    run_tuning(directory, plan, jobs, as_json)


def show_tuning(result: TuningResult, directory: TuningDirectory) -> None:
    """Print the choice, the files, and next steps."""
    from fedpbc.report.tuning import tuning_notes, tuning_table, written_files

    say_omitted(show_fitted(tuning_table(result)), "table.md")
    for note in tuning_notes(result):
        say(note)
    say_written(written_files(directory))
    names = [tuned.label for tuned in result.entries if tuned.best is not None]
    if len(names) == 1:
        file = directory.tuned_file(names[0])
        say(f"next: {command('fedpbc', 'run', file)} runs it, evaluated on the test data")
    say(f"next: {comparing(directory, names)} compares, over three seeds")


def comparing(directory: TuningDirectory, labels: Sequence[str]) -> str:
    """The command that compares a search's choice: with a ceiling, unless there is one in it."""
    ceiling = () if any(map(is_ceiling, labels)) else ("--ceiling",)
    return command("fedpbc", "compare", directory.tuned_path, *ceiling)
