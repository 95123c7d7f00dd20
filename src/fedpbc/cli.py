"""The command line: thin; it parses, calls and prints. Torch is imported late, by the commands."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpbc.errors import FedpbcError, InputError
from fedpbc.given import gathered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedpbc.report.found import ShownRun
    from fedpbc.runs.compare import CompareFolder, ComparePlan

__all__ = ["app", "main"]

app = typer.Typer(
    name="fedpbc",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def default(text: str, value: str) -> Any:
    """An option that says what it is when it is not given; the configuration knows the value."""
    return typer.Option(help=f"{text} (default: {value}).")


ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="CONFIG.toml", help="A configuration; options outrank it."),
]
Links = Annotated[str | None, typer.Option(help="Link scheme of the uplinks; see 'fedpbc list'.")]
Downlink = Annotated[str | None, default("Link scheme of the downlinks", "always")]
Data = Annotated[str | None, default("Data set; see 'fedpbc list'", "fashion")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the data set's Parquet files.")]
Model = Annotated[str | None, default("Network", "the paper's for the data, or mlp")]
Rounds = Annotated[int | None, default("T, how many rounds", "500")]
Clients = Annotated[int | None, default("m, how many clients", "100")]
LearningRate = Annotated[float | None, default("η_0", "0.05")]
GlobalLearningRate = Annotated[float | None, default("η_g", "1")]
LocalSteps = Annotated[int | None, default("s, local steps a round", "5")]
BatchSize = Annotated[int | None, default("Samples a step", "16")]
Engine = Annotated[str | None, default("auto, serial, stacked, pool or ray", "auto")]
Workers = Annotated[int | None, default("Processes of the engine", "one for each core")]
RayAddress = Annotated[str | None, default("An existing Ray cluster", "this machine")]
Device = Annotated[str | None, default("Where to train: cpu, cuda, cuda:1, …", "cpu")]
Reported = Annotated[str | None, default("Where last reports are kept: memory or disk", "memory")]
Views = Annotated[str | None, default("Models to judge, such as server,averaged", "all")]
EvaluateEvery = Annotated[int | None, default("Rounds between evaluations", "10")]
Plugin = Annotated[
    list[Path] | None,
    typer.Option(help="Python file with algorithms or link schemes of your own; repeatable."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set anything: links.gamma=0.2; repeatable."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what the folder holds.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]
Jobs = Annotated[int | None, default("Runs side by side", "one for each core")]


PAPER_IDS = {
    "fig2": "what FedAvg converges to when one of two links gets better: formula and simulation",
    "fig3": "quadratics: how far the server's model stays from the optimum",
    "fig5": "the classes' rates r and the histogram of p_i",
    "fig6": "who gets through when: every link scheme, four probabilities",
    "table1": "accuracy of seven algorithms over six link schemes on three data sets",
    "table2": "the first round in which each algorithm reaches an accuracy",
    "ablation": "accuracy against α, γ, δ and σ₀, one at a time",
    "tune": "the paper's grid search over η_0 and η_g; the tables use what it chooses",
}
"""As in fedpbc.paper, which takes a while to import; a test keeps them the same."""


def show_version(wanted: bool) -> None:
    """For --version."""
    if wanted:
        import fedpbc

        print(f"fedpbc {fedpbc.__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Federated learning over unreliable links: FedPBC and its rivals, simulated and compared."""


