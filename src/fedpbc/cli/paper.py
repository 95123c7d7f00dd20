"""fedpbc paper."""

from __future__ import annotations

import json
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
from fedpbc.paper.experiment import EXPERIMENTS, ExperimentRequest, default_folder, make

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
    """Make one of the paper's figures or tables; goes on where it was when it was stopped."""
    general = {"engine": engine, "workers": workers, "ray_address": ray_address, "device": device}
    settings = gathered(None, set_, {**general, "plugin": plugin, "track": track})
    from fedpbc.experiments.tracking import check_trackers, checked_names

    if experiment not in EXPERIMENTS:
        from fedpbc.options import nearest

        raise InputError("ID", experiment, nearest(experiment, EXPERIMENTS))
    check_trackers(checked_names(settings.get("track")))
    folder = out or default_folder(experiment, quick)
    wanted = ExperimentRequest(
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
