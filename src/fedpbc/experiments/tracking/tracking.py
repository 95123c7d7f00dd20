"""Several trackers of one run at once; none of them can break it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedpbc.errors import one_line
from fedpbc.experiments.tracking.choose import make_tracker
from fedpbc.experiments.tracking.tracker import State, TrackedRun, Tracker, values_of

__all__ = ["Tracking", "TrackingPlan"]


@dataclass(frozen=True)
class TrackingPlan:
    """Which trackers a run has, the configuration they show, and the group it belongs to.

    Example:
        >>> TrackingPlan().names
        ()
    """

    names: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    group: Path | None = None


class Tracking:
    """A run's trackers. One that fails is switched off and noted, and the run goes on.

    Example:
        >>> tracking = Tracking([], print)
        >>> tracking.end("finished")
        []
    """

    def __init__(self, names: Sequence[str], note: Callable[[str], None] | None = None) -> None:
        self._note = note
        self._trackers: dict[str, Tracker] = {}
        self._began = time.time()
        for name in names:
            self._guarded(name, partial(self._make, name))

    def begin(
        self,
        run: TrackedRun,
        kept: Mapping[str, Mapping[str, str]],
        history: Iterable[Mapping[str, Any]],
    ) -> dict[str, dict[str, str]]:
        """Begin, or go on after the evaluations that were made already; gives what to keep.

        All trackers are told of those: one may be new, or have missed some when it was killed.
        """
        lines = list(history)
        self._began = time.time() - (lines[-1]["seconds"] if lines else 0.0)
        keep = {
            name: {key: value for key, value in found.items() if key != "state"}
            for name, found in kept.items()
        }

        def go_on(name: str, tracker: Tracker) -> None:
            keep[name] = tracker.begin(run, keep.get(name, {}))
            for line in lines:
                self._tell(tracker, line)

        for name, tracker in list(self._trackers.items()):
            self._guarded(name, partial(go_on, name, tracker))
        return keep

    def log(self, line: Mapping[str, Any]) -> None:
        """An evaluation was made."""
        for name, tracker in list(self._trackers.items()):
            self._guarded(name, partial(self._tell, tracker, line))

    def end(self, state: State) -> list[str]:
        """The run ended; gives the names of those that know it."""
        for name, tracker in list(self._trackers.items()):
            self._guarded(name, partial(tracker.end, state))
        told = list(self._trackers)
        self._trackers.clear()
        return told

    def _make(self, name: str) -> None:
        self._trackers[name] = make_tracker(name)

    def _tell(self, tracker: Tracker, line: Mapping[str, Any]) -> None:
        # As if the run had never been stopped: then relative time is the time it took.
        tracker.log(line["round"], values_of(line), self._began + line["seconds"])

    def _guarded(self, name: str, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:
            self._trackers.pop(name, None)
            if self._note is not None:
                self._note(f"{name} is switched off, the run goes on: {one_line(error)}")
