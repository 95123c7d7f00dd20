"""fedpbc trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedpbc.cli.workspace import remember_work

__all__ = ["trainer"]


def trainer(
    client: Annotated[int, typer.Option(min=0, help="This device's client number, from 0.")],
    state: Annotated[Path, typer.Option(help="Folder for its model and progress.")],
    socket: Annotated[
        Path | None, typer.Option(help="Socket for the node (default: STATE/trainer).")
    ] = None,
    app: Annotated[
        Path | None, typer.Option(help="Python file with your model() and data(client).")
    ] = None,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(help="Python file with the server's algorithm; repeatable."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the data set's Parquet files.")
    ] = None,
    catch_up: Annotated[
        Literal["clock", "lazy"],
        typer.Option(help="Train missed rounds as they pass, or only with the next message."),
    ] = "clock",
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, …")] = "cpu",
    for_group: Annotated[
        bool, typer.Option("--for-group", help="Let the process's group open the socket, too.")
    ] = False,
) -> None:
    """Run a device's trainer, the long-lived process to which the node connects."""
    from fedpbc.deployment.device.trainer_process import run_trainer

    remember_work(state, "the same command resumes")
    run_trainer(
        client,
        state,
        socket or state / "trainer",
        app=app,
        plugins=plugin or (),
        data_dir=data_dir,
        lazy=catch_up == "lazy",
        device=device,
        for_group=for_group,
    )
