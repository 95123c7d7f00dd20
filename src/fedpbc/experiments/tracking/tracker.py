"""The interface of a tracker, and what it receives of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, Protocol

__all__ = ["Setting", "State", "TrackedRun", "Tracker", "values_of"]

State = Literal["finished", "failed", "killed"]
"""How a run ended. After SIGKILL nothing can be sent: the tracker still shows it as running."""

Setting = bool | int | float | str
MAX_LENGTH = 500
"""Characters of a setting: some MLflow servers refuse more."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told about a run when it starts or resumes.

    Attributes:
        about: its algorithm, links, data, seed and fingerprint.
        options: its configuration.
        group: the folder of the comparison or table that it belongs to, if any.
    """

    folder: Path
    about: Mapping[str, Any]
    options: Mapping[str, Any]
    group: Path | None = None

    @property
    def name(self) -> str:
        """The folder's name; in a group, its path relative to the group."""
        folder = self.folder.resolve()
        if self.group is not None and folder.is_relative_to(self.group.resolve()):
            return folder.relative_to(self.group.resolve()).as_posix()
        return folder.name

    @property
    def group_name(self) -> str | None:
        """The name of the group's folder."""
        return None if self.group is None else self.group.resolve().name

    @property
    def shared_folder(self) -> Path:
        """Where files that several runs share may go: the parent of the run's or group's folder."""
        return (self.group or self.folder).resolve().parent

    def settings(self) -> dict[str, Setting]:
        """The configuration, flat."""
        return {key: value for key, value in _flatten(self.options) if key != "track"}

    def tags(self) -> dict[str, str]:
        """What identifies the run."""
        return {key: str(value) for key, value in self.about.items()}


class Tracker(Protocol):
    """Where a run's metrics are sent. An error that it raises switches it off, not the run."""

    def begin(self, run: TrackedRun, saved: Mapping[str, str]) -> dict[str, str]:
        """Start or resume a run; returns what is passed as ``saved`` when the run resumes."""

    def log(self, round: int, values: Mapping[str, float], at: float) -> None:
        """Add an evaluation, made at a time in seconds since 1970.

        A resumed run sends all evaluations again, in order; none may appear twice.
        """

    def end(self, state: State) -> None:
        """End the run, or this process's part of it."""


def _flatten(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Setting]]:
    """Nested options with dotted keys; anything but numbers and strings becomes JSON."""
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, bool | int | float):
            yield f"{prefix}{key}", value
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            if len(text) > MAX_LENGTH:
                text = shorten(text, MAX_LENGTH, placeholder=" …")
            yield f"{prefix}{key}", text


def values_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in a line of metrics, flat: VIEW/KEY for a view, VIEW_per_class/K for a class.

    Example:
        >>> values_of({"round": 10, "active": 3, "consensus_error": None,
        ...            "views": {"mean": {"test_loss": 0.5, "per_class": [1.0, None]}}})
        {'active': 3, 'mean/test_loss': 0.5, 'mean_per_class/0': 1.0}
    """
    values = {key: value for key, value in line.items() if key not in ("round", "views")}
    for view, evaluation in line["views"].items():
        for key, value in evaluation.items():
            if isinstance(value, list):
                values |= {f"{view}_{key}/{k}": each for k, each in enumerate(value)}
            else:
                values[f"{view}/{key}"] = value
    return {
        key: value
        for key, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
