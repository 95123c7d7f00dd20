"""Whether a run's files are as they were written: checksums, and what is wrong with a directory.

A checkpoint has a checksum of its own, a copy of the evaluations so far and the checksums of the
inputs, which the manifest has from the start; the summary has the checksums of all other files. So
whatever is lost or changed on disk is found, and what a checkpoint has is put back to the bit.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.configuration import identity
from fedpbc.experiments.result_schema import check_metrics
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.limits import check_path, parse_toml
from fedpbc.simulation.last_reports import DamagedReportsError, LastReportsOnDisk, is_index
from fedpbc.simulation.loop import upgrade_state
from fedpbc.storage.files import read_own_file
from fedpbc.storage.manifest import MANIFEST, changed_files, checksummed_files
from fedpbc.storage.removal import own_files
from fedpbc.storage.tensors import DamagedCheckpointError, load_state
from fedpbc.storage.toml import parsed_toml

__all__ = [
    "CHECKSUMS",
    "Damage",
    "Verification",
    "changed_inputs",
    "damage_of",
    "damaged_inputs",
    "input_checksums",
    "sealed",
    "verify_run",
]

CHECKSUMS = "checksums"
"""The key in a summary."""
MAX_FILE = 1 << 40
"""Final models may be larger than any other file that is read whole."""


@dataclass(frozen=True)
class Damage:
    """A file that is not as it was written.

    Attributes:
        repairable: whether ``fedpbc resume`` makes it again, to the same bits.
    """

    file: Path
    reason: str
    repairable: bool = True

    def __str__(self) -> str:
        return f"{self.file} is damaged: {self.reason}"


@dataclass(frozen=True)
class Verification:
    """What :func:`verify_run` found.

    Attributes:
        state: finished or unfinished.
        damage: files that are not as they were written.
        checked: how many files were compared with what is known of them.
        note: what could not be checked.
    """

    path: Path
    state: str
    damage: tuple[Damage, ...] = ()
    checked: int = 0
    note: str = ""


def input_checksums(directory: RunDirectory) -> dict[str, str]:
    """The checksums of the files that the configuration names."""
    files = own_files(directory.path, ["inputs/*"])
    return {
        f"inputs/{file.name}": _checksum(directory, f"inputs/{file.name}")
        for file in files
        if not file.name.startswith(".")
    }


def sealed(directory: RunDirectory, summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary with the checksums of all files of a finished run, itself included."""
    names = ("metrics.jsonl", "final.safetensors", "fleet.safetensors")
    checksums = {name: _checksum(directory, name) for name in names}
    checksums |= input_checksums(directory) | {"config.toml": _config_checksum(directory)}
    content = {**summary, CHECKSUMS: checksums}
    return {**summary, CHECKSUMS: checksums | {"summary.json": _summary_checksum(content)}}


def damage_of(directory: RunDirectory, files: Collection[str] | None = None) -> list[Damage]:
    """What is wrong with the files of a finished run; nothing can be said of earlier versions'.

    Besides the summary and the configuration only ``files`` are read; None: all.
    """
    return list(_damage_of_finished(directory, files))


def verify_run(path: Path) -> Verification:
    """Check the files of a run, finished or not; nothing is changed.

    Example:
        >>> import tempfile
        >>> from fedpbc import Config, start_run
        >>> folder = Path(tempfile.mkdtemp()) / "run"
        >>> config = Config.from_dict({"data": "digits", "clients": 5, "rounds": 2})
        >>> summary = start_run(config, folder)
        >>> verify_run(folder).damage
        ()
    """
    check_path(path, "path")
    directory = RunDirectory(path)
    directory.check_holds_run()
    directory.check_links()
    if not directory.was_finished:
        damage = tuple(_damage_of_unfinished(directory))
        return Verification(path, "unfinished", damage, len(directory.checkpoints.paths()) + 1)
    damage = tuple(_damage_of_finished(directory))
    if damage:
        return Verification(path, "finished", damage)
    checksums = directory.summary().get(CHECKSUMS, {})
    note = "" if checksums else "an earlier version wrote it, without checksums"
    return Verification(path, "finished", checked=len(checksums), note=note)


