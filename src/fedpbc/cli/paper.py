"""fedpbc paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpbc.cli.options import (
    Jobs,
    Json,
    Overwrite,
    Set,
    config_options,
    default,
    names_of,
    starting_with,
)
from fedpbc.cli.terminal import say, say_json, say_text, say_written, terminal_width
from fedpbc.cli.workspace import begin_work
from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.overrides import configuration_values, split_list
from fedpbc.paper.catalog import (
    EXPERIMENTS,
    ExperimentRequest,
    OnProgress,
    ProgressRow,
    default_folder,
    make,
)

__all__ = ["paper"]


@config_options("data_dir", "engine", "workers", "ray_address", "device", "plugin", "track")
def paper(
    options: dict[str, Any],
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help=f"{', '.join(EXPERIMENTS)}.",
            autocompletion=starting_with(EXPERIMENTS),
        ),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="In minutes: embedded data, fewer rounds and seeds.")
    ] = False,
    data: Annotated[
        str | None, default("Data sets, separated by commas", "the paper's", names_of("data"))
    ] = None,
    algorithms: Annotated[
        str | None, default("Names, separated by commas", "the paper's", names_of("algorithms"))
    ] = None,
    links: Annotated[
        str | None, default("Link schemes, by commas", "the paper's", names_of("links"))
    ] = None,
    seeds: Annotated[str | None, default("Seeds and ranges of seeds: 0-4,7", "0-2")] = None,
    rounds: Annotated[int | None, default("Number of rounds T", "the paper's")] = None,
    set_: Set = None,
    tuned: Annotated[
        str | None, default("File of 'tune', or no", "paper/tune/chosen.toml if it is there")
    ] = None,
    out: Annotated[Path | None, default("Folder", "paper/ID")] = None,
    jobs: Jobs = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Make one of the paper's figures or tables; app.py adds what there is to its help."""
    data_dir = options.pop("data.dir", None)
    settings = configuration_values(None, options, set_)
    from fedpbc.experiments.seeds import seed_list
    from fedpbc.experiments.tracking import check_trackers, checked_names

    if experiment not in EXPERIMENTS:
        from fedpbc.options import nearest

        raise InputError("ID", experiment, nearest(experiment, EXPERIMENTS))
    check_trackers(checked_names(settings.get("track")))
    folder = out or default_folder(experiment, quick)

    @contextmanager
    def display(rows: Sequence[ProgressRow], path: Path) -> Iterator[OnProgress]:
        from fedpbc.cli.progress import GridDisplay

        with GridDisplay(rows, path, quiet=as_json) as grid:
            yield grid.on_progress

    request = ExperimentRequest(
        out=folder,
        quick=quick,
        data=split_list("data", data),
        data_dir=None if data_dir is None else Path(data_dir),
        algorithms=split_list("algorithms", algorithms),
        links=split_list("links", links),
        seeds=None if seeds is None else seed_list(seeds),
        rounds=rounds,
        jobs=jobs,
        settings=settings,
        overwrite=overwrite,
        tuned=tuned,
        display=display,
        width=terminal_width(),
    )
    begin_work(folder, "run the same command again to resume")
    result = make(experiment, request)
    if as_json:
        say_json(result.numbers)
    else:
        say_text(result.text)
        say_written(result.written)
        if result.next:
            say(f"next: {result.next}")
    if result.failed:
        raise FedpbcError(f"{len(result.failed)} failed, such as {result.failed[0]}")
