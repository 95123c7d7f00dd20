"""Execute a run, with or without a folder: killed anywhere, it goes on to the same bits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpbc.errors import DivergedError, FedpbcError, InputError, WorkerError
from fedpbc.experiments.checkpoints import Checkpoints, rounds_of
from fedpbc.experiments.client_overview import client_tensors, save_client_overview
from fedpbc.interrupts import held_back
from fedpbc.simulation.metrics import Metrics
from fedpbc.storage.directories import make_directory
from fedpbc.storage.removal import remove_files
from fedpbc.study.build import Built, build
from fedpbc.study.record import Record
from fedpbc.study.run_folder import RunFolder
from fedpbc.study.study import Run
from fedpbc.study.summary import reset_peak_memory, summary_of
from fedpbc.tasks import Task

if TYPE_CHECKING:
    from fedpbc.experiments.tracking import Tracking

__all__ = ["StoppedError", "Watcher", "execute", "has_ended"]

CHECKPOINT_SECONDS = 30.0
CHECKPOINT_SHARE = 0.05
"""At most this share of the time is spent on writing checkpoints."""


class StoppedError(FedpbcError):
    """Raised by a watcher to stop a run, which can go on later."""


@dataclass(frozen=True)
class Watcher:
    """Callbacks of a run.

    Attributes:
        on_start: called with the rounds completed, all rounds, and one line on the engine.
        on_round: called after every round, with its metrics if it was evaluated.
        on_note: called with lines that a person should see.
    """

    on_start: Callable[[int, int, str], None] | None = None
    on_round: Callable[[int, Metrics | None], None] | None = None
    on_note: Callable[[str], None] | None = None

    def start(self, done: int, rounds: int, engine: str) -> None:
        """Say where the run begins, if anybody listens."""
        if self.on_start is not None:
            self.on_start(done, rounds, engine)

    def round(self, done: int, metrics: Metrics | None) -> None:
        """Show a round, if anybody looks."""
        if self.on_round is not None:
            self.on_round(done, metrics)

    def note(self, line: str) -> None:
        """Pass on a line, if anybody listens."""
        if self.on_note is not None:
            self.on_note(line)


def execute(
    run: Run,
    folder: Path | str | None = None,
    watcher: Watcher | None = None,
    *,
    until: int | None = None,
    task: Task | None = None,
    group: Path | None = None,
) -> Record:
    """Execute a run, or what is left of it, and return what came of it.

    A finished run in the folder is kept, an unfinished one goes on; another run there is an error.

    Args:
        until: pause after so many rounds, with a checkpoint; the record then has no result.
        task: of a task that was made in Python.
        group: the folder of the study that it belongs to, for trackers.

    Example:
        >>> run = Run.of({"data": "digits", "clients": 5, "rounds": 2, "algorithm": "fedavg"})
        >>> record = execute(run)
        >>> record.finished, record.metrics[-1]["round"], sorted(record.models)
        (True, 2, ['averaged', 'server'])
    """
    watcher = watcher or Watcher()
    if folder is None:
        return _in_memory(run, build(run, task=task), watcher)
    place = RunFolder(folder)
    if _check_place(place, run) is not None:
        if place.finished:
            _tell_late_trackers(place, run, watcher, group)
            return place.record(run)
        if until is not None and _has_paused(place, until):
            return place.record(run)
    if group is None:
        _check_trackers(run.execution.track)
    # Everything that can be wrong is found before anything is written.
    built = build(run, task=task, reports=place.reports_path)
    with closing(built.simulation):
        make_directory(place.path)
        with place.locked():
            # Another process may have begun or finished it in the meantime.
            begins = _check_place(place, run) is None
            if place.finished:
                return place.record(run)
            try:
                if begins:
                    place.begin(run)
                else:
                    place.save_execution(run.execution)
                return _Execution(run, built, place, watcher, group).complete(until)
            except InputError:
                if begins and built.simulation.round == 0:
                    # Found only when the run began: nothing is left of it.
                    place.discard(run)
                raise


def _check_place(place: RunFolder, run: Run) -> str | None:
    """The id of the run that is there; raises if it is another one, or something else."""
    place.check_free()
    known = place.id
    if known is not None and known != run.id:
        there, here = place.values(), run.spec.dump()
        keys = [k for k in here if k not in ("views", "plugins") and there.get(k) != here[k]]
        which = f", with another {keys[0]}" if keys else ""
        raise InputError(
            f"out: {place.path} holds another run{which}; choose a new folder, or replace it with "
            "--overwrite"
        )
    return known


def has_ended(run: Run, folder: Path | None, until: int | None = None) -> bool:
    """Whether nothing is left to run in a folder, or until a pause."""
    place = None if folder is None else RunFolder(folder)
    if place is None or place.id != run.id:
        return False
    return place.finished or (until is not None and _has_paused(place, until))


def _has_paused(place: RunFolder, until: int) -> bool:
    """Whether a run was evaluated after so many rounds, and can go on from there."""
    newest = max(map(rounds_of, Checkpoints(place.path).paths()), default=-1)
    return newest >= until and any(line["round"] == until for line in place.metrics())


def _about(run: Run) -> dict[str, Any]:
    """What identifies a run for people."""
    spec = run.spec
    return {
        "id": run.id,
        "algorithm": spec.algorithm.name,
        "links": spec.links.name,
        "data": spec.task.name if spec.data is None else spec.data.name,
        "seed": run.seed,
    }


def _in_memory(run: Run, built: Built, watcher: Watcher) -> Record:
    """Execute a run of which no file is kept."""
    simulation, lines = built.simulation, []
    reset_peak_memory()
    with closing(simulation):
        watcher.start(0, simulation.rounds, built.engine)
        for note in built.notes:
            watcher.note(note)
        for metrics in simulation.steps():
            if metrics is not None:
                lines.append(metrics.as_dict())
            watcher.round(simulation.round, metrics)
        # While the engine's processes live, whose memory is in it.
        result = summary_of(_about(run), simulation, built.engine, lines[-1], built.notes)
    return Record(
        label=run.label,
        role=run.role,
        condition=run.condition,
        problem=run.problem,
        seed=run.seed,
        values=_values(run),
        metrics=lines,
        result=result,
        clients=client_tensors(simulation),
        models=simulation.view_models(),
    )


def _values(run: Run) -> dict[str, Any]:
    return {**run.spec.dump(), **run.execution.dump()}


class _Execution:
    """A run in its folder, which is locked."""

    def __init__(
        self, run: Run, built: Built, place: RunFolder, watcher: Watcher, group: Path | None
    ) -> None:
        self.run, self.built, self.place = run, built, place
        self.simulation, self.watcher, self.group = built.simulation, watcher, group
        self.checkpoints = Checkpoints(place.path)
        self.about = {"id": run.id, "fingerprint": built.fingerprint}
        self.metrics = b""
        """The content of ``metrics.jsonl``."""
        self.done = 0
        """Rounds of which everything is written."""

    def complete(self, until: int | None) -> Record:
        """Run the remaining rounds, or those until a pause, and write the result."""
        simulation, place = self.simulation, self.place
        reset_peak_memory()
        place.remove_temporary_files()
        resumed = self._restore()
        self.watcher.start(simulation.round, simulation.rounds, self.built.engine)
        # Whoever makes a group says it once.
        for note in self.built.notes if self.group is None else ():
            self.watcher.note(note)
        remove_files(place.path, [place.failure_path.name])
        with _tracked(self.run, place, self.watcher, self.group) as tracking:
            try:
                for metrics in self._rounds(resumed):
                    if metrics is not None:
                        tracking.log(metrics.as_dict())
                    self.watcher.round(simulation.round, metrics)
                    if until is not None and until <= self.done < simulation.rounds:
                        self._checkpoint_last_round()
                        return place.record(self.run)
            except (DivergedError, WorkerError) as error:
                place.save_failure(str(error))
                raise
            except (KeyboardInterrupt, StoppedError):
                self._checkpoint_last_round()
                raise
            last = json.loads(self.metrics.splitlines()[-1])
            about, notes = _about(self.run), self.built.notes
            result = summary_of(about, simulation, self.built.engine, last, notes)
            place.save_final(simulation.view_models(), simulation.task.layout)
            place.save_result(result)
        place.remove_working_files()
        return place.record(self.run)

    def _restore(self) -> bool:
        """Continue from the newest intact checkpoint; returns whether there was one."""

        def restore(state: Mapping[str, Any]) -> None:
            if state["about"] != self.about:
                raise FedpbcError(
                    f"{self.place.path}: the data have changed since the run began; restore them, "
                    "or start again with --overwrite"
                )
            self.metrics = bytes(state["metrics"])
            self.simulation.restore(state["simulation"])

        self._protect_last_reports()
        state, complaints = self.checkpoints.load(restore)
        remedy = "an older one is used" if state else "starting again from round 0"
        for line in complaints:
            self.watcher.note(f"{line}; {remedy}")
        if state is not None:
            # Evaluations after the checkpoint are made again.
            self.place.write_metrics(self.metrics)
        return state is not None

    def _protect_last_reports(self) -> None:
        """Keep the last reports that existing checkpoints refer to from being overwritten."""
        states = []
        for checkpoint in self.checkpoints.peek():
            try:
                states.append(checkpoint["simulation"]["server"]["reported"])
            except (LookupError, TypeError):
                continue  # Peeking checks nothing: a damaged one may hold anything.
        self.simulation.server.last_reports.protect(states)

    def _checkpoint(self) -> float:
        """Write a checkpoint; returns the seconds that it took."""
        began = time.monotonic()
        state = {
            "about": self.about,
            "simulation": self.simulation.state(),
            "metrics": np.frombuffer(bytearray(self.metrics), dtype=np.uint8),
        }
        self.checkpoints.save(self.simulation.round, state)
        self._protect_last_reports()
        return time.monotonic() - began

    def _checkpoint_last_round(self) -> None:
        """Keep what was done before an interrupt; a second one ends this, too."""
        if self.simulation.round == self.done + 1:
            # The round is complete, but its evaluation may not be.
            self._record(self.simulation.evaluate_last_round())
        newest = next(iter(self.checkpoints.paths()), None)
        if self.simulation.round == self.done and newest and rounds_of(newest) < self.done:
            self._checkpoint()

    def _record(self, metrics: Metrics | None) -> None:
        """Write the evaluation of the round that was completed, if there was one."""
        # Once: an interrupt in between would leave half a line.
        with held_back():
            if metrics is not None:
                line = json.dumps(metrics.as_dict(), allow_nan=False).encode() + b"\n"
                self.place.append_metrics(line)
                self.metrics += line
            self.done = self.simulation.round

    def _rounds(self, resumed: bool) -> Iterator[Metrics | None]:
        """Run the remaining rounds, with metrics and checkpoints."""
        simulation = self.simulation
        self.done = simulation.round
        if not resumed:
            # It shows now, not after half a minute of work, whether the algorithm's state can be
            # saved at all.
            self.place.write_metrics(b"")
            self._checkpoint()
        save_client_overview(self.place.clients_path, simulation)
        every, last = self.run.execution.checkpoint_every, time.monotonic()
        wait = CHECKPOINT_SECONDS
        try:
            for metrics in simulation.steps():
                self._record(metrics)
                due = self.done % every == 0 if every else time.monotonic() - last > wait
                if due and self.done < simulation.rounds:
                    wait = max(CHECKPOINT_SECONDS, self._checkpoint() / CHECKPOINT_SHARE)
                    last = time.monotonic()
                yield metrics
        except DivergedError as error:
            # The start of the failed round is worth keeping, unless an earlier round's work was
            # only fetched now, or only the evaluation failed.
            if simulation.round == self.done == error.round > 0:
                self._checkpoint()
            path = self.place.path
            usable = [p for p in self.checkpoints.paths() if rounds_of(p) <= error.round]
            where = f"{path} keeps {usable[0].name}" if usable else f"see {path}"
            raise DivergedError(error.client, error.round, error.view, where) from None
        except WorkerError as error:
            # The state is that before the round: with more memory, say, the run can go on.
            self._checkpoint()
            where = f"{self.place.path} keeps everything up to round {simulation.round}"
            raise type(error)(
                error.client, error.first_round, error.last_round, error.reason, where
            ) from None


# ---------------------------------------------------------------------------------------- trackers


def _check_trackers(names: Sequence[str]) -> None:
    """Check packages, logins and servers, before a run starts."""
    if names:
        from fedpbc.experiments.tracking import check_trackers

        check_trackers(names)


def _tell_late_trackers(place: RunFolder, run: Run, watcher: Watcher, group: Path | None) -> None:
    """Send a finished run to the trackers that do not have it yet."""
    if any(place.path.glob("checkpoint-*.safetensors")):
        with place.locked():  # It was killed between its last two steps.
            place.remove_working_files()
    _, states = place.load_tracking()
    late = [n for n in run.execution.track if states.get(n, {}).get("state") != "finished"]
    if late:
        if group is None:
            _check_trackers(late)
        with place.locked(), _tracked(run, place, watcher, group):
            place.save_execution(run.execution)


class _NoTracking:
    def log(self, line: Mapping[str, Any]) -> None:
        """Nobody listens."""


@contextmanager
def _tracked(
    run: Run, place: RunFolder, watcher: Watcher, group: Path | None
) -> Iterator[Tracking | _NoTracking]:
    """Trackers that have the evaluations so far, and that are told how the run ended."""
    if not run.execution.track:
        yield _NoTracking()
        return
    from fedpbc.experiments.tracking import State, TrackedRun, Tracking

    tracking = Tracking(run.execution.track, watcher.on_note)
    saved_group, states = place.load_tracking()
    group = group or saved_group
    tracked = TrackedRun(place.path, _about(run), _values(run), group)
    states = tracking.begin(tracked, states, place.metrics())
    place.save_tracking(group, states)

    def end(state: State) -> None:
        for name in tracking.end(state):
            states[name]["state"] = state
        place.save_tracking(group, states)

    try:
        yield tracking
    except BaseException as error:
        failed = isinstance(error, Exception) and not isinstance(error, StoppedError)
        end("failed" if failed else "killed")
        raise
    end("finished" if place.finished else "killed")