def _damage_of_finished(
    directory: RunDirectory, files: Collection[str] | None = None
) -> Iterator[Damage]:
    try:
        summary = directory.summary()
    except InputError as error:
        yield Damage(directory.summary_path, str(error))
        return
    checksums = summary.get(CHECKSUMS)
    if checksums is None and not (directory.path / MANIFEST).exists():
        return  # Earlier versions wrote neither.
    if not isinstance(checksums, dict):
        yield Damage(directory.summary_path, "its checksums are missing")
        return
    expected = dict(checksums)
    summary_checksum = expected.pop("summary.json", None)
    if summary_checksum != _summary_checksum({**summary, CHECKSUMS: expected}):
        yield Damage(directory.summary_path, "its checksum does not fit")
        return
    if expected.pop("config.toml", None) != _config_checksum(directory):
        reason = "it was changed since the run; restore it, or start again with --overwrite"
        yield Damage(directory.config_path, reason, repairable=False)
    for name, checksum in expected.items():
        if files is not None and name not in files:
            continue
        is_input = name.startswith("inputs/")
        reason = _difference(directory, name, checksum)
        if reason and is_input:
            reason += "; restore it, or start again with --overwrite"
        if reason:
            yield Damage(directory.path / name, reason, repairable=not is_input)


def _damage_of_unfinished(directory: RunDirectory) -> Iterator[Damage]:
    """What resuming would find."""
    yield from damaged_inputs(directory)
    try:
        metrics = directory.metrics_bytes()
    except OSError as error:
        metrics = b""
        yield Damage(directory.metrics_path, str(error.strerror))
    for path in directory.checkpoints.paths():
        try:
            state = load_state(path)
            _check_last_reports(directory, state)
        except (DamagedCheckpointError, DamagedReportsError) as error:
            yield Damage(path, str(error))
            continue
        except (FedpbcError, LookupError, TypeError, ValueError) as error:
            yield Damage(path, str(error), repairable=False)
            continue
        known = checksummed_files(directory.path, "run")
        for name in changed_inputs(directory, state):
            if name not in known:  # An earlier version's, whose manifest has no checksums.
                yield _changed_input(directory, name)
        saved = state.get("metrics") if isinstance(state, Mapping) else None
        if saved is not None and not metrics.startswith(bytes(saved)):
            yield Damage(directory.metrics_path, f"{path.name} has other evaluations")
        elif saved is not None and len(metrics) > len(bytes(saved)):
            yield from _damaged_tail(directory)
        return


def _damaged_tail(directory: RunDirectory) -> Iterator[Damage]:
    """Evaluations after the last checkpoint that the run cannot have written."""
    try:
        check_metrics(directory.metrics(), parsed_toml(directory.config_path, follow_links=False))
    except InputError as error:
        yield Damage(directory.metrics_path, str(error))


def damaged_inputs(directory: RunDirectory) -> list[Damage]:
    """The inputs that are not as they were when the run began, by its manifest."""
    return [_changed_input(directory, name) for name in changed_files(directory.path, "run")]


def _changed_input(directory: RunDirectory, name: str) -> Damage:
    reason = "it was changed since the run began; restore it, or start again with --overwrite"
    return Damage(directory.path / name, reason, repairable=False)


def _check_last_reports(directory: RunDirectory, state: Any) -> None:
    index = upgrade_state(state["simulation"])["server"]["reported"]
    if is_index(index) and index["slots"]:
        with closing(LastReportsOnDisk(directory.last_reports_path)) as reports:
            reports.restore(index)


def changed_inputs(directory: RunDirectory, state: Mapping[str, Any]) -> list[str]:
    """The inputs that are not as they were when a checkpoint was written."""
    checksums = state.get("inputs")
    if not isinstance(checksums, Mapping):
        return []  # Earlier versions kept none.
    return [name for name, known in checksums.items() if _difference(directory, name, known)]


def _difference(directory: RunDirectory, name: str, checksum: str) -> str:
    """Why a file is not the one with this checksum; empty if it is."""
    try:
        return "" if _checksum(directory, name) == checksum else "its checksum does not fit"
    except OSError as error:
        return (error.strerror or str(error)).lower()


def _checksum(directory: RunDirectory, name: str) -> str:
    return sha256(read_own_file(directory.path, name, MAX_FILE)).hexdigest()


def _config_checksum(directory: RunDirectory) -> str:
    """Of the settings that matter: trackers, say, may change after the run."""
    try:
        values = identity(parse_toml(read_own_file(directory.path, "config.toml").decode()))
    except (OSError, ValueError, AttributeError):
        return ""
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _summary_checksum(summary: Mapping[str, Any]) -> str:
    return sha256(json.dumps(summary, sort_keys=True).encode()).hexdigest()
