"""fedpbc run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

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
from fedpbc.experiments.overrides import gathered

__all__ = ["run", "show_run"]


def run(
    config: ConfigFile = None,
    algorithm: Annotated[str | None, default("Algorithm", "fedpbc")] = None,
    links: Links = None,
    trace: Trace = None,
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
    track: Track = None,
    set_: Set = None,
    out: Annotated[Path | None, default("Folder", "runs/ALGORITHM-LINKS-seedK")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Run one algorithm, and keep the run in a folder."""
    given = gathered(config, set_, locals())
    from fedpbc.cli.display import RunDisplay
    from fedpbc.experiments.configuration import Config
    from fedpbc.experiments.run import start_run

    checked = Config.from_dict(given)
    path = out or free_folder(
        Path("runs"),
        f"{checked.algorithm['name']}-{checked.links['name']}-seed{checked.general.seed}",
    )
    working_in(path)
    with RunDisplay(path, quiet=as_json) as display:
        summary = start_run(checked, path, overwrite=overwrite, watcher=display.watcher)
    show_run(summary, path, as_json)


def show_run(summary: dict[str, Any], path: Path, as_json: bool) -> None:
    """How a run ended."""
    if as_json:
        print(json.dumps({**summary, "folder": str(path)}, indent=2))
        return
    from fedpbc.cli.display import show_summary

    show_summary(summary, path)
