"""Start a run in a new folder, or go on with one that was begun."""

from __future__ import annotations

import json
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomli_w

from fedpbc.errors import FedpbcError, InputError, Verbatim
from fedpbc.experiments.build import build_simulation, data_fingerprint
from fedpbc.experiments.configuration import FILES, Config, read_toml
from fedpbc.experiments.execution import OnRound, Watcher, execute, tracked
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.tracking import TrackingPlan, check_trackers, checked_names
from fedpbc.simulation.last_reports import choose_reports
from fedpbc.simulation.loop import Metrics, Simulation
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.tensors import checksum
from fedpbc.tasks import Task

__all__ = ["Watcher", "resume_run", "run_in_folder", "start_run"]


def start_run(
    config: Config,
    path: Path,
    *,
    overwrite: bool = False,
    watcher: Watcher | None = None,
    group: Path | None = None,
) -> dict[str, Any]:
    """Run a configuration in a new folder; gives the summary.

    ``group`` is the folder of the runs that this one belongs to, for trackers; whoever makes a
    group has checked them.

    Example:
        >>> import tempfile
        >>> config = Config.from_dict({"data": "digits", "clients": 5, "rounds": 2})
        >>> start_run(config, Path(tempfile.mkdtemp()) / "run")["rounds"]
        2
    """
    folder = RunDirectory(path)
    # Everything that can be wrong is found before anything is written.
    if group is None:
        check_trackers(config.general.track or ())
    simulation, engine = build_simulation(
        config, choose_reports(config.general.reported, folder.reports_path)
    )
    config = replace(config, general=replace(config.general, clients=simulation.task.clients))
    # The inputs may lie in the very folder that is to be overwritten: they are read before.
    text, inputs = self_contained(config)
    folder.create(overwrite=overwrite)
    with folder.locked():
        # The configuration goes last: from then on the folder holds a run.
        write_inputs(folder.path, inputs)
        write_atomically(folder.config_path, text)
        return _execute(config, simulation, engine, folder, watcher, group)


def resume_run(
    path: Path,
    *,
    watcher: Watcher | None = None,
    track: Sequence[str] | None = None,
    group: Path | None = None,
) -> dict[str, Any]:
    """Go on with a run that was stopped; gives the summary, at once if it is finished.

    ``track`` names the trackers from now on, those that it had unless given. A finished run is told
    to those that do not have it yet. ``group`` is as for :func:`start_run`.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "run"
        >>> config = Config.from_dict({"data": "digits", "clients": 5, "rounds": 2})
        >>> start_run(config, folder) == resume_run(folder)
        True
    """
    folder = RunDirectory(path)
    if not folder.holds_run:
        raise InputError("folder", str(path), "one that holds a run (there is no config.toml)")
    given = read_toml(folder.config_path)
    names = checked_names(given.get("track") if track is None else track)
    if folder.finished:
        if folder.reports_path.is_file():
            # It was killed between its last two steps.
            with folder.locked():
                folder.remove_reports()
        return _told(folder, TrackingPlan(names, given, group), watcher)
    if isinstance(given.get("task"), dict) and given["task"].get("name") == "python":
        raise FedpbcError(
            f"{path} was started from Python with a task of its own: call simulate(…, "
            f"out={str(path)!r}) there again, and it goes on"
        )
    config = Config.from_dict({**given, "track": names})
    if group is None:
        check_trackers(names)
    with folder.locked():
        simulation, engine = build_simulation(
            config, choose_reports(config.general.reported, folder.reports_path)
        )
        if track is not None:
            _keep_track(folder, names)
        return _execute(config, simulation, engine, folder, watcher, group)


def _keep_track(folder: RunDirectory, names: Sequence[str]) -> None:
    """Write down which trackers a run has from now on."""
    given = tomllib.loads(folder.config_path.read_text(encoding="utf-8"))
    if given.get("track", []) != names:
        kept = {key: value for key, value in given.items() if key != "track"}
        write_atomically(
            folder.config_path, tomli_w.dumps({"track": names, **kept} if names else kept)
        )


def _told(folder: RunDirectory, plan: TrackingPlan, watcher: Watcher | None) -> dict[str, Any]:
    """A finished run's summary; trackers that do not have it whole are told of it first."""
    summary, (_, kept) = folder.summary(), folder.load_tracking()
    late = [name for name in plan.names if kept.get(name, {}).get("state") != "finished"]
    if late:
        if plan.group is None:
            check_trackers(late)
        about = {key: summary[key] for key in ABOUT}
        with (
            folder.locked(),
            tracked(replace(plan, names=late), folder, about, watcher or Watcher()),
        ):
            pass
    return summary


