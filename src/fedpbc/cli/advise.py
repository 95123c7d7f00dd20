"""fedpbc advise."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpbc.cli.options import (
    RUN_OPTIONS,
    ConfigFile,
    Jobs,
    Json,
    Set,
    Trust,
    config_options,
    default,
)
from fedpbc.cli.terminal import (
    command,
    say,
    say_json,
    say_omitted,
    say_sentence,
    say_written,
    show_fitted,
)
from fedpbc.cli.workspace import begin_work, free_folder
from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.overrides import configuration_values

if TYPE_CHECKING:
    from fedpbc.experiments.advice.advise import Advice, OnProgress
    from fedpbc.experiments.advice.directory import AdviceDirectory, Session
    from fedpbc.experiments.advice.request import AdviceRequest
    from fedpbc.experiments.advice.schedule import Schedule
    from fedpbc.experiments.comparison_plan import ComparisonPlan
    from fedpbc.experiments.sweep import GridProgress
    from fedpbc.experiments.tuning.directory import TuningDirectory
    from fedpbc.experiments.tuning.plan import TuningPlan
    from fedpbc.experiments.tuning.result import TuningResult

__all__ = ["advise", "resume_advice"]

ADVICE_OPTIONS = [
    name
    for name in RUN_OPTIONS
    if name not in ("algorithm", "seed", "views", "deploy_view", "track", "reported")
]

KEEP_SECONDS = 15.0
"""While runs go on, the time so far is written down that often."""

DISPENSABLE = {
    **dict.fromkeys(("test %", "test loss"), 1),
    "recovered": 2,
    **dict.fromkeys(("local steps ×", "bytes up ×"), 3),
    **dict.fromkeys(("models on server", "on client"), 4),
}
"""Columns that a narrow terminal does not show, the highest numbers first."""


HELPS = {
    "rounds": "Number of rounds T (default: 300; fewer if the budget is too short).",
    "clients": "Number of clients m (default: 100, or the devices of a trace, at most 300).",
}


CHOSEN = {
    **dict.fromkeys(("seed", "seeds"), "how many seeds there are follows from the time"),
    **dict.fromkeys(("views", "deploy_view"), "advice evaluates all views, and chooses one"),
}
"""Settings that advice chooses itself."""


@config_options(*ADVICE_OPTIONS, helps=HELPS)
def advise(
    options: dict[str, Any],
    config: ConfigFile = None,
    minutes: Annotated[float | None, default("Time budget in minutes", "10")] = None,
    max_server_models: Annotated[
        int | None, typer.Option(help="Most models that the server may keep.")
    ] = None,
    max_local_steps: Annotated[
        int | None, typer.Option(help="Most local steps of all clients together, in the whole run.")
    ] = None,
    no_client_state: Annotated[
        bool, typer.Option("--no-client-state", help="Devices keep nothing between contacts.")
    ] = False,
    trace: Path | None = None,
    set_: Set = None,
    out: Annotated[Path | None, default("Folder", "runs/advice")] = None,
    jobs: Jobs = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Recommend an algorithm for your links: tune and compare within a time budget."""
    began = time.monotonic()
    values = configuration_values(config, options, set_, trace=trace, trust=trust)
    from fedpbc.experiments.advice.constraints import Constraints
    from fedpbc.experiments.advice.directory import AdviceDirectory
    from fedpbc.experiments.advice.request import MINUTES, AdviceRequest, prepare_values
    from fedpbc.experiments.algorithm_section import check_assigned
    from fedpbc.experiments.entries import entries_of

    constraints = Constraints(
        max_server_models=max_server_models,
        max_local_steps=max_local_steps,
        client_state=not no_client_state,
    )
    shared, tuned, fixed = prepare_values(values)
    check_assigned(set_, values, entries_of(tuned), options, CHOSEN)
    budget = MINUTES if minutes is None else minutes
    request = AdviceRequest(shared, tuned, fixed, budget, constraints)
    request.check()
    directory = AdviceDirectory(out or free_folder(Path("runs"), "advice"))
    run_advice(directory, request, jobs, as_json, None, began)


def resume_advice(directory: AdviceDirectory, jobs: int | None, as_json: bool, trust: bool) -> None:
    """Continue advice that was stopped."""
    began = time.monotonic()
    request, schedule = directory.load(trust=trust)
    run_advice(directory, request, jobs, as_json, schedule, began)


def run_advice(
    directory: AdviceDirectory,
    request: AdviceRequest,
    jobs: int | None,
    as_json: bool,
    schedule: Schedule | None,
    began: float,
) -> None:
    """Make the advice with a progress display, and print it; the budget counts from ``began``."""
    import sys

    from fedpbc.experiments.advice.advise import advise as make_advice
    from fedpbc.experiments.advice.directory import Session
    from fedpbc.experiments.advice.link_facts import (
        examine_links,
        refuse_limits_that_nothing_keeps,
    )
    from fedpbc.parallel import usable_cores
    from fedpbc.report.advice import write_advice
    from fedpbc.text import shell_quoted

    if jobs is not None and jobs < 1:
        raise InputError("jobs", jobs, "at least 1")
    line = " ".join(shell_quoted(word) for word in ("fedpbc", *sys.argv[1:]))
    links = None
    if request.constraints.described() and not directory.was_begun:
        # Before anything is written: the limits may be such that nothing keeps them.
        links = examine_links(request)
        refuse_limits_that_nothing_keeps(request, links)
    with directory.opened(request):
        begin_work(directory.path)
        if directory.finished:
            # More seeds might change the answer, and its page would not say which time it took.
            if not as_json:
                say(f"{shell_quoted(directory.path)} was already finished")
                show_finished(directory)
        else:
            if schedule is None:
                _, schedule = directory.load(trust=True)
            session = directory.session()
            clock = Clock(directory, session or Session(line), began)
            if session is None and schedule is None:
                clock.keep()
            listener = AdviceDisplay(directory, clock, quiet=as_json)
            try:
                advice = make_advice(
                    request,
                    directory,
                    listener,
                    jobs=jobs or usable_cores(),
                    links=links,
                    schedule=schedule,
                    began=began,
                    spent=clock.before.seconds,
                )
                listener.note("writing the page")
            finally:
                clock.stop()
            write_advice(advice, directory, clock.before.command)
            if not as_json:
                show_advice(advice, directory)
        answer = directory.answer()
    if as_json:
        say_json(answer)
    if answer.get("recommendation") is None:
        raise FedpbcError(
            "no algorithm keeps the limits: " + "; ".join(request.constraints.described())
        )


