"""All trackers of one run; none of them can make it fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fedpbc.errors import one_line
from fedpbc.experiments.tracking.choose import make_tracker
from fedpbc.experiments.tracking.tracker import State, TrackedRun, Tracker, values_of

__all__ = ["Tracking"]


class Tracking:
    """A run's trackers. One that fails is switched off with a note, and the run continues."""

    def __init__(self, names: Sequence[str], note: Callable[[str], None] | None = None) -> None:
        self._note = note
        self._trackers: dict[str, Tracker] = {}
        self._began = time.time()
        for name in names:
            with self._guarded(name):
                self._trackers[name] = make_tracker(name)

    def begin(
        self,
        run: TrackedRun,
        saved: Mapping[str, Mapping[str, str]],
        history: Iterable[Mapping[str, Any]],
    ) -> dict[str, dict[str, str]]:
        """Start or resume a run; returns what each tracker needs when the run resumes.

        The evaluations so far are sent to all trackers: one may be new, or may have missed some
        when the run was killed.
        """
        lines = list(history)
        self._began = time.time() - (lines[-1]["seconds"] if lines else 0.0)
        states = {
            name: {key: value for key, value in state.items() if key != "state"}
            for name, state in saved.items()
        }
        for name, tracker in list(self._trackers.items()):
            with self._guarded(name):
                states[name] = tracker.begin(run, states.get(name, {}))
                for line in lines:
                    self._send(tracker, line)
        return states

    def log(self, line: Mapping[str, Any]) -> None:
        """Send an evaluation."""
        for name, tracker in list(self._trackers.items()):
            with self._guarded(name):
                self._send(tracker, line)

    def end(self, state: State) -> list[str]:
        """End the run; returns the names of the trackers that could be told."""
        for name, tracker in list(self._trackers.items()):
            with self._guarded(name):
                tracker.end(state)
        names = list(self._trackers)
        self._trackers.clear()
        return names

    def _send(self, tracker: Tracker, line: Mapping[str, Any]) -> None:
        # As if the run had never been stopped: then relative time is the time it took.
        tracker.log(line["round"], values_of(line), self._began + line["seconds"])

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._trackers.pop(name, None)
            if self._note is not None:
                self._note(f"{name} is switched off, the run continues: {one_line(error)}")
