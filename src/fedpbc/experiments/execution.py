"""Execute an experiment in its directory: killed anywhere, it resumes to the same bits."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedpbc.errors import DivergedError, FedpbcError, WorkerError
from fedpbc.experiments.build import Experiment
from fedpbc.experiments.checkpoints import rounds_of
from fedpbc.experiments.client_overview import save_client_overview
from fedpbc.experiments.peak_memory import peak_memory, reset_peak_memory
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.tracking import State, TrackedRun, Tracking
from fedpbc.simulation.loop import upgrade_state
from fedpbc.simulation.metrics import Metrics
from fedpbc.simulation.views import cost_of

__all__ = ["OnRound", "StoppedError", "Watcher", "execute", "tracked"]

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


def execute(
    experiment: Experiment,
    directory: RunDirectory,
    watcher: Watcher | None = None,
    group: Path | None = None,
) -> dict[str, Any]:
    """Run the remaining rounds and write the results; returns the summary.

    The experiment is before round 0, and continues from a checkpoint in the directory, which the
    caller has locked. ``group`` is the directory of the runs that belong together, for trackers.
    """
    return _Execution(experiment, directory, watcher or Watcher()).run(group)


class _Execution:
    def __init__(self, experiment: Experiment, directory: RunDirectory, watcher: Watcher) -> None:
        self.experiment, self.simulation = experiment, experiment.simulation
        self.directory, self.watcher = directory, watcher
        self.about = experiment.about()

    def run(self, group: Path | None) -> dict[str, Any]:
        simulation, directory, config = self.simulation, self.directory, self.experiment.config
        reset_peak_memory()
        with closing(simulation):
            directory.remove_temporary_files()
            resumed = self._restore()
            directory.cut_metrics(simulation.round)
            if self.watcher.on_start is not None:
                self.watcher.on_start(simulation.round, simulation.rounds, self.experiment.engine)
            directory.failure_path.unlink(missing_ok=True)
            run = TrackedRun(directory.path, self.about, config.to_dict(), group)
            with tracked(config.general.track or (), run, self.watcher) as tracking:
                try:
                    self._run_rounds(tracking, resumed)
                except (DivergedError, WorkerError) as error:
                    directory.save_failure(str(error))
                    raise
                summary = self._summary()
                directory.save_final(simulation.view_models(), simulation.task.layout)
                directory.save_summary(summary)
        directory.remove_last_reports()
        return summary

    def _restore(self) -> bool:
        """Continue from the newest intact checkpoint; returns whether there was one."""

        def restore(state: Mapping[str, Any]) -> None:
            if state["about"] != self.about:
                raise FedpbcError(
                    f"{self.directory.path} belongs to another run: its data or options have "
                    "changed; restore them, or start again with --overwrite"
                )
            self.simulation.restore(state["simulation"])

        self._protect_last_reports()
        state, complaints = self.directory.checkpoints.load(restore)
        remedy = "an older one is used" if state else "starting again from round 0"
        for line in complaints:
            self.watcher.note(f"{line}; {remedy}")
        return state is not None

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
        state = {"about": self.about, "simulation": self.simulation.state()}
        self.directory.checkpoints.save(self.simulation.round, state)
        self._protect_last_reports()
        return time.monotonic() - began

    def _run_rounds(self, tracking: Tracking, resumed: bool) -> None:
        """Run the remaining rounds, with metrics and checkpoints."""
        simulation, directory, config = self.simulation, self.directory, self.experiment.config
        if not resumed:
            # A resumed run must know its data and options. And it shows now, not after half a
            # minute of work, whether the algorithm's state can be saved at all.
            self._checkpoint()
        if not directory.overview_path.is_file():
            python = config.task.name == "python"
            task = self.experiment.data_fingerprint() if python else ""
            save_client_overview(directory.overview_path, simulation, task)
        every, last, wait = config.general.checkpoint_every, time.monotonic(), CHECKPOINT_SECONDS
        done = simulation.round
        try:
            for metrics in simulation.steps():
                done = simulation.round
                if metrics is not None:
                    directory.append_metrics(metrics.as_dict())
                    tracking.log(metrics.as_dict())
                due = done % every == 0 if every else time.monotonic() - last > wait
                if due and done < simulation.rounds:
                    wait = max(CHECKPOINT_SECONDS, self._checkpoint() / CHECKPOINT_SHARE)
                    last = time.monotonic()
                if self.watcher.on_round is not None:
                    self.watcher.on_round(done, metrics)
        except DivergedError as error:
            # The start of the failed round is worth keeping, unless an earlier round's work was
            # only fetched now, or only the evaluation failed.
            if simulation.round == done == error.round > 0:
                self._checkpoint()
            usable = [p for p in directory.checkpoints.paths() if rounds_of(p) <= error.round]
            where = (
                f"{directory.path} keeps {usable[0].name}" if usable else f"see {directory.path}"
            )
            raise DivergedError(error.client, error.round, error.view, where) from None
        except WorkerError as error:
            # The state is that before the round: with more memory, say, the run can be resumed.
            self._checkpoint()
            where = f"{directory.path} keeps everything up to round {simulation.round}"
            raise WorkerError(
                error.client, error.first_round, error.last_round, error.reason, where
            ) from None

    def _summary(self) -> dict[str, Any]:
        simulation = self.simulation
        last = self.directory.metrics()[-1]
        processes = getattr(simulation.engine, "processes", None)
        memory = peak_memory(processes() if processes is not None else ())
        cost = cost_of(type(simulation.algorithm), simulation.task.clients, simulation.views)
        return {
            **self.about,
            "rounds": simulation.rounds,
            "clients": simulation.task.clients,
            "parameters": simulation.task.layout.dimension,
            "views": last["views"],
            "cost": cost | {"local_steps": last["local_steps"], "uploads": last["uploads"]},
            "engine": self.experiment.engine,
            "seconds": last["seconds"],
            **({} if memory is None else {"memory": memory}),
            "versions": {
                "fedpbc": version("fedpbc"),
                "torch": version("torch"),
                "python": platform.python_version(),
            },
        }


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