class Clock:
    """Keeps in the folder how long the advice has taken: one that is resumed reports the whole.

    Advice that is refused when resumed, before anything is run, changes nothing.
    """

    def __init__(self, directory: AdviceDirectory, before: Session, began: float) -> None:
        self.directory, self.before, self.began = directory, before, began
        self._kept = 0.0

    def keep(self, *, every: float = 0.0) -> None:
        """Write down the time so far, unless that was done in the last seconds."""
        now = time.monotonic()
        if now - self._kept >= every:
            self._kept = now
            seconds = self.before.seconds + now - self.began
            self.directory.keep_session(replace(self.before, seconds=seconds))

    def stop(self) -> None:
        """Write down the time at the end, if anything was done."""
        if self._kept:
            with suppress(OSError):  # Of a full disk, the command itself tells.
                self.keep()

    def on_progress(self, listener: OnProgress) -> OnProgress:
        """Tell a listener, and keep the time now and then: the process may be killed."""
        self.keep()

        def tell(progress: GridProgress) -> None:
            listener(progress)
            self.keep(every=KEEP_SECONDS)

        return tell


class AdviceDisplay:
    """Shows what happens, in a terminal or not."""

    def __init__(self, directory: AdviceDirectory, clock: Clock, *, quiet: bool) -> None:
        self.directory, self.clock, self.quiet = directory, clock, quiet

    def note(self, line: str) -> None:
        """Print a line."""
        if not self.quiet:
            say(line, flush=True)

    @contextmanager
    def tuning(self, plan: TuningPlan) -> Iterator[OnProgress]:
        """Show the search."""
        from fedpbc.cli.progress import GridDisplay
        from fedpbc.experiments.sweep import round_weight
        from fedpbc.experiments.tuning.directory import planned_steps
        from fedpbc.paper.catalog import ProgressRow

        rows = [
            ProgressRow(label, rounds, round_weight(everyone))
            for label, rounds, everyone in planned_steps(plan)
        ]
        with GridDisplay(rows, self.directory.tuning.path, quiet=self.quiet) as display:
            yield self.clock.on_progress(display.on_progress)

    def tuned(self, directory: TuningDirectory, result: TuningResult) -> None:
        """Write the search's results."""
        from fedpbc.report.tuning import write_tuning

        write_tuning(directory, result)

    @contextmanager
    def comparing(self, plan: ComparisonPlan) -> Iterator[OnProgress]:
        """Show a part of the comparison."""
        from fedpbc.cli.compare import progress_rows
        from fedpbc.cli.progress import GridDisplay

        comparison = self.directory.comparison
        rows = progress_rows(comparison, plan)
        with GridDisplay(rows, comparison.path, quiet=self.quiet) as display:
            yield self.clock.on_progress(display.on_progress)


def show_finished(directory: AdviceDirectory) -> None:
    """Print the answer of finished advice, the files and a next step."""
    answer = directory.answer()
    for line in answer.get("answer", ()):
        say_sentence(line)
    say_remarks(answer.get("remarks", ()))
    say_files(directory, has_recommendation=answer.get("recommendation") is not None)
    say(
        f"next: {command('fedpbc', 'report', directory.comparison.path)}: the comparison's own page"
    )


def say_remarks(lines: Sequence[str]) -> None:
    """Print what would change the answer."""
    say("what would change it:")
    for line in lines:
        say_sentence(f"- {line}")


def say_files(directory: AdviceDirectory, *, has_recommendation: bool) -> None:
    """Print what was written; a configuration if an algorithm was found."""
    say_written([directory.page_path], ": everything on one page; open it in a browser")
    configuration = [directory.recommended_path] if has_recommendation else []
    say_written([*configuration, directory.json_path])


def show_advice(advice: Advice, directory: AdviceDirectory) -> None:
    """Print the answer, the files and next steps."""
    from fedpbc.cli.results import paired_table
    from fedpbc.report.advice import answer_lines, commands_after, remarks, scope_of_links

    say("")
    for sentence in [scope_of_links(advice), *advice.links.report.sentences.values()]:
        say_sentence(sentence)
    paired = advice.paired()
    recommendation = advice.recommendation
    best = None if recommendation is None else recommendation.algorithm
    table = paired_table(advice.comparison, paired, bold=best, ranks=DISPENSABLE)
    say_omitted(show_fitted(table), "the page")
    for line in answer_lines(advice):
        say_sentence(line)
    say_remarks(remarks(advice))
    say_files(directory, has_recommendation=recommendation is not None)
    for line, what in commands_after(advice, directory):
        say(f"next: {line}: {what}")
