"""A run's directory on disk.

fedpbc-manifest.json    which files belong to the run; nothing else is ever removed
config.toml             all settings, defaults included; the run can be repeated from it
inputs/                 copies of the files that the configuration names
fleet.safetensors       the timetable, probabilities and class counts, for reports
metrics.jsonl           one JSON object per line, one line per evaluation
checkpoint-R.safetensors  the state after R rounds; the last two are kept
reports.bin             each client's last report, if kept on disk; removed at the end
final.safetensors       one flat vector per view, with the parameters' names and shapes
summary.json            the result, with checksums of the other files; only of a finished run
failure.txt             one line: why the run failed; removed when it is resumed
report.html             written by 'fedpbc report'
tracking.json           what trackers need to recognise the run, if there are any
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomli_w
from torch import Tensor

from fedpbc.errors import InputError
from fedpbc.experiments.checkpoints import Checkpoints
from fedpbc.experiments.result_folder import LEFTOVERS, check_result_folder
from fedpbc.experiments.result_schema import check_summary
from fedpbc.experiments.settings import FILES
from fedpbc.experiments.tracking.tensorboard import EVENTS as EVENT_FILES
from fedpbc.experiments.tracking.tensorboard import FOLDER as EVENT_FOLDER
from fedpbc.limits import parse_json, parse_toml
from fedpbc.simulation.last_reports import FILE as LAST_REPORTS_FILE
from fedpbc.storage.atomic import naming_errors, temporary_names, write_atomically
from fedpbc.storage.directories import LOCK, locked_directory
from fedpbc.storage.files import is_own_file, open_regular_file, read_own_file
from fedpbc.storage.manifest import MANIFEST, read_manifest, write_manifest
from fedpbc.storage.removal import own_files, remove_empty_folder, remove_files
from fedpbc.storage.tensors import save_tensors
from fedpbc.tasks.parameter_layout import Layout

__all__ = [
    "STAGING",
    "RunDirectory",
    "inputs_named_in",
    "is_report",
    "write_inputs",
]

STAGING = ".next"
"""Where a run that replaces an earlier one begins; see :mod:`fedpbc.experiments.replacement`."""
INPUT_NAME = re.compile(r"inputs/[^/]+")

RESULTS = (
    "metrics.jsonl",
    "final.safetensors",
    "summary.json",
    "failure.txt",
    "fleet.safetensors",
    "tracking.json",
    "checkpoint-*.safetensors",
    LAST_REPORTS_FILE,
    f"{EVENT_FOLDER}/{EVENT_FILES}*",
)
"""What a run writes besides its configuration and inputs."""
SAFETENSORS_TEMPORARY = ".tmp??????"


class RunDirectory:
    """One run on disk."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.toml"
        self.metrics_path = self.path / "metrics.jsonl"
        self.overview_path = self.path / "fleet.safetensors"
        self.last_reports_path = self.path / LAST_REPORTS_FILE
        self.final_path = self.path / "final.safetensors"
        self.summary_path = self.path / "summary.json"
        self.failure_path = self.path / "failure.txt"
        self.report_path = self.path / "report.html"
        self.tracking_path = self.path / "tracking.json"
        self.checkpoints = Checkpoints(self.path)

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here: a configuration of ours, not just a file of that name."""
        try:
            values = parse_toml(read_own_file(self.path, "config.toml").decode())
        except (OSError, ValueError):
            return False
        return {"algorithm", "links", "rounds"} <= values.keys()

    def check_holds_run(self) -> None:
        """Raise unless a run was begun here."""
        if not self.holds_run:
            reason = "there is no config.toml"
            if self.config_path.exists():
                reason = "its config.toml is damaged, or not one of a run"
            raise InputError("folder", str(self.path), f"one that holds a run ({reason})")

    @property
    def finished(self) -> bool:
        """Whether the run is complete; :mod:`fedpbc.experiments.integrity` checks its files."""
        return self.summary_path.is_file() and self.final_path.is_file()

    @property
    def was_finished(self) -> bool:
        """Whether the run was complete once: the summary is written last."""
        return self.summary_path.is_file()

    def check_links(self) -> None:
        """Raise if a file of the run is a link, a pipe or the like: nothing here follows one."""
        for name in (*_literal(RESULTS), "config.toml", MANIFEST, LOCK):
            path = self.path / name
            if path.is_symlink() or (path.exists() and not path.is_file()):
                raise InputError(f"{path} is not a regular file: a run's folder has no links")
        self.check_folders()

    def check_folders(self) -> None:
        """Raise if a folder of the run is a link: files would be written through it."""
        for name in ("inputs", EVENT_FOLDER, STAGING):
            if (self.path / name).is_symlink():
                raise InputError(f"{self.path / name} is a link: a run's folder has none")

    def check_free(self, *, overwrite: bool = False) -> None:
        """Raise unless a new run may be put here: in place of an earlier one with ``overwrite``."""
        hint = " (its config.toml was not written by a run)" * self.config_path.exists()
        check_result_folder(
            self.path, lambda: self.files() is not None or self._is_leftover(), hint
        )
        if self.holds_run and not overwrite:
            raise InputError(
                f"out: {self.path} holds a run already; choose a new folder, continue it with "
                "'fedpbc resume', or start it again with --overwrite"
            )

    def _is_leftover(self) -> bool:
        """Whether there is only what a run leaves that is killed before its first file."""
        allowed = {*own_files(self.path, LEFTOVERS)}
        return all(entry in allowed or entry.name == STAGING for entry in self.path.iterdir())

    def files(self) -> list[str] | None:
        """The names of the files that belong to the run, the configuration last; None: no run."""
        listed = read_manifest(self.path, "run")
        if listed is None and not self._is_of_earlier_version():
            return None
        inputs = listed
        if listed is None:
            # Earlier versions wrote no manifest.
            inputs = sorted(inputs_named_in(self.config_path.read_text(encoding="utf-8")))
        return [
            *(name for name in inputs or () if INPUT_NAME.fullmatch(name)),
            *RESULTS,
            "config.toml",
            MANIFEST,
        ]

    def _is_of_earlier_version(self) -> bool:
        """Whether a run without a manifest is here: what was written by hand looks different."""
        if not self.holds_run or (self.path / MANIFEST).exists():
            return False
        text = self.config_path.read_text(encoding="utf-8")
        begun = self.checkpoints.paths() or self.finished or self.overview_path.is_file()
        return bool(begun) and tomli_w.dumps(parse_toml(text)) == text

    def clear_leftovers(self) -> None:
        """Remove what is left of a run that was killed before it had a configuration."""
        if not self.holds_run:
            self.clear()
            remove_files(self.path, [temporary_names(MANIFEST)])

    def clear(self) -> None:
        """Remove what a run wrote, and nothing else; its configuration and manifest last."""
        files = self.files()
        if files is None:
            return
        if is_report(self.report_path):
            remove_files(self.path, ["report.html"])
        self.remove_temporary_files()
        remove_files(self.path, files)
        for folder in ("inputs", EVENT_FOLDER):
            remove_empty_folder(self.path / folder)

    def remove_temporary_files(self) -> None:
        """Remove half-written files that a killed process left behind."""
        names = (*_literal(RESULTS), "config.toml", MANIFEST, "report.html")
        patterns = [temporary_names(name) for name in names]
        patterns.append(temporary_names("checkpoint-*.safetensors"))
        remove_files(self.path, patterns)
        for path in self.path.glob(SAFETENSORS_TEMPORARY):
            remove_files(self.path, [path.name])

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from working on the same run."""
        return locked_directory(self.path)

    def write_config(self, text: str, inputs: Mapping[str, bytes]) -> None:
        """Write the configuration, and the files it names before it: then there is a run."""
        checksums = {f"inputs/{name}": sha256(data).hexdigest() for name, data in inputs.items()}
        files = [*checksums, *RESULTS, "config.toml", MANIFEST]
        write_manifest(self.path, "run", files, checksums)
        write_inputs(self.path, inputs)
        write_atomically(self.config_path, text)

    def append_metrics(self, line: Mapping[str, Any]) -> bytes:
        """Add one evaluation; returns its bytes. A file that has vanished is not made again."""
        content = json.dumps(line, allow_nan=False).encode() + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        with (
            naming_errors(self.metrics_path),
            os.fdopen(os.open(self.metrics_path, flags), "ab") as file,
        ):
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return content

    def metrics(self) -> list[dict[str, Any]]:
        """All evaluations; a last line that a kill cut short is skipped."""
        if not self.metrics_path.is_file():
            return []
        try:
            lines = self.metrics_bytes().decode().split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.metrics_path} is damaged: {error}") from None
        evaluations = []
        for number, line in enumerate(filter(None, lines), start=1):
            try:
                evaluation = parse_json(line)
                if not isinstance(evaluation, dict):
                    raise ValueError("not a JSON object")
                evaluations.append(evaluation)
            except ValueError:
                # A complete line ends with a newline: then it was not a kill that damaged it.
                if number == len(lines) and lines[-1] == line:
                    break
                where = f"{self.metrics_path} line {number}"
                raise InputError(f"{where} is damaged: it is not a JSON object") from None
        return evaluations

    def metrics_bytes(self) -> bytes:
        """The evaluations as they are in the file; empty if there is none."""
        if not self.metrics_path.is_file():
            return b""
        return read_own_file(self.path, "metrics.jsonl")

    def write_metrics(self, content: bytes) -> None:
        """Put the file of evaluations back as it was."""
        write_atomically(self.metrics_path, content)

    def load_tracking(self) -> tuple[Path | None, dict[str, dict[str, str]]]:
        """The group that the run belongs to, and the state of each tracker.

        Empty if the file is damaged: then trackers start again.
        """
        try:
            content = parse_json(read_own_file(self.path, "tracking.json"))
            group = self._group(content["group"]) if content["group"] else None
            return group, {name: dict(state) for name, state in content["trackers"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None, {}

    def _group(self, name: str) -> Path | None:
        """The comparison or search that this run says it is in, if it is: trackers write there."""
        group = self.path / name
        inside = self.path.resolve().is_relative_to(group.resolve())
        return group if inside and is_own_file(group, MANIFEST) else None

    def save_tracking(self, group: Path | None, states: Mapping[str, Mapping[str, str]]) -> None:
        """Write what a resumed run must know to stay the same run for its trackers."""
        # Relative: the folders may be moved together.
        relative = None if group is None else Path(os.path.relpath(group, self.path)).as_posix()
        text = json.dumps({"group": relative, "trackers": states}, indent=2)
        write_atomically(self.tracking_path, text + "\n")

    def save_final(self, models: Mapping[str, Tensor], layout: Layout) -> None:
        """Write the final model of each view."""
        parameters = [
            {"name": name, "shape": list(shape)}
            for name, shape in zip(layout.names, layout.shapes, strict=True)
        ]
        # One entry only: several would stand in another order in every file.
        metadata = {"parameters": json.dumps(parameters)}
        # Two views may be the same tensor; a file may not hold it twice.
        copies = {view: model.detach().clone() for view, model in models.items()}
        save_tensors(self.final_path, copies, metadata)

    def save_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the result; from now on the run is finished."""
        write_atomically(self.summary_path, json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def save_failure(self, line: str) -> None:
        """Write why the run failed."""
        write_atomically(self.failure_path, line + "\n")

    def failure(self) -> str | None:
        """Why the run failed, if it did."""
        try:
            return read_own_file(self.path, "failure.txt", 1 << 16).decode().strip()
        except (OSError, ValueError):
            return None

    def remove_last_reports(self) -> None:
        """Remove the last reports of a finished run, and the checkpoints, which need them.

        The file has a model for each client, or more.
        """
        if self.last_reports_path.is_file():
            self.checkpoints.remove()
            remove_files(self.path, [LAST_REPORTS_FILE])

    def summary(self) -> dict[str, Any]:
        """The result of a finished run."""
        try:
            summary: dict[str, Any] = parse_json(read_own_file(self.path, "summary.json"))
            check_summary(summary)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.summary_path} cannot be read: {error}") from None
        return summary


def _literal(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if "*" not in name]


def inputs_named_in(config: str) -> set[str]:
    """The files in ``inputs`` that a configuration names."""
    values = parse_toml(config)
    tables = [(values.get(section), option) for section, option in FILES]
    names = [table.get(option) for table, option in tables if isinstance(table, dict)]
    plugins = values.get("plugins")
    names.extend(plugins if isinstance(plugins, list) else ())
    return {name for name in names if isinstance(name, str) and INPUT_NAME.fullmatch(name)}


REPORT_MARK = "fedpbc report"
"""Near the beginning of every page that we write."""


def is_report(path: Path) -> bool:
    """Whether a file is a report page of ours, and not another file of the same name, or a link."""
    try:
        with open_regular_file(path, follow_links=False) as file:
            return REPORT_MARK.encode() in file.read(1000)
    except OSError:
        return False


def write_inputs(directory: Path, inputs: Mapping[str, bytes]) -> None:
    """Write the files that a configuration names beside it."""
    for name, content in inputs.items():
        (directory / "inputs").mkdir(exist_ok=True)
        write_atomically(directory / "inputs" / name, content)
