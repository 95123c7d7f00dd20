"""A run's folder on disk.

config.toml             everything that was set, defaults included; the run can be made again
inputs/                 copies of the files that the configuration names
metrics.jsonl           one JSON object a line, one line an evaluation
checkpoint-R.safetensors  the state after R rounds; the last two are kept
final.safetensors       one flat vector a view, with the parameters' names and shapes
summary.json            how it ended; there only when the run is finished
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedpbc.errors import FedpbcError, InputError, Words
from fedpbc.models.flat import Layout
from fedpbc.runs.atomic import write_atomically
from fedpbc.runs.checkpoint import DamagedCheckpointError, load_state, save_state

try:
    import fcntl
except ImportError:  # Windows has no such locks.
    fcntl = None  # type: ignore[assignment]

__all__ = ["RunFolder", "load_view"]

KEPT_CHECKPOINTS = 2


class RunFolder:
    """One run on disk.

    Example:
        >>> import tempfile
        >>> folder = RunFolder(Path(tempfile.mkdtemp()) / "run")
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
    def final_path(self) -> Path:
        """The final models."""
        return self.path / "final.safetensors"

    @property
    def summary_path(self) -> Path:
        """How it ended."""
        return self.path / "summary.json"

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return self.config_path.is_file()

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.summary_path.is_file()

    def create(self, *, overwrite: bool = False) -> None:
        """Make an empty folder for a new run; earlier results stay unless told to overwrite."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError("out", str(self.path), "a folder; this is a file")
        if self.holds_run and not overwrite:
            right = "a new folder; 'fedpbc resume' continues a run, --overwrite starts it anew"
            raise InputError("out", Words(f"{self.path}, which holds a run already"), right)
        if self.path.is_dir() and any(self.path.iterdir()):
            if not self.holds_run and not self._is_leftover():
                right = "a new or empty folder"
                raise InputError("out", Words(f"{self.path}, which holds other files"), right)
            with self.locked():
                self._clear()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                "out", str(self.path), f"a folder that can be made ({error})"
            ) from None

    def _is_leftover(self) -> bool:
        """Whether a run was stopped before it had written its configuration."""
        return all(p.name in {"inputs", ".lock"} or p.suffix == ".tmp" for p in self.path.iterdir())

    def _clear(self) -> None:
        # The configuration first: from then on there is no run here, only leftovers.
        for place in (self.config_path, *self.path.glob("*")):
            if place.is_dir() and place.name == "inputs":
                shutil.rmtree(place)
            elif place.is_file() or place.is_symlink():
                place.unlink()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working on the same run; a killed process lets go by itself."""
        with (self.path / ".lock").open("w") as file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise FedpbcError(f"{self.path} is in use by another process") from None
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
        found = []
        for number, line in enumerate(self.metrics_path.read_text(encoding="utf-8").split("\n")):
            if not line:
                continue
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                if not self.finished:
                    break
                raise InputError(
                    f"{self.metrics_path} line {number + 1}", Words("damaged"), "one JSON object"
                ) from None
        return found

    def cut_metrics(self, rounds: int) -> None:
        """Forget evaluations after so many rounds: the run will make them again."""
        kept = [line for line in self.metrics() if line["round"] <= rounds]
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in kept)
        write_atomically(self.metrics_path, text)

    # ---- checkpoints

    def checkpoints(self) -> list[Path]:
        """The checkpoints that are there, newest first."""
        found = self.path.glob("checkpoint-*.safetensors")
        return sorted(found, key=lambda p: int(p.stem.split("-")[1]), reverse=True)

    def save_checkpoint(self, rounds: int, state: Mapping[str, Any]) -> None:
        """Write the state after so many rounds and keep the last two."""
        save_state(self.path / f"checkpoint-{rounds:07d}.safetensors", state)
        for old in self.checkpoints()[KEPT_CHECKPOINTS:]:
            old.unlink()

    def load_checkpoint(self) -> tuple[Any, list[str]]:
        """The newest state that is whole, or None, and what is wrong with newer ones."""
        complaints: list[str] = []
        for path in self.checkpoints():
            try:
                return load_state(path), complaints
            except DamagedCheckpointError as error:
                complaints.append(str(error))
        return None, complaints

    # ---- the end

    def save_final(
        self, models: Mapping[str, Tensor], layout: Layout, about: Mapping[str, str]
    ) -> None:
        """Write the final model of each view."""
        parameters = [
            {"name": name, "shape": list(shape)}
            for name, shape in zip(layout.names, layout.shapes, strict=True)
        ]
        metadata = {**about, "parameters": json.dumps(parameters)}
        # Two views may be the same tensor; a file may not hold it twice.
        own = {view: model.detach().clone() for view, model in models.items()}
        write_atomically(self.final_path, lambda place: save_file(own, place, metadata))

    def save_summary(self, summary: Mapping[str, Any]) -> None:
        """Write how it ended; from now on the run is finished."""
        write_atomically(self.summary_path, json.dumps(summary, indent=2) + "\n")

    def summary(self) -> dict[str, Any]:
        """How it ended."""
        try:
            found: dict[str, Any] = json.loads(self.summary_path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(
                str(self.summary_path), Words(f"unreadable ({error})"), "JSON"
            ) from None
        return found


def load_view(folder: Path | str, view: str) -> dict[str, Tensor]:
    """The parameters of a finished run's final model, by name.

    ``module.load_state_dict(load_view("runs/a", "reported"), strict=False)`` puts them to use.
    """
    path = RunFolder(folder).final_path
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
        raise InputError(str(path), Words(f"unreadable ({error})"), "a finished run's") from None
    layout = Layout(
        tuple(p["name"] for p in parameters), tuple(tuple(p["shape"]) for p in parameters)
    )
    return layout.named(flat)
