"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = [
    "BatchSize",
    "Clients",
    "ConfigFile",
    "Data",
    "DataDir",
    "Device",
    "Downlink",
    "Engine",
    "EvaluateEvery",
    "GlobalLearningRate",
    "Insecure",
    "Jobs",
    "Json",
    "LearningRate",
    "Links",
    "LocalSteps",
    "Model",
    "Overwrite",
    "Plugin",
    "RayAddress",
    "Reported",
    "Rounds",
    "Set",
    "Trace",
    "Track",
    "Views",
    "Workers",
    "default",
]


def default(text: str, value: str) -> Any:
    """An option that says what it is when it is not given; the configuration knows the value."""
    return typer.Option(help=f"{text} (default: {value}).")


ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="CONFIG.toml", help="A configuration; options outrank it."),
]
Links = Annotated[str | None, typer.Option(help="Link scheme of the uplinks; see 'fedpbc list'.")]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Without encryption and keys. Only for trying out."),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        help="Recorded links, a CSV: short for --links trace --set links.file=…; of a fleet's log "
        "also its length of a round and number of clients."
    ),
]
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
Track = Annotated[
    str | None,
    default("Follow it in tensorboard, mlflow, wandb; names, separated by commas", "none"),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set anything: links.gamma=0.2; repeatable."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what the folder holds.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]
Jobs = Annotated[int | None, default("Runs side by side", "one for each core")]
