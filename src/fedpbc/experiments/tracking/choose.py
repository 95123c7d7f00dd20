"""Which trackers there are; each is imported when it is first used."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fedpbc.errors import InputError
from fedpbc.experiments.tracking.tracker import Tracker
from fedpbc.options import nearest

__all__ = ["TRACKERS", "check_trackers", "checked_names", "make_tracker", "remove_tracker_files"]

TRACKERS = {
    "tensorboard": "Event files in the run's folder; extra [tensorboard].",
    "mlflow": "MLFLOW_TRACKING_URI, or mlflow.db beside the run's folder; extra [mlflow].",
    "wandb": "Weights & Biases, project 'fedpbc'; extra [wandb].",
}
"""Each is a module here of the same name."""


def checked_names(names: Sequence[str] | str | None) -> list[str]:
    """The names of trackers, if they are right; "none" alone is none.

    Example:
        >>> checked_names("tensorboard"), checked_names(["none"])
        (['tensorboard'], [])
        >>> checked_names(["tensorbord"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        fedpbc.errors.InputError: track is 'tensorbord', but should be one of tensorboard, ...
    """
    if not isinstance(names, str | list | tuple | None):
        raise InputError("track", names, "a list, such as ['tensorboard']")
    given = [names] if isinstance(names, str) else list(names or ())
    if given == ["none"]:
        return []
    for name in given:
        if name not in TRACKERS:
            right = nearest(name, [*TRACKERS, "none"]) if isinstance(name, str) else "a name"
            raise InputError("track", name, right)
        if given.count(name) > 1:
            raise InputError("track", given, "different ones")
    return given


def check_trackers(names: Sequence[str]) -> None:
    """Find out what is wrong with trackers before anything begins: packages, log-ins, servers."""
    for name in names:
        _module(name).check()


def make_tracker(name: str) -> Tracker:
    """A tracker for one run."""
    tracker: Tracker = _module(name).make()
    return tracker


def remove_tracker_files(run: Path) -> None:
    """Remove what trackers wrote into a run's directory."""
    for name in TRACKERS:
        _module(name).remove_files(run)


def _module(name: str) -> Any:
    return import_module(f"fedpbc.experiments.tracking.{name}")
