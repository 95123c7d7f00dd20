"""Resume a run that was stopped: from its newest intact checkpoint, to the same bits."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedpbc.errors import FedpbcError
from fedpbc.experiments.build import build_experiment
from fedpbc.experiments.config_file import read_own_toml
from fedpbc.experiments.configuration import Config, is_python_task
from fedpbc.experiments.execution import Watcher, check_watching, execute, tracked
from fedpbc.experiments.integrity import Damage, damage_of, damaged_inputs
from fedpbc.experiments.replacement import recover_run
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.tracking import TrackedRun, check_trackers, checked_names
from fedpbc.experiments.trust import check_trust
from fedpbc.limits import check_path
from fedpbc.options import check_arguments
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.toml import parsed_toml

__all__ = ["resume_run"]

ABOUT = ("algorithm", "links", "data", "seed", "fingerprint")
"""What identifies a run, as in its summary."""


@check_arguments
def resume_run(
    path: Path,
    *,
    watcher: Watcher | None = None,
    track: Sequence[str] | None = None,
    group: Path | None = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Continue a run that was stopped; returns the summary, at once if it is finished.

    What is damaged is made again from the newest intact checkpoint, of a finished run, too.

    ``track`` names the trackers from now on; None: those that it had. A finished run is sent to
    trackers that do not have it yet. ``group`` is as for :func:`start_run`. ``trust`` allows the
    run's plugins to be imported although this user has not run them on this machine.

    Example:
        >>> import tempfile
        >>> from fedpbc import start_run
        >>> folder = Path(tempfile.mkdtemp()) / "run"
        >>> config = Config.from_dict({"data": "digits", "clients": 5, "rounds": 2})
        >>> start_run(config, folder) == resume_run(folder)
        True
    """
    check_path(path, "path")
    check_watching(watcher, group)
    path, watcher = Path(path), watcher or Watcher()
    recover_run(path)
    directory = RunDirectory(path)
    directory.check_holds_run()
    directory.check_links()
    # As it stands there: nothing that it names is opened before it is known to be a run's.
    values = parsed_toml(directory.config_path, follow_links=False)
    names = checked_names(values.get("track") if track is None else track)
    if directory.was_finished:
        damage = damage_of(directory)
        if not damage:
            return _finished(directory, values, names, watcher, group)
        _refuse_lost(damage)
        for each in damage:
            watcher.note(f"{each}; it is made again")
    if is_python_task(values):
        raise FedpbcError(
            f"{path} was started from Python with a task of its own: call simulate(…, "
            f"out={str(path)!r}) there again to continue it"
        )
    values = read_own_toml(directory.config_path)
    check_trust(path, values, trust=trust)
    _refuse_lost(damaged_inputs(directory))
    config = Config.from_dict({**values, "track": names}, lenient=True)
    if group is None:
        check_trackers(names)
    with directory.locked():
        experiment = build_experiment(config, directory.last_reports_path)
        if track is not None:
            _write_trackers(directory, names)
        return execute(experiment, directory, watcher, group)


def _refuse_lost(damage: Sequence[Damage]) -> None:
    """Raise if something is damaged that only the user has."""
    for each in damage:
        if not each.repairable:
            raise FedpbcError(str(each))


def _finished(
    directory: RunDirectory,
    values: Mapping[str, Any],
    names: Sequence[str],
    watcher: Watcher,
    group: Path | None,
) -> dict[str, Any]:
    """The summary of a finished run, after trackers that lack it have been told."""
    if directory.last_reports_path.is_file():
        # It was killed between its last two steps.
        with directory.locked():
            directory.remove_last_reports()
    summary, (_, states) = directory.summary(), directory.load_tracking()
    late = [name for name in names if states.get(name, {}).get("state") != "finished"]
    if late:
        if group is None:
            check_trackers(late)
        run = TrackedRun(directory.path, {key: summary[key] for key in ABOUT}, values, group)
        with directory.locked(), tracked(late, run, watcher):
            pass
    return summary


def _write_trackers(directory: RunDirectory, names: Sequence[str]) -> None:
    """Change which trackers the configuration names."""
    values = tomllib.loads(directory.config_path.read_text(encoding="utf-8"))
    if values.pop("track", []) != names:
        trackers = {"track": names} if names else {}
        write_atomically(directory.config_path, tomli_w.dumps({**trackers, **values}))
