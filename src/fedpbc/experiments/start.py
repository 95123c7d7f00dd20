"""Start a run in a new directory."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

from fedpbc.errors import DivergedError, FedpbcError, InputError
from fedpbc.experiments.build import Experiment, build_experiment
from fedpbc.experiments.client_overview import client_tensors
from fedpbc.experiments.configuration import Config, identity
from fedpbc.experiments.execution import OnRound, Watcher, check_watching, execute
from fedpbc.experiments.integrity import damage_of
from fedpbc.experiments.replacement import discard_staged, recover_run, staged_run, take_place
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.run_record import RunRecord
from fedpbc.experiments.tracking import check_trackers
from fedpbc.experiments.trust import remember_plugins
from fedpbc.limits import check_path
from fedpbc.options import check_arguments, check_kind
from fedpbc.simulation.metrics import Metrics
from fedpbc.storage.directories import LOCK, make_directory
from fedpbc.storage.removal import remove_empty_folder, remove_files
from fedpbc.storage.toml import parsed_toml, toml_text

__all__ = ["run_python_task", "start_run"]


@check_arguments
def start_run(
    config: Config,
    path: Path,
    *,
    overwrite: bool = False,
    watcher: Watcher | None = None,
    group: Path | None = None,
) -> dict[str, Any]:
    """Run a configuration in a new directory; returns the summary.

    ``group`` is the directory of the runs that this one belongs to, for trackers; whoever makes a
    group has checked them.

    Example:
        >>> import tempfile
        >>> config = Config.from_dict({"data": "digits", "clients": 5, "rounds": 2})
        >>> start_run(config, Path(tempfile.mkdtemp()) / "run")["rounds"]
        2
    """
    check_kind("config", config, Config, "a Config")
    check_path(path, "path")
    check_watching(watcher, group)
    path = Path(path)
    recover_run(path)
    target = RunDirectory(path)
    target.check_free(overwrite=overwrite)
    target.check_folders()
    # An earlier run stays until the new one has completed a round.
    staged = target.holds_run
    directory = target
    if staged:
        directory = staged_run(path)
        directory.check_free()  # A folder of the user's may have this name.
    # Everything that can be wrong is found before anything is written.
    if group is None:
        check_trackers(config.general.track or ())
    experiment = build_experiment(config, directory.last_reports_path)
    # The inputs may lie in the very directory that is to be overwritten: they are read before.
    values, inputs = experiment.config.self_contained()
    remember_plugins(config.code)
    is_new = not path.exists()
    make_directory(path)
    with target.locked():
        target.clear_leftovers()
        make_directory(directory.path)

        def take_over() -> RunDirectory:
            nonlocal directory
            take_place(path)
            experiment.simulation.server.last_reports.move(target.last_reports_path)
            directory = target
            return target

        try:
            directory.write_config(toml_text(values), inputs)
            first = take_over if staged else None
            return execute(experiment, directory, watcher, group, on_first_round=first)
        except BaseException as error:
            if directory is not target:
                discard_staged(path)
                kept = f"the earlier run in {path} is kept"
                if isinstance(error, DivergedError):
                    raise DivergedError(error.client, error.round, error.view, kept) from None
            elif isinstance(error, InputError) and experiment.simulation.round == 0:
                # Found only when the run began; nothing is written.
                directory.clear()
                remove_files(path, [LOCK])
                if is_new:
                    remove_empty_folder(path)
            raise


def run_python_task(
    experiment: Experiment, path: Path, on_round: OnRound | None = None, group: Path | None = None
) -> tuple[list[Metrics], RunRecord]:
    """Run an experiment whose task was built in Python, or continue it.

    Returns its metrics and its record.
    """
    recover_run(path)
    directory, values = RunDirectory(path), experiment.config.to_dict()
    directory.check_links()
    if directory.finished and not damage_of(directory):
        raise InputError(
            f"out: {path} holds a finished run; choose a new folder, or read its models with "
            "load_view()"
        )
    if not directory.holds_run:
        directory.check_free()
        make_directory(path)
        directory.write_config(toml_text(values), {})
    elif identity(parsed_toml(directory.config_path, follow_links=False)) != identity(values):
        raise FedpbcError(
            f"{path} belongs to another run: its options are not these; choose a new folder"
        )
    # There is no display for notes.
    watcher = Watcher(on_round=on_round, on_note=partial(warnings.warn, category=RuntimeWarning))
    with directory.locked():
        summary = execute(experiment, directory, watcher, group)
    lines = directory.metrics()
    record = RunRecord(values, lines, summary, client_tensors(experiment.simulation))
    return [Metrics.from_dict(line) for line in lines], record
