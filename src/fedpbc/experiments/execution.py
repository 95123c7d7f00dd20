"""Run a simulation in its folder: killed anywhere, it goes on to the same bits."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from fedpbc.errors import DivergedError, FedpbcError, WorkerError
from fedpbc.experiments.client_overview import save_client_overview
from fedpbc.experiments.peak_memory import begin_peak, peak_memory
from fedpbc.experiments.run_directory import RunDirectory, rounds_of
from fedpbc.experiments.tracking import State, TrackedRun, Tracking, TrackingPlan
from fedpbc.simulation.loop import Metrics, Simulation
from fedpbc.simulation.views import cost_of

__all__ = ["StoppedError", "Watcher", "execute", "tracked"]

OnRound = Callable[[int, Metrics | None], None]

CHECKPOINT_SECONDS = 30.0
CHECKPOINT_SHARE = 0.05
"""At most this share of the time goes into writing checkpoints."""


class StoppedError(FedpbcError):
    """What a watcher raises to stop a run: it can go on later."""


@dataclass(frozen=True)
class Watcher:
    """Who wants to know how a run goes.

    Example:
        >>> watcher = Watcher(on_round=lambda done, metrics: print(done))
        >>> watcher.on_note is None
        True
    """

    on_start: Callable[[int, int, str], None] | None = None
    """Called with the rounds done, all rounds, and one line on the engine."""
    on_round: OnRound | None = None
    """Called after every round, with its metrics if it was evaluated."""
    on_note: Callable[[str], None] | None = None
    """Called with lines that a person should see."""


def execute(
    simulation: Simulation,
    folder: RunDirectory,
    *,
    engine: str,
    about: Mapping[str, Any],
    checkpoint_every: int = 0,
    watcher: Watcher | None = None,
    task: str = "",
    plan: TrackingPlan | None = None,
) -> dict[str, Any]:
    """Run what is left of a run and write down how it ended.

    Args:
        simulation: at its beginning; a checkpoint in the folder moves it on.
        folder: the run's, locked by the caller.
        engine: one line on the engine.
        about: what identifies the run, for the summary; a checkpoint of another run is refused.
        checkpoint_every: rounds; 0: about every half minute.
        watcher: told how it goes.
        task: tells a task made in Python from others; a report must not mix them.
        plan: how the run is tracked, if it is.
    """
    watcher = watcher or Watcher()
    begin_peak()
    with closing(simulation):
        folder.sweep()
        begun = take_up(simulation, folder, about, watcher)
        folder.cut_metrics(simulation.progress.round)
        if watcher.on_start is not None:
            watcher.on_start(simulation.progress.round, simulation.rounds, engine)
        folder.failure_path.unlink(missing_ok=True)
        with tracked(plan or TrackingPlan(), folder, about, watcher) as tracking:
            try:
                run_rounds(
                    simulation, folder, about, begun, checkpoint_every, watcher, tracking, task
                )
            except (DivergedError, WorkerError) as error:
                folder.save_failure(str(error))
                raise
            summary = summarise(simulation, folder, engine, about)
            folder.save_final(simulation.view_models(), simulation.task.layout)
            folder.save_summary(summary)
    folder.remove_reports()
    return summary


@contextmanager
def tracked(
    plan: TrackingPlan, folder: RunDirectory, about: Mapping[str, Any], watcher: Watcher
) -> Iterator[Tracking]:
    """Trackers that know what was evaluated already, and are told how the run ended."""
    tracking = Tracking(plan.names, watcher.on_note)
    if not plan.names:
        yield tracking
        return
    group, kept = folder.load_tracking()
    group = plan.group or group
    run = TrackedRun(folder.path, about, plan.options, group)
    kept = tracking.begin(run, kept, folder.metrics())
    folder.save_tracking(group, kept)

    def end(state: State) -> None:
        for name in tracking.end(state):
            kept[name]["state"] = state
        folder.save_tracking(group, kept)

    try:
        yield tracking
    except BaseException as error:
        failed = isinstance(error, Exception) and not isinstance(error, StoppedError)
        end("failed" if failed else "killed")
        raise
    end("finished")


def take_up(
    simulation: Simulation, folder: RunDirectory, about: Mapping[str, Any], watcher: Watcher
) -> bool:
    """Move a simulation on to the newest checkpoint that is whole; tells whether there was one."""

    def restore(state: Mapping[str, Any]) -> None:
        if state["about"] != dict(about):
            raise FedpbcError(f"{folder.path} belongs to another run: its data or options changed")
        simulation.restore(state["simulation"])

    simulation.progress.reported.spare(reports_of_checkpoints(folder))
    state, complaints = folder.load_checkpoint(restore)
    for line in complaints:
        if watcher.on_note is not None:
            watcher.on_note(f"{line}; " + ("an older one is used" if state else "beginning anew"))
    return state is not None


def reports_of_checkpoints(folder: RunDirectory) -> Iterator[Mapping[Any, Any]]:
    """What the checkpoints that are there say of the clients' last reports."""
    for state in folder.peek_checkpoints():
        try:
            reported = state["simulation"]["progress"]["reported"]
        except (LookupError, TypeError):
            continue  # It was not checked: in a damaged one there may be anything.
        yield reported