@app.command()
def run(
    config: ConfigFile = None,
    algorithm: Annotated[str | None, default("Algorithm", "fedpbc")] = None,
    links: Links = None,
    downlink: Downlink = None,
    data: Data = None,
    data_dir: DataDir = None,
    model: Model = None,
    rounds: Rounds = None,
    clients: Clients = None,
    seed: Annotated[int | None, default("Of everything random", "0")] = None,
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
    set_: Set = None,
    out: Annotated[Path | None, default("Folder", "runs/ALGORITHM-LINKS-seedK")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Run one algorithm, and keep the run in a folder."""
    given = gathered(config, set_, locals())
    from fedpbc.report.terminal import RunDisplay
    from fedpbc.runs import Config, start_run

    checked = Config.from_dict(given)
    path = out or free_folder(
        Path("runs"),
        f"{checked.algorithm['name']}-{checked.links['name']}-seed{checked.general.seed}",
    )
    working_in(path)
    with RunDisplay(path, quiet=as_json) as display:
        summary = start_run(checked, path, overwrite=overwrite, watcher=display.watcher)
    show_run(summary, path, as_json)


@app.command()
def compare(
    config: ConfigFile = None,
    algorithms: Annotated[
        str | None, default("Names, separated by commas", "the paper's seven")
    ] = None,
    seeds: Annotated[str | None, default("Numbers, separated by commas", "0,1,2")] = None,
    links: Links = None,
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
    set_: Set = None,
    out: Annotated[Path | None, default("Folder", "runs/compare")] = None,
    jobs: Jobs = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Compare several algorithms × seeds on the same links; ends with a table and a plot."""
    given = gathered(config, set_, locals())
    from fedpbc.runs.compare import CompareFolder, plan_comparison

    plan = plan_comparison(given)
    folder = CompareFolder(out or free_folder(Path("runs"), "compare"))
    run_comparison(folder, plan, jobs, as_json, overwrite)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="A run's or a comparison's folder.")],
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Go on with a run or a comparison that was stopped, to the same bits."""
    from fedpbc.report.terminal import RunDisplay
    from fedpbc.runs import RunFolder, resume_run
    from fedpbc.runs.compare import CompareFolder

    if (folder / "plan.toml").is_file():
        from fedpbc.paper.folder import read_plan

        if (plan := read_plan(folder)) is not None:
            raise InputError("folder", str(folder), f"left to its own command: {plan['command']}")
    comparison = CompareFolder(folder)
    if comparison.holds_comparison:
        run_comparison(comparison, comparison.load_plan(), jobs, as_json)
        return
    working_in(folder)
    was_finished = RunFolder(folder).finished
    with RunDisplay(folder, quiet=as_json) as display:
        summary = resume_run(folder, watcher=display.watcher)
    if was_finished and not as_json:
        print(f"{folder} was finished already: nothing was left to do")
    show_run(summary, folder, as_json)


@app.command(
    no_args_is_help=True,
    epilog="\n\n".join(f"{name}: {what}." for name, what in PAPER_IDS.items()),
)
def paper(
    experiment: Annotated[str, typer.Argument(metavar="ID", help=f"{', '.join(PAPER_IDS)}.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="In minutes: embedded data, fewer rounds and seeds.")
    ] = False,
    data: Annotated[str | None, default("Data sets, separated by commas", "the paper's")] = None,
    data_dir: DataDir = None,
    algorithms: Annotated[str | None, default("Names, separated by commas", "the paper's")] = None,
    links: Annotated[str | None, default("Link schemes, by commas", "the paper's")] = None,
    seeds: Annotated[str | None, default("Numbers, separated by commas", "0,1,2")] = None,
    rounds: Annotated[int | None, default("T, how many rounds", "the paper's")] = None,
    engine: Engine = None,
    workers: Workers = None,
    ray_address: RayAddress = None,
    device: Device = None,
    plugin: Plugin = None,
    set_: Set = None,
    tuned: Annotated[
        str | None, default("File of 'tune', or no", "paper/tune/chosen.toml if it is there")
    ] = None,
    out: Annotated[Path | None, default("Folder", "paper/ID")] = None,
    jobs: Jobs = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Make one of the paper's figures or tables; goes on where it was when it was stopped."""
    general = {"engine": engine, "workers": workers, "ray_address": ray_address, "device": device}
    settings = gathered(None, set_, {**general, "plugin": plugin})
    from fedpbc.given import separated
    from fedpbc.paper import Wanted, default_folder, make

    if experiment not in PAPER_IDS:
        from fedpbc.options import nearest

        raise InputError("ID", experiment, nearest(experiment, PAPER_IDS))
    folder = out or default_folder(experiment, quick)
    wanted = Wanted(
        out=folder,
        quick=quick,
        data=None if data is None else separated("data", data, str),
        data_dir=data_dir,
        algorithms=None if algorithms is None else separated("algorithms", algorithms, str),
        links=None if links is None else separated("links", links, str),
        seeds=None if seeds is None else separated("seeds", seeds, int),
        rounds=rounds,
        jobs=jobs,
        settings=settings,
        overwrite=overwrite,
        quiet=as_json,
        tuned=tuned,
    )
    working_in(folder, "the same command goes on")
    made = make(experiment, wanted)
    if as_json:
        print(json.dumps(made.numbers, indent=2))
    else:
        print(made.text)
        print(f"written: {', '.join(map(str, made.written))}")
        if made.next:
            print(f"next: {made.next}")
    if made.failed:
        raise FedpbcError(f"{len(made.failed)} failed, such as {made.failed[0]}")


