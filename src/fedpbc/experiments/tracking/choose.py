"""The available trackers; each module is imported when it is first used."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from fedpbc.errors import InputError
from fedpbc.experiments.tracking.tracker import Tracker
from fedpbc.options import nearest

__all__ = ["TRACKERS", "check_trackers", "checked_names", "make_tracker"]

TRACKERS = {
    "tensorboard": "Event files in the run's folder; extra [tensorboard].",
    "mlflow": "MLFLOW_TRACKING_URI, or mlflow.db beside the run's folder; extra [mlflow].",
    "wandb": "Weights & Biases, project 'fedpbc'; extra [wandb].",
}
"""Each has a module of the same name in this package."""


def checked_names(names: Sequence[str] | str | None) -> list[str]:
    """The names of trackers as a list, after checking them; "none" alone means no tracker."""
    if not isinstance(names, str | list | tuple | None):
        raise InputError("track", names, "a list, such as ['tensorboard']")
    trackers = [names] if isinstance(names, str) else list(names or ())
    if trackers == ["none"]:
        return []
    for name in trackers:
        if not isinstance(name, str) or name not in TRACKERS:
            allowed = nearest(name, [*TRACKERS, "none"]) if isinstance(name, str) else "a name"
            raise InputError("track", name, allowed)
        if trackers.count(name) > 1:
            raise InputError("track", trackers, "different ones")
    return trackers


def check_trackers(names: Sequence[str]) -> None:
    """Check packages, logins and servers, before a run starts."""
    for name in names:
        _module(name).check()


def make_tracker(name: str) -> Tracker:
    """A tracker for one run."""
    tracker: Tracker = _module(name).make()
    return tracker


def _module(name: str) -> Any:
    return import_module(f"fedpbc.experiments.tracking.{name}")