def run_rounds(
    simulation: Simulation,
    folder: RunDirectory,
    about: Mapping[str, Any],
    begun: bool,
    checkpoint_every: int,
    watcher: Watcher,
    tracking: Tracking,
    task: str = "",
) -> None:
    """Run the rounds that are left, and write down metrics and checkpoints."""

    def checkpoint() -> float:
        began = time.monotonic()
        saved = {"about": dict(about), "simulation": simulation.state()}
        folder.save_checkpoint(simulation.progress.round, saved)
        # What only an older one referred to may be written over from now on.
        simulation.progress.reported.spare(reports_of_checkpoints(folder))
        return time.monotonic() - began

    if not begun:
        # So that a run that goes on knows its data and options; and it shows now, not after half a
        # minute's work, whether the algorithm's state can be saved at all.
        checkpoint()
    if not folder.fleet_path.is_file():
        save_client_overview(folder.fleet_path, simulation, task)
    last, wait = time.monotonic(), CHECKPOINT_SECONDS
    done = simulation.progress.round
    try:
        for metrics in simulation.steps():
            done = simulation.progress.round
            if metrics is not None:
                folder.append_metrics(metrics.as_dict())
                tracking.log(metrics.as_dict())
            if checkpoint_every:
                due = done % checkpoint_every == 0
            else:
                due = time.monotonic() - last > wait
            if due and done < simulation.rounds:
                wait = max(CHECKPOINT_SECONDS, checkpoint() / CHECKPOINT_SHARE)
                last = time.monotonic()
            if watcher.on_round is not None:
                watcher.on_round(done, metrics)
    except DivergedError as error:
        # Where the failed round began is worth keeping: unless a client's work of an earlier round
        # was only looked at now, or only the evaluation failed.
        if simulation.progress.round == done == error.round > 0:
            checkpoint()
        good = [path for path in folder.checkpoints() if rounds_of(path) <= error.round]
        kept = f"{folder.path} keeps {good[0].name}" if good else f"see {folder.path}"
        raise DivergedError(error.client, error.round, error.view, kept) from None
    except WorkerError as error:
        # The round is as it began: with more memory, say, the run can go on from here.
        checkpoint()
        kept = f"{folder.path} keeps everything up to round {simulation.progress.round}"
        reason = error.reason
        raise WorkerError(error.client, error.first_round, error.last_round, reason, kept) from None


def summarise(
    simulation: Simulation, folder: RunDirectory, engine: str, about: Mapping[str, Any]
) -> dict[str, Any]:
    """How a run ended."""
    last = folder.metrics()[-1]
    processes = getattr(simulation.engine, "processes", None)
    memory = peak_memory(processes() if processes is not None else ())
    return {
        **about,
        "rounds": simulation.rounds,
        "clients": simulation.task.clients,
        "parameters": simulation.task.layout.dimension,
        "views": last["views"],
        "cost": cost_of(type(simulation.algorithm), simulation.task.clients, simulation.views)
        | {"local_steps": last["local_steps"], "uploads": last["uploads"]},
        "engine": engine,
        "seconds": last["seconds"],
        **({} if memory is None else {"memory": memory}),
        "versions": {
            "fedpbc": version("fedpbc"),
            "torch": version("torch"),
            "python": platform.python_version(),
        },
    }