ABOUT = ("algorithm", "links", "data", "seed", "fingerprint")


def _execute(
    config: Config,
    simulation: Simulation,
    engine: str,
    folder: RunDirectory,
    watcher: Watcher | None,
    group: Path | None,
) -> dict[str, Any]:
    about = {
        "algorithm": config.algorithm["name"],
        "links": config.links["name"],
        "data": config.data.name if config.task.name == "classification" else config.task.name,
        "seed": config.general.seed,
        "fingerprint": fingerprint(
            simulation, data_fingerprint(config), without_places(config.to_dict())
        ),
    }
    return execute(
        simulation,
        folder,
        engine=engine,
        about=about,
        checkpoint_every=config.general.checkpoint_every,
        watcher=watcher,
        plan=TrackingPlan(config.general.track or (), config.to_dict(), group),
    )


def run_in_folder(
    simulation: Simulation,
    engine: str,
    path: Path,
    described: Mapping[str, Any],
    on_round: OnRound | None,
    track: Sequence[str] = (),
    group: Path | None = None,
) -> list[Metrics]:
    """Run a simulation that was made in Python; one that was interrupted there goes on."""
    folder, text = RunDirectory(path), tomli_w.dumps(dict(described))
    if folder.finished:
        right = "a new folder; load_view() reads the models of a finished run"
        raise InputError("out", Verbatim(f"{path}, which holds a finished run"), right)
    task = task_fingerprint(simulation.task)
    about = {
        "algorithm": simulation.algorithm.name,
        "links": described["links"]["name"],
        "data": "python",
        "seed": described["seed"],
        "fingerprint": fingerprint(simulation, task, described),
    }
    if not folder.holds_run:
        folder.create()
        write_atomically(folder.config_path, text)
    elif folder.config_path.read_text(encoding="utf-8") != text:
        raise FedpbcError(f"{path} belongs to another run: its options are not these")
    with folder.locked():
        execute(
            simulation,
            folder,
            engine=engine,
            about=about,
            watcher=Watcher(on_round=on_round, on_note=warn_of),
            task=task,
            plan=TrackingPlan(track, described, group),
        )
    return [Metrics.from_dict(line) for line in folder.metrics()]


def warn_of(line: str) -> None:
    """A note, where there is no display for it."""
    warnings.warn(line, RuntimeWarning, stacklevel=2)


def fingerprint(simulation: Simulation, data: str, options: Mapping[str, Any]) -> str:
    """What a run is: its data, its links and its options. A checkpoint of another is refused."""
    links = [t.fingerprint() for t in (simulation.uplink, simulation.downlink) if t is not None]
    return sha256(json.dumps([data, links, options], sort_keys=True).encode()).hexdigest()


PLACES = ("checkpoint_every", "plugins", "workers", "ray_address", "reported", "track")


def without_places(options: dict[str, Any]) -> dict[str, Any]:
    """Options without those that may change while the run stays the same."""
    kept = {k: v for k, v in options.items() if k not in PLACES}
    for section, option in (*FILES, ("data", "dir")):
        if isinstance(kept.get(section, {}).get(option), str):
            kept[section] = {k: v for k, v in kept[section].items() if k != option}
    return kept


def task_fingerprint(task: Task) -> str:
    """Tells whether a task made in Python is still the same, as far as can be known of it."""
    own = getattr(task, "fingerprint", None)
    return checksum({"x0": task.init()}) + (str(own()) if own is not None else "")


def self_contained(config: Config) -> tuple[str, dict[str, bytes]]:
    """The configuration as TOML, and the files it names, by the names it has for them."""
    nested, inputs = config.to_dict(), {}

    def own(name: str, file: Path) -> str:
        try:
            inputs[name] = file.read_bytes()
        except OSError as error:
            raise InputError(
                str(file), Verbatim("unreadable"), f"a file ({error.strerror})"
            ) from None
        return f"inputs/{name}"

    for (section, option), file in config.files().items():
        nested[section][option] = own(f"{section}-{option}{file.suffix}", file)
    if config.general.plugins:
        files = [Path(file) for file in config.general.plugins]
        nested["plugins"] = [own(f"plugin-{k}.py", file) for k, file in enumerate(files)]
    if nested.get("data", {}).get("dir"):
        nested["data"]["dir"] = str(Path(nested["data"]["dir"]).expanduser().resolve())
    return tomli_w.dumps(nested), inputs


def write_inputs(folder: Path, inputs: Mapping[str, bytes]) -> None:
    """Put the files that a configuration names beside it."""
    for name, content in inputs.items():
        (folder / "inputs").mkdir(exist_ok=True)
        write_atomically(folder / "inputs" / name, content)
