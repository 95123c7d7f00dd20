"""Execute an experiment in its directory: killed anywhere, it resumes to the same bits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from fedpbc.errors import DivergedError, FedpbcError, InputError, WorkerError
from fedpbc.experiments.build import Experiment
from fedpbc.experiments.checkpoints import rounds_of
from fedpbc.experiments.client_overview import save_client_overview
from fedpbc.experiments.integrity import changed_inputs, input_checksums, sealed
from fedpbc.experiments.peak_memory import reset_peak_memory
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.run_summary import run_summary
from fedpbc.experiments.tracking import State, TrackedRun, Tracking
from fedpbc.interrupts import held_back
from fedpbc.limits import check_path
from fedpbc.options import check_kind
from fedpbc.simulation.loop import upgrade_state
from fedpbc.simulation.metrics import Metrics
from fedpbc.storage.removal import remove_files
from fedpbc.storage.tensors import DamagedCheckpointError

__all__ = ["OnRound", "StoppedError", "Watcher", "check_watching", "execute", "tracked"]

OnRound = Callable[[int, Metrics | None], None]

CHECKPOINT_SECONDS = 30.0
CHECKPOINT_SHARE = 0.05
"""At most this share of the time is spent on writing checkpoints."""


class StoppedError(FedpbcError):
    """Raised by a watcher to stop a run, which can be resumed later."""


@dataclass(frozen=True)
class Watcher:
    """Callbacks of a run."""

    on_start: Callable[[int, int, str], None] | None = None
    """Called with the rounds completed, all rounds, and one line on the engine."""
    on_round: OnRound | None = None
    """Called after every round, with its metrics if it was evaluated."""
    on_note: Callable[[str], None] | None = None
    """Called with lines that a person should see."""

    def note(self, line: str) -> None:
        """Pass on a line, if anybody listens."""
        if self.on_note is not None:
            self.on_note(line)


def check_watching(watcher: object, group: object) -> None:
    """Raise InputError unless these are what :func:`start_run` and :func:`resume_run` take."""
    check_kind("watcher", watcher, (Watcher, type(None)), "a Watcher")
    if group is not None:
        check_path(group, "group")


def execute(
    experiment: Experiment,
    directory: RunDirectory,
    watcher: Watcher | None = None,
    group: Path | None = None,
    *,
    on_first_round: Callable[[], RunDirectory] | None = None,
) -> dict[str, Any]:
    """Run the remaining rounds and write the results; returns the summary.

    The experiment is before round 0, and continues from a checkpoint in the directory, which the
    caller has locked. ``group`` is the directory of the runs that belong together, for trackers.
    ``on_first_round`` is called after the first round, before trackers hear of the run, and returns
    the directory to go on in: a run that replaces another takes its place then.
    """
    execution = _Execution(experiment, directory, watcher or Watcher())
    return execution.run(group, on_first_round)


class _Execution:
    def __init__(self, experiment: Experiment, directory: RunDirectory, watcher: Watcher) -> None:
        self.experiment, self.simulation = experiment, experiment.simulation
        self.directory, self.watcher = directory, watcher
        self.about = experiment.about()
        self.inputs = input_checksums(directory)
        self.metrics_checksum = crc32(b"")

    def run(
        self, group: Path | None, on_first_round: Callable[[], RunDirectory] | None
    ) -> dict[str, Any]:
        simulation, config = self.simulation, self.experiment.config
        reset_peak_memory()
        with closing(simulation):
            self.directory.remove_temporary_files()
            resumed = self._restore()
            if self.watcher.on_start is not None:
                self.watcher.on_start(simulation.round, simulation.rounds, self.experiment.engine)
            # Whoever makes a group says it once.
            for note in self.experiment.notes if group is None else ():
                self.watcher.note(note)
            remove_files(self.directory.path, ["failure.txt"])
            rounds = self._rounds(resumed)
            if on_first_round is not None:
                first = next(rounds)
                self.directory = on_first_round()
                self._show(first)
            directory = self.directory
            run = TrackedRun(directory.path, self.about, config.to_dict(), group)
            with tracked(config.general.track or (), run, self.watcher) as tracking:
                try:
                    for metrics in rounds:
                        if metrics is not None:
                            tracking.log(metrics.as_dict())
                        self._show(metrics)
                except (DivergedError, WorkerError) as error:
                    directory.save_failure(str(error))
                    raise
                except (KeyboardInterrupt, StoppedError):
                    self._checkpoint_last_round()
                    raise
                self._checked_metrics()
                last = directory.metrics()[-1]
                summary = run_summary(
                    self.about, simulation, self.experiment.engine, last, self.experiment.notes
                )
                directory.save_final(simulation.view_models(), simulation.task.layout)
                summary = sealed(directory, summary)
                directory.save_summary(summary)
        directory.remove_last_reports()
        return summary

    def _show(self, metrics: Metrics | None) -> None:
        if self.watcher.on_round is not None:
            self.watcher.on_round(self.simulation.round, metrics)

    def _restore(self) -> bool:
        """Continue from the newest intact checkpoint; returns whether there was one."""
        directory, simulation = self.directory, self.simulation

        metrics = b""

        def restore(state: Mapping[str, Any]) -> None:
            nonlocal metrics
            for name in changed_inputs(directory, state):
                raise FedpbcError(
                    f"{directory.path / name} has changed since the run began: restore it, or "
                    "start again with --overwrite"
                )
            if state["about"] != self.about:
                raise FedpbcError(
                    f"{directory.path} belongs to another run: its data or options have "
                    "changed; restore them, or start again with --overwrite"
                )
            metrics = self._metrics_of(state)
            simulation.restore(state["simulation"])

        self._protect_last_reports()
        state, complaints = directory.checkpoints.load(restore)
        remedy = "an older one is used" if state else "starting again from round 0"
        for line in complaints:
            self.watcher.note(f"{line}; {remedy}")
        if state is not None:
            if not directory.metrics_bytes().startswith(metrics):
                self.watcher.note(
                    f"{directory.metrics_path} was damaged; it is restored from the checkpoint"
                )
            # Evaluations after the checkpoint are made again.
            directory.write_metrics(metrics)
            self.metrics_checksum = crc32(metrics)
        return state is not None

    def _metrics_of(self, state: Mapping[str, Any]) -> bytes:
        """The evaluations up to a checkpoint, as they are in the file."""
        directory = self.directory
        if "metrics" in state:
            return bytes(state["metrics"])
        # Earlier versions kept no copy: then the file must be complete.
        done = upgrade_state(state["simulation"])["server"]["round"]
        due = self.simulation.evaluations.due(done)
        try:
            lines = [line for line in directory.metrics() if line["round"] <= done]
            complete = [line["round"] for line in lines] == due
        except (InputError, LookupError, TypeError):
            complete = False
        if not complete:
            raise DamagedCheckpointError(
                f"{directory.metrics_path} is damaged, and the checkpoint has no copy of it"
            )
        return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()

    def _protect_last_reports(self) -> None:
        """Keep the last reports that existing checkpoints refer to from being overwritten."""
        states = []
        for checkpoint in self.directory.checkpoints.peek():
            try:
                states.append(upgrade_state(checkpoint["simulation"])["server"]["reported"])
            except (LookupError, TypeError, AttributeError):
                continue  # Peeking checks nothing: a damaged one may hold anything.
        self.simulation.server.last_reports.protect(states)

    def _checkpoint(self) -> float:
        """Write a checkpoint; returns the seconds that it took."""
        began = time.monotonic()
        metrics = np.frombuffer(bytearray(self._checked_metrics()), dtype=np.uint8)
        state = {
            "about": self.about,
            "simulation": self.simulation.state(),
            "metrics": metrics,
            "inputs": self.inputs,
        }
        self.directory.checkpoints.save(self.simulation.round, state)
        self._protect_last_reports()
        return time.monotonic() - began

    def _checked_metrics(self) -> bytes:
        """The evaluations so far; raises if the file is not as this process wrote it."""
        content = self.directory.metrics_bytes()
        if crc32(content) != self.metrics_checksum:
            raise FedpbcError(
                f"{self.directory.metrics_path} has changed while the run was under way: "
                "'fedpbc resume' makes it again"
            )
        return content

    def _checkpoint_last_round(self) -> None:
        """Keep what was done before an interrupt; a second one ends this, too."""
        if self.simulation.round == self.done + 1:
            # The round is complete, but its evaluation may not be.
            self._record(self.simulation.evaluate_last_round())
        newest = next(iter(self.directory.checkpoints.paths()), None)
        if self.simulation.round == self.done and newest and rounds_of(newest) < self.done:
            self._checkpoint()

    def _record(self, metrics: Metrics | None) -> None:
        """Write the evaluation of the round that was completed, if there was one."""
        # Once: an interrupt in between would leave half a line.
        with held_back():
            if metrics is not None:
                written = self.directory.append_metrics(metrics.as_dict())
                self.metrics_checksum = crc32(written, self.metrics_checksum)
            self.done = self.simulation.round

    def _rounds(self, resumed: bool) -> Iterator[Metrics | None]:
        """Run the remaining rounds, with metrics and checkpoints."""
        simulation, config = self.simulation, self.experiment.config
        self.done = simulation.round
        if not resumed:
            # A resumed run must know its data and options. And it shows now, not after half a
            # minute of work, whether the algorithm's state can be saved at all.
            self.directory.write_metrics(b"")
            self._checkpoint()
        own_task = config.task.name in ("app", "python")
        task = self.experiment.data_fingerprint() if own_task else ""
        save_client_overview(self.directory.overview_path, simulation, task)
        every, last, wait = config.general.checkpoint_every, time.monotonic(), CHECKPOINT_SECONDS
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
            directory = self.directory
            usable = [p for p in directory.checkpoints.paths() if rounds_of(p) <= error.round]
            where = (
                f"{directory.path} keeps {usable[0].name}" if usable else f"see {directory.path}"
            )
            raise DivergedError(error.client, error.round, error.view, where) from None
        except WorkerError as error:
            # The state is that before the round: with more memory, say, the run can be resumed.
            self._checkpoint()
            where = f"{self.directory.path} keeps everything up to round {simulation.round}"
            raise type(error)(
                error.client, error.first_round, error.last_round, error.reason, where
            ) from None


@contextmanager
def tracked(names: Sequence[str], run: TrackedRun, watcher: Watcher) -> Iterator[Tracking]:
    """Trackers that have the evaluations so far, and that are told how the run ended."""
    tracking = Tracking(names, watcher.on_note)
    if not names:
        yield tracking
        return
    directory = RunDirectory(run.folder)
    saved_group, states = directory.load_tracking()
    group = run.group or saved_group
    states = tracking.begin(replace(run, group=group), states, directory.metrics())
    directory.save_tracking(group, states)

    def end(state: State) -> None:
        for name in tracking.end(state):
            states[name]["state"] = state
        directory.save_tracking(group, states)

    try:
        yield tracking
    except BaseException as error:
        failed = isinstance(error, Exception) and not isinstance(error, StoppedError)
        end("failed" if failed else "killed")
        raise
    end("finished")
