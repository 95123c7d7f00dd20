"""fedpbc resume."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpbc.cli.advise import resume_advice
from fedpbc.cli.compare import run_comparison
from fedpbc.cli.options import Baseline, Jobs, Json, Trust, default
from fedpbc.cli.run import show_run
from fedpbc.cli.terminal import say
from fedpbc.cli.tune import resume_tuning
from fedpbc.cli.workspace import begin_work
from fedpbc.errors import InputError
from fedpbc.experiments.overrides import split_list
from fedpbc.text import shell_quoted

__all__ = ["resume"]


def resume(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a run, a comparison, a search or advice.")
    ],
    track: Annotated[str | None, default("As for 'run'; from now on", "as before")] = None,
    baseline: Baseline = None,
    jobs: Jobs = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Resume a run, a comparison, a search or advice that was stopped."""
    from fedpbc.cli.progress import RunDisplay
    from fedpbc.experiments.advice.directory import AdviceDirectory
    from fedpbc.experiments.comparison_directory import ComparisonDirectory
    from fedpbc.experiments.resume import resume_run
    from fedpbc.experiments.run_directory import RunDirectory
    from fedpbc.experiments.tuning.directory import TuningDirectory

    if (folder / "plan.toml").is_file():
        from fedpbc.paper.directory import read_plan

        if (plan := read_plan(folder)) is not None:
            raise InputError(f"{folder} is resumed by its own command: {plan['command']}")
    if jobs is not None and jobs < 1:
        raise InputError("jobs", jobs, "at least 1")
    advice = AdviceDirectory(folder)
    if advice.was_begun:
        if track is not None:
            raise InputError("track", track, "left out: advice has no trackers")
        if baseline is not None:
            raise InputError("baseline", baseline, "left out: advice chooses its own")
        resume_advice(advice, jobs, as_json, trust)
        return
    tuning = TuningDirectory(folder)
    if tuning.was_begun:
        if track is not None:
            raise InputError("track", track, "left out: a search has no trackers")
        if baseline is not None:
            raise InputError("baseline", baseline, "left out: a search has none")
        resume_tuning(tuning, jobs, as_json, trust)
        return
    trackers = split_list("track", track)
    comparison = ComparisonDirectory(folder)
    if comparison.was_begun:
        begun = comparison.load_plan(trackers, trust=trust)
        run_comparison(comparison, begun, jobs, as_json, baseline=baseline)
        return
    if baseline is not None:
        raise InputError("baseline", baseline, "left out: this is one run, not a comparison")
    if jobs is not None:
        raise InputError("jobs", jobs, "left out: this is one run, not a comparison")
    begin_work(folder)
    was_finished = RunDirectory(folder).finished
    with RunDisplay(folder, quiet=as_json) as display:
        summary = resume_run(folder, watcher=display.watcher, track=trackers, trust=trust)
    if was_finished and not as_json:
        say(f"{shell_quoted(folder)} was already finished")
    show_run(summary, folder, as_json)
