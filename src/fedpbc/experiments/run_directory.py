"""A run's directory on disk.

config.toml             all settings, defaults included; the run can be repeated from it
inputs/                 copies of the files that the configuration names
fleet.safetensors       the timetable, probabilities and class counts, for reports
metrics.jsonl           one JSON object per line, one line per evaluation
checkpoint-R.safetensors  the state after R rounds; the last two are kept
reports.bin             each client's last report, if kept on disk; removed at the end
final.safetensors       one flat vector per view, with the parameters' names and shapes
summary.json            the result; only of a finished run
failure.txt             one line: why the run failed; removed when it is resumed
report.html             written by 'fedpbc report'
tracking.json           what trackers need to recognise the run, if there are any
"""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedpbc.errors import InputError
from fedpbc.experiments.checkpoints import Checkpoints
from fedpbc.experiments.tracking.tensorboard import remove_event_files
from fedpbc.simulation.last_reports import FILE as LAST_REPORTS_FILE
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.directories import locked_directory, make_directory
from fedpbc.storage.tensors import save_tensors
from fedpbc.tasks.parameter_layout import Layout

__all__ = ["RunDirectory", "is_report", "load_view"]

TEMPORARY = (
    ".checkpoint-",
    ".config.",
    ".fleet.",
    ".metrics.",
    ".final.",
    ".summary.",
    ".failure.",
    ".report.",
    ".tracking.",
    ".tmp",
)
"""Prefixes of files that are being written; the last is that of safetensors."""


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
            values = tomllib.loads(self.config_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return {"algorithm", "links", "rounds"} <= values.keys()

    @property
    def finished(self) -> bool:
        """Whether the run is complete."""
        return self.summary_path.is_file() and self.final_path.is_file()

    def create(self, *, overwrite: bool = False) -> None:
        """Make an empty directory for a new run; with ``overwrite``, remove an earlier one."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError("out", str(self.path), "a folder; this is a file")
        if self.holds_run and not overwrite:
            raise InputError(
                f"out: {self.path} holds a run already; choose a new folder, continue it with "
                "'fedpbc resume', or start it again with --overwrite"
            )
        if self.path.is_dir() and any(self.path.iterdir()):
            if not self.holds_run and not self._is_leftover():
                raise InputError(
                    f"out: {self.path} holds other files; choose a new or empty folder"
                )
            with self.locked():
                self.clear()
        make_directory(self.path)

    def _is_leftover(self) -> bool:
        """Whether all files here are of a run that was killed while it began or ended."""
        expected = {file.name for file in self._run_files()} | {"inputs", ".lock"}
        names = {entry.name for entry in self.path.iterdir()}
        return all(name in expected or name.startswith(TEMPORARY) for name in names)

    def _run_files(self) -> list[Path]:
        results = (self.metrics_path, self.final_path, self.summary_path, self.failure_path)
        page = [self.report_path] if is_report(self.report_path) else []
        others = (self.last_reports_path, self.overview_path, *page, self.tracking_path)
        files = (*self.checkpoints.paths(), *others, *results, self.config_path)
        return [file for file in files if file.is_file()]

    def clear(self) -> None:
        """Remove what a run wrote, and nothing else; its configuration last."""
        shutil.rmtree(self.path / "inputs", ignore_errors=True)
        remove_event_files(self.path)
        self.remove_temporary_files()
        for file in self._run_files():
            file.unlink()

    def remove_temporary_files(self) -> None:
        """Remove half-written files that a killed process left behind."""
        for prefix in TEMPORARY:
            for file in self.path.glob(f"{prefix}*"):
                if file.is_file() and (prefix == ".tmp" or file.suffix == ".tmp"):
                    file.unlink()

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from working on the same run."""
        return locked_directory(self.path)

    def write_config(self, text: str, inputs: Mapping[str, bytes]) -> None:
        """Write the configuration, and the files it names before it: then there is a run."""
        write_inputs(self.path, inputs)
        write_atomically(self.config_path, text)

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """Add one evaluation."""
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """All evaluations; a last line that a kill cut short is skipped."""
        if not self.metrics_path.is_file():
            return []
        lines = self.metrics_path.read_text(encoding="utf-8").split("\n")
        evaluations = []
        for number, line in enumerate(filter(None, lines), start=1):
            try:
                evaluations.append(json.loads(line))
            except json.JSONDecodeError:
                # A complete line ends with a newline: then it was not a kill that damaged it.
                if number == len(lines) and lines[-1] == line:
                    break
                where = f"{self.metrics_path} line {number}"
                raise InputError(f"{where} is damaged: it is not a JSON object") from None
        return evaluations

    def cut_metrics(self, rounds: int) -> None:
        """Drop evaluations after so many rounds: the run will make them again."""
        earlier = [line for line in self.metrics() if line["round"] <= rounds]
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in earlier)
        write_atomically(self.metrics_path, text)

    def load_tracking(self) -> tuple[Path | None, dict[str, dict[str, str]]]:
        """The group that the run belongs to, and the state of each tracker.

        Empty if the file is damaged: then trackers start again.
        """
        try:
            content = json.loads(self.tracking_path.read_text(encoding="utf-8"))
            group = self.path / content["group"] if content["group"] else None
            return group, {name: dict(state) for name, state in content["trackers"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None, {}

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
        write_atomically(self.summary_path, json.dumps(summary, indent=2) + "\n")

    def save_failure(self, line: str) -> None:
        """Write why the run failed."""
        write_atomically(self.failure_path, line + "\n")

    def failure(self) -> str | None:
        """Why the run failed, if it did."""
        try:
            return self.failure_path.read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            return None

    def remove_last_reports(self) -> None:
        """Remove the last reports of a finished run, and the checkpoints, which need them.

        The file has a model for each client, or more.
        """
        if self.last_reports_path.is_file():
            self.checkpoints.remove()
            self.last_reports_path.unlink()

    def summary(self) -> dict[str, Any]:
        """The result of a finished run."""
        try:
            summary: dict[str, Any] = json.loads(self.summary_path.read_text(encoding="utf-8"))
            summary["views"], summary["rounds"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.summary_path} cannot be read: {error}") from None
        return summary


REPORT_MARK = "fedpbc report"
"""Near the beginning of every page that we write."""


def is_report(path: Path) -> bool:
    """Whether a file is a report page of ours, and not another file of the same name."""
    try:
        with path.open("rb") as file:
            return REPORT_MARK.encode() in file.read(1000)
    except OSError:
        return False


def write_inputs(directory: Path, inputs: Mapping[str, bytes]) -> None:
    """Write the files that a configuration names beside it."""
    for name, content in inputs.items():
        (directory / "inputs").mkdir(exist_ok=True)
        write_atomically(directory / "inputs" / name, content)


def load_view(folder: Path | str, view: str) -> dict[str, Tensor]:
    """The parameters of a finished run's final model, by name.

    ``module.load_state_dict(load_view("runs/a", "reported"))`` puts them to use.

    Example:
        >>> import tempfile, torch
        >>> run = RunDirectory(tempfile.mkdtemp())
        >>> run.save_final({"server": torch.ones(6)}, Layout(("weight",), ((2, 3),)))
        >>> load_view(run.path, "server")["weight"].shape
        torch.Size([2, 3])
    """
    path = RunDirectory(folder).final_path
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            if view not in names:
                raise InputError("view", view, f"one of {', '.join(sorted(names))}")
            parameters = json.loads((file.metadata() or {})["parameters"])
            flat = file.get_tensor(view).clone()
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read: {error}; is the run finished?") from None
    layout = Layout(
        tuple(p["name"] for p in parameters), tuple(tuple(p["shape"]) for p in parameters)
    )
    return layout.named(flat)
