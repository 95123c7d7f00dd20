"""fedpbc paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpbc.cli.options import Jobs, Json, Overwrite, Set, config_options, default
from fedpbc.cli.workspace import working_in
from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.overrides import configuration_values, split_list
from fedpbc.paper.experiment import EXPERIMENTS, ExperimentRequest, default_folder, make

__all__ = ["paper"]


@config_options("data_dir", "engine", "workers", "ray_address", "device", "plugin", "track")
def paper(
    options: dict[str, Any],
    experiment: Annotated[str, typer.Argument(metavar="ID", help=f"{', '.join(EXPERIMENTS)}.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="In minutes: embedded data, fewer rounds and seeds.")
    ] = False,
    data: Annotated[str | None, default("Data sets, separated by commas", "the paper's")] = None,
    algorithms: Annotated[str | None, default("Names, separated by commas", "the paper's")] = None,
    links: Annotated[str | None, default("Link schemes, by commas", "the paper's")] = None,
    seeds: Annotated[str | None, default("Numbers, separated by commas", "0,1,2")] = None,
    rounds: Annotated[int | None, default("T, how many rounds", "the paper's")] = None,
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
    data_dir = options.pop("data.dir", None)
    settings = configuration_values(None, options, set_)
    from fedpbc.experiments.tracking import check_trackers, checked_names

    if experiment not in EXPERIMENTS:
        from fedpbc.options import nearest

        raise InputError("ID", experiment, nearest(experiment, EXPERIMENTS))
    check_trackers(checked_names(settings.get("track")))
    folder = out or default_folder(experiment, quick)
    wanted = ExperimentRequest(
        out=folder,
        quick=quick,
        data=None if data is None else split_list("data", data),
        data_dir=None if data_dir is None else Path(data_dir),
        algorithms=None if algorithms is None else split_list("algorithms", algorithms),
        links=None if links is None else split_list("links", links),
        seeds=None if seeds is None else split_list("seeds", seeds, int),
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
