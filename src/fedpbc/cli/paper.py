"""fedpbc paper."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedpbc.cli.options import (
    DataDir,
    Device,
    Engine,
    Jobs,
    Json,
    Overwrite,
    Plugin,
    RayAddress,
    Set,
    Track,
    Workers,
    default,
)
from fedpbc.cli.workspace import working_in
from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.overrides import gathered, separated
from fedpbc.paper.experiment import (
    EXPERIMENTS,
    ExperimentRequest,
    OnProgress,
    ProgressRow,
    default_folder,
    make,
)

__all__ = ["paper"]


def paper(
    experiment: Annotated[str, typer.Argument(metavar="ID", help=f"{', '.join(EXPERIMENTS)}.")],
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
    track: Track = None,
    set_: Set = None,
    tuned: Annotated[
        str | None, default("File of 'tune', or no", "paper/tune/chosen.toml if it is there")
    ] = None,
    out: Annotated[Path | None, default("Folder", "paper/ID")] = None,
    jobs: Jobs = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Make one of the paper's figures or tables; resumes where it was stopped."""
    general = {"engine": engine, "workers": workers, "ray_address": ray_address, "device": device}
    settings = gathered(None, set_, {**general, "plugin": plugin, "track": track})
    from fedpbc.experiments.tracking import check_trackers, checked_names

    if experiment not in EXPERIMENTS:
        from fedpbc.options import nearest

        raise InputError("ID", experiment, nearest(experiment, EXPERIMENTS))
    check_trackers(checked_names(settings.get("track")))
    folder = out or default_folder(experiment, quick)

    @contextmanager
    def display(rows: Sequence[ProgressRow], path: Path) -> Iterator[OnProgress]:
        from fedpbc.cli.display import GridDisplay, GridRow

        with GridDisplay([GridRow(*row) for row in rows], path, quiet=as_json) as grid:
            yield grid.on_progress

    request = ExperimentRequest(
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
        tuned=tuned,
        display=display,
    )
    working_in(folder, "run the same command again to resume")
    result = make(experiment, request)
    if as_json:
        print(json.dumps(result.numbers, indent=2))
    else:
        print(result.text)
        print(f"written: {', '.join(map(str, result.written))}")
        if result.next:
            print(f"next: {result.next}")
    if result.failed:
        raise FedpbcError(f"{len(result.failed)} failed, such as {result.failed[0]}")
