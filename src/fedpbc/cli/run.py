"""fedpbc run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fedpbc.cli.options import (
    RUN_OPTIONS,
    ConfigFile,
    Json,
    Overwrite,
    Set,
    Trust,
    config_options,
    default,
)
from fedpbc.cli.terminal import say_json
from fedpbc.cli.workspace import begin_work, free_folder
from fedpbc.experiments.overrides import configuration_values

__all__ = ["run", "show_run"]


@config_options(*RUN_OPTIONS)
def run(
    options: dict[str, Any],
    config: ConfigFile = None,
    trace: Path | None = None,
    set_: Set = None,
    out: Annotated[Path | None, default("Folder", "runs/ALGORITHM-LINKS-seedK")] = None,
    overwrite: Overwrite = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Run one algorithm, and keep the run in a folder."""
    values = configuration_values(config, options, set_, trace=trace, trust=trust)
    from fedpbc.cli.progress import RunDisplay
    from fedpbc.experiments.configuration import Config
    from fedpbc.experiments.start import start_run

    checked = Config.from_dict(values)
    path = out or free_folder(
        Path("runs"),
        f"{checked.algorithm['name']}-{checked.links['name']}-seed{checked.general.seed}",
    )
    begin_work(path)
    with RunDisplay(path, quiet=as_json) as display:
        summary = start_run(checked, path, overwrite=overwrite, watcher=display.watcher)
    show_run(summary, path, as_json)


def show_run(summary: dict[str, Any], path: Path, as_json: bool) -> None:
    """Print the result of a run."""
    if as_json:
        say_json({**summary, "folder": str(path)})
        return
    from fedpbc.cli.results import show_summary
    from fedpbc.experiments.config_file import read_own_toml

    show_summary(summary, path, read_own_toml(path / "config.toml").get("deploy_view"))
