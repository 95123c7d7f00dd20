"""What a tracker is, and what it is told of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, Protocol

__all__ = ["Setting", "State", "TrackedRun", "Tracker", "flat", "values_of"]

State = Literal["finished", "failed", "killed"]
"""How a run ended. A process that was killed outright says nothing: its run shows as running."""

Setting = bool | int | float | str
LONGEST = 500
"""Characters of a setting: some MLflow servers refuse more."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run when it begins or goes on.

    Attributes:
        folder: the run's.
        about: its algorithm, links, data, seed and fingerprint.
        options: its configuration.
        group: the folder of the comparison or the table that it belongs to, if any.

    Example:
        >>> run = TrackedRun(Path("/a/cmp/fedpbc/seed-0"), {}, {"links": {"p": [0.5, 1]}},
        ...                  Path("/a/cmp"))
        >>> run.name, run.group_name, str(run.beside)
        ('fedpbc/seed-0', 'cmp', '/a')
        >>> run.settings()
        {'links.p': '[0.5, 1]'}
    """

    folder: Path
    about: Mapping[str, Any]
    options: Mapping[str, Any]
    group: Path | None = None

    @property
    def name(self) -> str:
        """The folder's name; in a group, its place there."""
        own = self.folder.resolve()
        if self.group is not None and own.is_relative_to(self.group.resolve()):
            return own.relative_to(self.group.resolve()).as_posix()
        return own.name

    @property
    def group_name(self) -> str | None:
        """The group's folder's name."""
        return None if self.group is None else self.group.resolve().name

    @property
    def beside(self) -> Path:
        """Where files that several runs share may go: beside the run's or the group's folder."""
        return (self.group or self.folder).resolve().parent

    def settings(self) -> dict[str, Setting]:
        """The configuration, flat."""
        return {key: value for key, value in flat(self.options) if key != "track"}

    def tags(self) -> dict[str, str]:
        """What identifies the run."""
        return {key: str(value) for key, value in self.about.items()}


class Tracker(Protocol):
    """Where a run's numbers go. Any error it raises switches it off, and the run goes on."""

    def begin(self, run: TrackedRun, kept: Mapping[str, str]) -> dict[str, str]:
        """Begin a run, or go on with one of which this was kept; gives what to keep of it."""

    def log(self, round: int, values: Mapping[str, float], at: float) -> None:
        """What an evaluation found, and when (seconds since 1970).

        A run that goes on is told of all evaluations again, in order: what is there already must
        not be there twice.
        """

    def end(self, state: State) -> None:
        """The run ended, or at least this process's part of it."""


def flat(options: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Setting]]:
    """Nested options with dots in their names; what is no number or text becomes JSON."""
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{key}.")
        elif isinstance(value, bool | int | float):
            yield f"{above}{key}", value
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            if len(text) > LONGEST:
                text = shorten(text, LONGEST, placeholder=" …")
            yield f"{above}{key}", text


def values_of(line: Mapping[str, Any]) -> dict[str, float]:
    """A line of metrics, flat: VIEW/KEY for what is known of a view, VIEW_per_class/K of a class.

    Example:
        >>> values_of({"round": 10, "active": 3, "consensus_error": None,
        ...            "views": {"mean": {"test_loss": 0.5, "per_class": [1.0, None]}}})
        {'active': 3, 'mean/test_loss': 0.5, 'mean_per_class/0': 1.0}
    """
    found: dict[str, float] = {}
    for key, value in line.items():
        if key not in ("round", "views") and _is_number(value):
            found[key] = value
    for view, judged in line["views"].items():
        for key, value in judged.items():
            if _is_number(value):
                found[f"{view}/{key}"] = value
            elif isinstance(value, list):
                each = {f"{view}_{key}/{k}": v for k, v in enumerate(value)}
                found |= {name: v for name, v in each.items() if _is_number(v)}
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
