"""A run on disk::

    config.toml             all settings, the run's id, and the checksums of the files they name
    inputs/                 copies of these files
    metrics.jsonl           one JSON object per evaluation
    clients.safetensors     links, probabilities and class counts of the clients, for reports
    checkpoint-R.safetensors  the state after R rounds; the last two are kept until the end
    reports.bin             each client's last report, if kept on disk; removed at the end
    final.safetensors       one flat vector per view, with the parameters' names and shapes
    result.json             the result; only of a finished run
    failure.txt             one line: why the run failed; removed when it goes on
    tracking.json, tensorboard/   what trackers need to recognise the run
    report.html             written by ``fedpbc report``

Every file is written whole or not at all, and nothing outside the folder is written or removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedpbc.errors import InputError
from fedpbc.limits import MAX_INTEGER, parse_json
from fedpbc.storage.atomic import naming_errors, write_atomically
from fedpbc.storage.directories import LOCK, locked_directory, make_directory
from fedpbc.storage.files import read_own_file, read_regular_file
from fedpbc.storage.removal import own_files, remove_empty_folder, remove_files
from fedpbc.storage.toml import parsed_toml, toml_text
from fedpbc.study.record import Record
from fedpbc.study.spec import Execution, Spec, content_of, read_values
from fedpbc.study.study import Run

if TYPE_CHECKING:
    from torch import Tensor

    from fedpbc.tasks.parameter_layout import Layout

__all__ = ["RunFolder", "check_free", "copy_input", "is_below", "renamed"]

TEMPORARY = (".*.tmp", ".tmp??????")
"""Half-written files of a process that was killed."""
LEFTOVERS = (LOCK, "inputs", *TEMPORARY)
"""What is left in a new folder by a process that is killed before its first file."""


class Labelled(Protocol):
    """What says where a run belongs in a study."""

    @property
    def label(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def condition(self) -> str: ...
    @property
    def problem(self) -> str: ...


class RunFolder:
    """One run on disk.

    Example:
        >>> import tempfile
        >>> folder = RunFolder(Path(tempfile.mkdtemp()) / "run")
        >>> folder.begin(Run.of({"data": "digits", "rounds": 5}))
        >>> folder.holds_run, folder.finished, folder.id == folder.load().id
        (True, False, True)
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.toml"
        self.metrics_path = self.path / "metrics.jsonl"
        self.clients_path = self.path / "clients.safetensors"
        self.reports_path = self.path / "reports.bin"
        self.final_path = self.path / "final.safetensors"
        self.result_path = self.path / "result.json"
        self.failure_path = self.path / "failure.txt"
        self.tracking_path = self.path / "tracking.json"

    # ------------------------------------------------------------------------ what is there

    @property
    def id(self) -> str | None:
        """The id of the run that was begun here; None if there is none."""
        try:
            known = parsed_toml(self.config_path, follow_links=False).get("id")
        except InputError:
            return None
        return known if isinstance(known, str) else None

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return self.id is not None

    @property
    def finished(self) -> bool:
        """Whether the run is complete: the result is written last."""
        return self.result_path.is_file()

    def values(self) -> dict[str, Any]:
        """All settings, as they were written; nothing is checked or imported."""
        if not self.holds_run:
            reason = "there is no config.toml"
            if self.config_path.exists():
                reason = "its config.toml was not written by a run, or is damaged"
            raise InputError("folder", str(self.path), f"one that holds a run ({reason})")
        values = parsed_toml(self.config_path, follow_links=False)
        return {key: value for key, value in values.items() if key not in ("id", "files")}

    def load(self, code: Iterable[Path | str] = ()) -> Run:
        """The run, to go on with it.

        Its plugins and its app are imported from where their owner named them, as long as they are
        the same; ``code`` are files that are named again, in their place.
        """
        self.values()
        values = read_values(self.config_path, follow_links=False)
        known, files = values.pop("id"), dict(values.pop("files", {}))
        named = {content_of(file): str(Path(file).absolute()) for file in code}
        plugins = values.get("plugins", [])
        values["plugins"] = [self._code(file, files, named, "--plugin") for file in plugins]
        if "app" in values.get("task", {}):
            values["task"]["app"] = self._code(values["task"]["app"], files, named, "--app")
        for name, checksum in files.items():
            if name.startswith("inputs/") and content_of(self.path / name) != checksum:
                raise InputError(
                    f"{self.path / name} has changed since the run began: restore it, or start "
                    "again with --overwrite"
                )
        run = Run.of(values)
        if run.id != known:
            raise InputError(
                f"{self.config_path} has changed since the run began: restore it, or start again "
                "with --overwrite"
            )
        return run

    def _code(
        self, file: str, files: Mapping[str, str], named: Mapping[str, str], option: str
    ) -> str:
        """Where code is imported from: never from a folder of results, unless it is named."""
        checksum = files.get(str(file), "")
        if checksum in named:
            return named[checksum]
        path = Path(str(file))
        is_elsewhere = path.is_absolute() and not is_below(path, self.path)
        if not is_elsewhere or not path.is_file() or content_of(path) != checksum:
            raise InputError(
                f"{self.path} needs {file}, which is not there any more as it was: name a file "
                f"with the same content, as in {option} {path.name}"
            )
        return str(path)

    def record(self, run: Labelled | None = None) -> Record:
        """What came of the run; ``run`` says its label, role and condition in a study."""
        values = self.values()
        return Record(
            label=values["algorithm"]["name"] if run is None else run.label,
            role="entry" if run is None else run.role,
            condition="" if run is None else run.condition,
            problem="" if run is None else run.problem,
            seed=values["seed"],
            values=values,
            metrics=self.metrics(),
            result=self.result(),
            failure=self.failure(),
            folder=self.path,
        )

    def metrics(self) -> list[dict[str, Any]]:
        """All evaluations; a last line that a kill cut short is skipped."""
        if not self.metrics_path.is_file():
            return []
        *complete, rest = read_own_file(self.path, self.metrics_path.name).split(b"\n")
        if rest and self.finished:
            complete.append(rest)
        lines = []
        for number, line in enumerate(complete, start=1):
            try:
                lines.append(parse_json(line))
            except ValueError:
                where = f"{self.metrics_path} line {number}"
                raise InputError(f"{where} is damaged: it is not a JSON object") from None
        return lines

    def result(self) -> dict[str, Any] | None:
        """The result of a finished run."""
        if not self.finished:
            return None
        try:
            result: dict[str, Any] = parse_json(read_own_file(self.path, self.result_path.name))
            return dict(result)
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{self.result_path} is damaged: {error}") from None

    def failure(self) -> str | None:
        """Why the run failed, if it did."""
        try:
            return read_own_file(self.path, "failure.txt", 1 << 16).decode().strip()
        except (OSError, ValueError):
            return None

    # ---------------------------------------------------------------------- what is written

    def check_free(self) -> None:
        """Raise InputError if something else than a run is there."""
        hint = " (its config.toml was not written by a run)" * self.config_path.exists()
        check_free(self.path, holds=self.holds_run, hint=hint)

    def begin(self, run: Run) -> None:
        """Write the configuration, and before it the files that it names: then there is a run."""
        self.check_free()
        spec, files = run.spec, run.spec.files()
        names = spec.inputs()
        config = {
            "id": spec.id,
            **renamed(spec.dump(), names),
            **run.execution.dump(),
            "files": {names.get(path, path): checksum for path, checksum in files.items()},
        }
        text = toml_text(config)
        make_directory(self.path)
        for path, name in {**names, **_copies_of_plugins(spec)}.items():
            copy_input(Path(path), self.path / name)
        write_atomically(self.config_path, text)

    def save_execution(self, execution: Execution) -> None:
        """Write how the run is executed from now on."""
        values = parsed_toml(self.config_path, follow_links=False)
        changed = {k: v for k, v in values.items() if k not in Execution.model_fields}
        changed = {**changed, **execution.dump()}
        if changed != values:
            write_atomically(self.config_path, toml_text(changed))

    def append_metrics(self, line: bytes) -> None:
        """Add one evaluation. A file that has vanished is not made again."""
        flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        with (
            naming_errors(self.metrics_path),
            os.fdopen(os.open(self.metrics_path, flags), "ab") as file,
        ):
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def write_metrics(self, content: bytes) -> None:
        """Put the file of evaluations back as it was."""
        write_atomically(self.metrics_path, content)

    def save_final(self, models: Mapping[str, Tensor], layout: Layout) -> None:
        """Write the final model of each view."""
        from fedpbc.storage.tensors import save_tensors

        parameters = [
            {"name": name, "shape": list(shape)}
            for name, shape in zip(layout.names, layout.shapes, strict=True)
        ]
        # One entry only: several would stand in another order in every file.
        metadata = {"parameters": json.dumps(parameters)}
        # Two views may be the same tensor; a file may not hold it twice.
        copies = {view: model.detach().clone() for view, model in models.items()}
        save_tensors(self.final_path, copies, metadata)

    def save_result(self, result: Mapping[str, Any]) -> None:
        """Write the result; from now on the run is finished."""
        write_atomically(self.result_path, json.dumps(result, indent=2, allow_nan=False) + "\n")

    def save_failure(self, line: str) -> None:
        """Write why the run failed."""
        write_atomically(self.failure_path, line + "\n")

    def load_tracking(self) -> tuple[Path | None, dict[str, dict[str, str]]]:
        """The study's folder that the run is tracked with, and the state of each tracker.

        Empty if the file is damaged: then trackers start again.
        """
        try:
            content = parse_json(read_own_file(self.path, self.tracking_path.name))
            group = None if content["group"] is None else self.path / content["group"]
            if group is not None and not is_below(self.path, group):
                group = None
            return group, {name: dict(state) for name, state in content["trackers"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None, {}

    def save_tracking(self, group: Path | None, states: Mapping[str, Mapping[str, str]]) -> None:
        """Write what a resumed run must know to stay the same run for its trackers."""
        # Relative: the folders may be moved together.
        relative = None if group is None else Path(os.path.relpath(group, self.path)).as_posix()
        text = json.dumps({"group": relative, "trackers": states}, indent=2)
        write_atomically(self.tracking_path, text + "\n")

    def remove_temporary_files(self) -> None:
        """Remove half-written files that a killed process left behind."""
        remove_files(self.path, [file.name for file in own_files(self.path, TEMPORARY)])

    def remove_working_files(self) -> None:
        """Remove what only an unfinished run needs."""
        remove_files(self.path, ["checkpoint-*.safetensors", self.reports_path.name])

    def discard(self, run: Run) -> None:
        """Remove a run that could not begin."""
        self.remove_temporary_files()
        self.remove_working_files()
        names = ("metrics.jsonl", "clients.safetensors", "failure.txt", "config.toml")
        inputs = {**run.spec.inputs(), **_copies_of_plugins(run.spec)}.values()
        remove_files(self.path, [*names, *inputs, LOCK])
        for folder in (self.path / "inputs", self.path):
            remove_empty_folder(folder)

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from working on the same run."""
        return locked_directory(self.path)


def check_free(path: Path, *, holds: bool, hint: str = "") -> None:
    """Raise InputError if a folder is none, or has other files; ``holds``: it has results of ours.

    Example:
        >>> import tempfile
        >>> check_free(Path(tempfile.mkdtemp()), holds=False)
    """
    if path.exists() and not path.is_dir():
        raise InputError("out", str(path), "a folder; this is a file")
    there = {*path.iterdir()} if path.is_dir() else set()
    ours = {each for name in LEFTOVERS for each in path.glob(name)}
    if there - ours and not holds:
        raise InputError(f"out: {path} holds other files{hint}; choose a new or empty folder")
    for name in ("inputs", "tensorboard"):
        if (path / name).is_symlink():
            raise InputError(f"{path / name} is a link: a folder of results has none")


def _copies_of_plugins(spec: Spec) -> dict[str, str]:
    """Where a run keeps copies of its plugins, which are imported only if they are named again."""
    return {file: f"inputs/{Path(file).stem}-{content_of(file)[:12]}.py" for file in spec.plugins}


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Values with other names for files.

    Example:
        >>> renamed({"links": {"file": "/a/up.csv"}}, {"/a/up.csv": "inputs/up.csv"})
        {'links': {'file': 'inputs/up.csv'}}
    """
    if isinstance(value, Mapping):
        return {key: renamed(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [renamed(inner, names) for inner in value]
    return names.get(value, value) if isinstance(value, str) else value


def copy_input(file: Path, target: Path) -> None:
    """Copy a file that settings name into a folder, unless it is there."""
    try:
        content = read_regular_file(file, limit=MAX_INTEGER - 1)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    target.parent.mkdir(exist_ok=True)
    if not target.is_file() or content_of(target) != content_of(file):
        write_atomically(target, content)


def is_below(path: Path, folder: Path) -> bool:
    """Whether a path is inside a folder, links followed."""
    return path.resolve().is_relative_to(folder.resolve())
