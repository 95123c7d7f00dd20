"""A run's folder on disk.

config.toml             everything that was set, defaults included; the run can be made again
inputs/                 copies of the files that the configuration names
fleet.safetensors       who gets through when and how likely, and who holds what; for reports
metrics.jsonl           one JSON object a line, one line an evaluation
checkpoint-R.safetensors  the state after R rounds; the last two are kept
reports.bin             what each client reported last, where that is kept on disk, until the end
final.safetensors       one flat vector a view, with the parameters' names and shapes
summary.json            how it ended; there only when the run is finished
failure.txt             one line: why it could not go on; gone when it is resumed
report.html             what 'fedpbc report' made of it
tracking.json           where trackers have the run, if there are any
tensorboard/            TensorBoard's files, if that is one of them
"""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedpbc.errors import FedpbcError, InputError, Verbatim
from fedpbc.experiments.tracking.tensorboard import clear_events
from fedpbc.simulation.last_reports import FILE as REPORTS_FILE
from fedpbc.simulation.last_reports import DamagedReportsError
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.tensors import (
    DamagedCheckpointError,
    load_state,
    peek_state,
    save_state,
    save_tensors,
)
from fedpbc.tasks.layout import Layout

try:
    import fcntl
except ImportError:  # Windows has no such locks.
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "RunDirectory",
    "is_report",
    "load_view",
    "locked_directory",
    "make_directory",
    "rounds_of",
]

KEPT_CHECKPOINTS = 2
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
"""How files begin that are being written; the last is what safetensors calls its own."""