@app.command()
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER…", help="With runs in it: a run's, a comparison's, any."),
    ],
    out: Annotated[Path | None, default("The page", "FOLDER/report.html")] = None,
    title: Annotated[str | None, default("Of the page", "the folder's name")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep it current until all runs have ended.")
    ] = False,
) -> None:
    """Make one HTML page about any runs, finished or not; it opens from disk."""
    from fedpbc.report.watch import report as write_report
    from fedpbc.report.watch import watch as keep_current

    place = out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    heading = title or ", ".join(folder.resolve().name for folder in folders)
    if not watch:
        runs = write_report(folders, place, heading)
        print(f"written: {place} ({told(runs)})")
        return

    def on_change(runs: Sequence[ShownRun]) -> None:
        print(f"{place}: {told(runs)}", flush=True)

    ended = keep_current(folders, place, heading, on_change=on_change)
    print(f"written: {place} ({'all runs have ended' if ended else 'no longer watching'})")


def told(runs: Sequence[ShownRun]) -> str:
    """How far runs are, in few words."""
    states = [run.state for run in runs]
    counted = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return f"{', '.join(counted)}; round {max((run.done for run in runs), default=0):,}"


@app.command(name="list")
def list_(
    as_json: Json = False,
    plugin: Plugin = None,
) -> None:
    """Show what there is: algorithms, link schemes, data, models, engines, views, options."""
    from fedpbc.report.listing import everything, show_listing

    if plugin:
        from fedpbc.runs.config import load_plugin

        for file in plugin:
            load_plugin(str(file))
    found = everything()
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        show_listing(found)


def run_comparison(
    folder: CompareFolder,
    plan: ComparePlan,
    jobs: int | None,
    as_json: bool,
    overwrite: bool = False,
) -> None:
    """Run a comparison with a progress display, and show what came of it."""
    from fedpbc.algorithms import find_algorithm
    from fedpbc.cores import usable_cores
    from fedpbc.report.page import check_place
    from fedpbc.report.terminal import GridDisplay, GridRow, show_comparison
    from fedpbc.report.write import write_comparison

    if jobs is not None and jobs < 1:
        raise InputError("jobs", jobs, "at least 1")
    if folder.path.is_dir():
        # Found out now, and not when everything has been run.
        check_place(folder.report_path)
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


_working_in: list[tuple[Path, str]] = []


def working_in(path: Path, going_on: str | None = None) -> None:
    """Training begins: remember the folder, for what is said when the command is interrupted."""
    from fedpbc.engine.memory import keep_freed_memory

    keep_freed_memory()
    _working_in[:] = [(path, going_on or f"'fedpbc resume {path}' goes on")]


def show_run(summary: dict[str, Any], path: Path, as_json: bool) -> None:
    """How a run ended."""
    if as_json:
        print(json.dumps({**summary, "folder": str(path)}, indent=2))
        return
    from fedpbc.report.terminal import show_summary

    show_summary(summary, path)


def free_folder(parent: Path, name: str) -> Path:
    """A folder that is not there yet."""
    path, k = parent / name, 2
    while path.exists():
        path, k = parent / f"{name}-{k}", k + 1
    return path


INTERRUPTED = 130
"""What typer makes of Ctrl-C."""


def main() -> None:
    """The command ``fedpbc``: wrong input is one line and exit code 2."""
    import click

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that does not know a letter shows another, rather than a traceback.
            stream.reconfigure(errors="replace")
    try:
        code = app(prog_name="fedpbc", standalone_mode=False)
    except FedpbcError as error:
        sys.exit(complain(str(error), 2))
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        sys.exit(complain(" ".join(error.format_message().split()), 2))
    except MemoryError:
        sys.exit(complain("there is not enough memory for that", 2))
    except RuntimeError as error:
        # PyTorch's own, for a GPU; named here without importing PyTorch.
        if type(error).__name__ != "OutOfMemoryError":
            raise
        sys.exit(complain("there is not enough memory on the device for that", 2))
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            # Whoever read our output has gone; nothing is left to say.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        where = f"{error.filename}: " if error.filename else ""
        sys.exit(complain(f"{where}{error.strerror or error}", 2))
    if code == INTERRUPTED:
        begun = [going_on for path, going_on in _working_in if path.exists()]
        hint = f"; {begun[0]}" if begun else "; nothing was written"
        complain(f"interrupted{hint}", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def complain(line: str, code: int) -> int:
    """One line on standard error."""
    print(f"fedpbc: {' '.join(line.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