class RunDirectory:
    """One run on disk.

    Example:
        >>> import tempfile
        >>> folder = RunDirectory(Path(tempfile.mkdtemp()) / "run")
        >>> folder.holds_run
        False
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def config_path(self) -> Path:
        """What was set."""
        return self.path / "config.toml"

    @property
    def metrics_path(self) -> Path:
        """What was measured."""
        return self.path / "metrics.jsonl"

    @property
    def fleet_path(self) -> Path:
        """What the fleet looks like."""
        return self.path / "fleet.safetensors"

    @property
    def reports_path(self) -> Path:
        """What each client reported last, if that is kept on disk."""
        return self.path / REPORTS_FILE

    @property
    def final_path(self) -> Path:
        """The final models."""
        return self.path / "final.safetensors"

    @property
    def summary_path(self) -> Path:
        """How it ended."""
        return self.path / "summary.json"

    @property
    def failure_path(self) -> Path:
        """Why it could not go on."""
        return self.path / "failure.txt"

    @property
    def report_path(self) -> Path:
        """The page about it."""
        return self.path / "report.html"

    @property
    def tracking_path(self) -> Path:
        """Where trackers have the run."""
        return self.path / "tracking.json"

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here: a configuration of ours, not just any file of that name."""
        try:
            found = tomllib.loads(self.config_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return {"algorithm", "links", "rounds"} <= found.keys()

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.summary_path.is_file() and self.final_path.is_file()

    def create(self, *, overwrite: bool = False) -> None:
        """Make an empty folder for a new run; earlier results stay unless told to overwrite."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError("out", str(self.path), "a folder; this is a file")
        if self.holds_run and not overwrite:
            right = "a new folder; 'fedpbc resume' continues a run, --overwrite starts it anew"
            raise InputError("out", Verbatim(f"{self.path}, which holds a run already"), right)
        if self.path.is_dir() and any(self.path.iterdir()):
            if not self.holds_run and not self._is_leftover():
                right = "a new or empty folder"
                raise InputError("out", Verbatim(f"{self.path}, which holds other files"), right)
            with self.locked():
                self.clear()
        make_directory(self.path)

    def _is_leftover(self) -> bool:
        """Whether all that is here was left by a run that was stopped while it began or ended."""
        names = {place.name for place in self.path.iterdir()}
        own = {place.name for place in self._own_files()}
        return all(n in own | {"inputs", ".lock"} or n.startswith(TEMPORARY) for n in names)

    def _own_files(self) -> list[Path]:
        results = (self.metrics_path, self.final_path, self.summary_path, self.failure_path)
        page = [self.report_path] if is_report(self.report_path) else []
        others = (self.reports_path, self.fleet_path, *page, self.tracking_path)
        own = (*self.checkpoints(), *others, *results, self.config_path)
        return [place for place in own if place.is_file()]

    def clear(self) -> None:
        """Remove what a run wrote, and nothing else; its configuration last."""
        shutil.rmtree(self.path / "inputs", ignore_errors=True)
        clear_events(self.path)
        self.sweep()
        for place in self._own_files():
            place.unlink()

    def sweep(self) -> None:
        """Remove the half-written files that a kill left behind."""
        for start in TEMPORARY:
            for place in self.path.glob(f"{start}*"):
                if place.is_file() and (start == ".tmp" or place.suffix == ".tmp"):
                    place.unlink()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working on the same run; a killed process lets go by itself."""
        with locked_directory(self.path):
            yield

    # ---- metrics

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """Add one evaluation."""
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """All evaluations; a last line that was cut short by a kill is left out."""
        if not self.metrics_path.is_file():
            return []
        lines = self.metrics_path.read_text(encoding="utf-8").split("\n")
        found = []
        for number, line in enumerate(filter(None, lines), start=1):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                # A whole line ends with a newline: then it is not a kill that damaged it.
                if number == len(lines) and lines[-1] == line:
                    break
                where = f"{self.metrics_path} line {number}"
                raise InputError(where, Verbatim("damaged"), "one JSON object") from None
        return found

    def cut_metrics(self, rounds: int) -> None:
        """Forget evaluations after so many rounds: the run will make them again."""
        kept = [line for line in self.metrics() if line["round"] <= rounds]
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in kept)
        write_atomically(self.metrics_path, text)

    # ---- checkpoints

    def checkpoints(self) -> list[Path]:
        """The checkpoints that are there, newest first."""
        found = [
            place
            for place in self.path.glob("checkpoint-*.safetensors")
            if place.stem.removeprefix("checkpoint-").isdigit()
        ]
        return sorted(found, key=rounds_of, reverse=True)

    def save_checkpoint(self, rounds: int, state: Mapping[str, Any]) -> None:
        """Write the state after so many rounds and keep the last two."""
        save_state(self.path / f"checkpoint-{rounds:07d}.safetensors", state)
        found = self.checkpoints()
        # One of a later round was of no use, or the run would be there; metrics are cut, too.
        later = [path for path in found if rounds_of(path) > rounds]
        for old in (*later, *found[len(later) + KEPT_CHECKPOINTS :]):
            old.unlink()

    def load_checkpoint(
        self, take_up: Callable[[Any], None] = lambda state: None
    ) -> tuple[Any, list[str]]:
        """The newest state that is whole, or None, and what is wrong with newer ones.

        ``take_up`` is called with a state; it may find that reports which are not in the checkpoint
        itself are damaged.
        """
        complaints: list[str] = []
        for path in self.checkpoints():
            try:
                state = load_state(path)
                take_up(state)
            except DamagedCheckpointError as error:
                complaints.append(str(error))
            except DamagedReportsError as error:
                complaints.append(f"{path} is of no use: {error}")
            else:
                return state, complaints
        return None, complaints

    def peek_checkpoints(self) -> Iterator[Any]:
        """The states of all checkpoints, without their tensors."""
        for path in self.checkpoints():
            try:
                state = peek_state(path)
            except DamagedCheckpointError:
                continue  # Nobody can go on from it.
            yield state

    # ---- trackers

    def load_tracking(self) -> tuple[Path | None, dict[str, dict[str, str]]]:
        """The group that the run belongs to, and what each tracker has to keep of it.

        Nothing if the file is damaged: then a tracker begins anew.
        """
        try:
            found = json.loads(self.tracking_path.read_text(encoding="utf-8"))
            group = self.path / found["group"] if found["group"] else None
            return group, {name: dict(kept) for name, kept in found["trackers"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None, {}

    def save_tracking(self, group: Path | None, kept: Mapping[str, Mapping[str, str]]) -> None:
        """Write what a run that goes on must know to stay the same for its trackers."""
        # As seen from here: the folders may be moved together.
        above = None if group is None else Path(os.path.relpath(group, self.path)).as_posix()
        text = json.dumps({"group": above, "trackers": kept}, indent=2)
        write_atomically(self.tracking_path, text + "\n")

    # ---- the end

    def save_final(self, models: Mapping[str, Tensor], layout: Layout) -> None:
        """Write the final model of each view."""
        parameters = [
            {"name": name, "shape": list(shape)}
            for name, shape in zip(layout.names, layout.shapes, strict=True)
        ]
        # One entry only: several would stand in another order in every file.
        metadata = {"parameters": json.dumps(parameters)}
        # Two views may be the same tensor; a file may not hold it twice.
        own = {view: model.detach().clone() for view, model in models.items()}
        save_tensors(self.final_path, own, metadata)

    def save_summary(self, summary: Mapping[str, Any]) -> None:
        """Write how it ended; from now on the run is finished."""
        write_atomically(self.summary_path, json.dumps(summary, indent=2) + "\n")

    def save_failure(self, line: str) -> None:
        """Write why the run could not go on."""
        write_atomically(self.failure_path, line + "\n")

    def failure(self) -> str | None:
        """Why the run could not go on, if it could not."""
        try:
            return self.failure_path.read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            return None

    def remove_reports(self) -> None:
        """Remove what clients reported last, and the checkpoints, which are nothing without it.

        For a run that is finished: the file has a model for each client, or more.
        """
        if self.reports_path.is_file():
            for checkpoint in self.checkpoints():
                checkpoint.unlink()
            self.reports_path.unlink()

    def summary(self) -> dict[str, Any]:
        """How it ended."""
        try:
            found: dict[str, Any] = json.loads(self.summary_path.read_text(encoding="utf-8"))
            found["views"], found["rounds"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                str(self.summary_path), Verbatim(f"unreadable ({error})"), "JSON"
            ) from None
        return found


REPORT_MARK = "fedpbc report"
"""Stands near the beginning of every page that we write."""


def is_report(path: Path) -> bool:
    """Whether a file is a page of ours, and not somebody's own of the same name."""
    try:
        with path.open("rb") as file:
            return REPORT_MARK.encode() in file.read(1000)
    except OSError:
        return False


def rounds_of(checkpoint: Path) -> int:
    """After how many rounds a checkpoint was written."""
    return int(checkpoint.stem.removeprefix("checkpoint-"))


@contextmanager
def locked_directory(path: Path) -> Iterator[None]:
    """Hold a folder's lock."""
    with (path / ".lock").open("w") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FedpbcError(f"{path} is in use by another process") from None
        yield


def make_directory(path: Path) -> None:
    """Make a folder for results, whatever is above it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or "impossible"
        raise InputError("out", str(path), f"a folder that can be made ({reason})") from None


def load_view(folder: Path | str, view: str) -> dict[str, Tensor]:
    """The parameters of a finished run's final model, by name.

    ``module.load_state_dict(load_view("runs/a", "reported"))`` puts them to use.

    Example:
        >>> import tempfile, torch
        >>> folder = RunDirectory(tempfile.mkdtemp())
        >>> folder.save_final({"server": torch.ones(6)}, Layout(("weight",), ((2, 3),)))
        >>> load_view(folder.path, "server")["weight"].shape
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
        raise InputError(str(path), Verbatim(f"unreadable ({error})"), "a finished run's") from None
    layout = Layout(
        tuple(p["name"] for p in parameters), tuple(tuple(p["shape"]) for p in parameters)
    )
    return layout.named(flat)
