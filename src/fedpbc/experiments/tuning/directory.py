"""A search's directory: one run directory for each candidate and seed, and the choice.

fedpbc-manifest.json              which files belong to the search; nothing else is ever removed
tune.toml                         the configuration and all candidates
inputs/                           copies of the files that it names
LABEL/candidate-K/seed-S/         a run's directory each
tuned.toml                        the choice, for 'fedpbc compare' and 'fedpbc advise'
tuned-LABEL.toml                  the choice for one entry, for 'fedpbc run' and fleets
tuning.json, table.md, tuning.png the scores
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.config_file import read_own_toml
from fedpbc.experiments.integrity import Verification, verify_run
from fedpbc.experiments.plan_files import (
    clear_runs,
    misplaced_files,
    misplaced_folders,
    plan_damage,
    refuse_busy_runs,
    runs_below,
    unreadable_plan,
    write_plan,
)
from fedpbc.experiments.plugins import load_plugins
from fedpbc.experiments.result_folder import check_result_folder
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.sweep import DivergedReason, GridCell, GridProgress, run_grid
from fedpbc.experiments.trial_round import clear_trial_round, run_trial_round
from fedpbc.experiments.trust import check_trust, remember_plugins
from fedpbc.experiments.tuning.plan import (
    ENOUGH_CANDIDATES,
    Trial,
    TuningPlan,
    start_seconds,
    with_affordable_count,
)
from fedpbc.experiments.tuning.result import TuningResult
from fedpbc.experiments.tuning.search import OnProgress, Search, planned_steps
from fedpbc.limits import parse_json, parse_toml
from fedpbc.storage.directories import locked_directory, make_directory
from fedpbc.storage.files import is_own_file, read_own_file
from fedpbc.storage.manifest import (
    MANIFEST,
    add_checksums,
    changed_files,
    checksummed_files,
    has_checksums,
    is_folder_name,
    read_manifest,
    write_manifest,
)
from fedpbc.storage.removal import own_files, remove_empty_folder, remove_files

__all__ = ["TuningDirectory", "planned_steps"]

KIND = "tuning"
FILES = (
    "tune.toml",
    "tuned.toml",
    "tuning.json",
    "table.md",
    "tuning.png",
    "report.html",
    MANIFEST,
)
"""What a search writes besides its runs, its inputs and one configuration per entry."""


class TuningDirectory:
    """A search on disk."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.plan_path = self.path / "tune.toml"
        self.tuned_path = self.path / "tuned.toml"
        self.json_path = self.path / "tuning.json"
        self.table_path = self.path / "table.md"
        self.plot_path = self.path / "tuning.png"

    @property
    def was_begun(self) -> bool:
        """Whether a search was begun here, even if its plan is damaged now."""
        return read_manifest(self.path, KIND) is not None

    @property
    def finished(self) -> bool:
        """Whether the choice is made, and its files and those of the runs are as written."""
        results = (self.json_path.name, self.tuned_path.name)
        if not has_checksums(self.path, KIND, results) or self.verify().damage:
            return False
        return not any(verify_run(self.path / name).damage for name in self._run_names())

    def verify(self) -> Verification:
        """Check the plan, its inputs and the choice; the runs are checked one by one."""
        damage = plan_damage(self.path, KIND, self.plan_path.name)
        damage += misplaced_folders(self.path, self._planned_names())
        listed = read_manifest(self.path, KIND) or ()
        tuned = [name for name in listed if name.startswith("tuned-")]
        damage += misplaced_files(self.path, [*tuned, *FILES])
        damage = damage or unreadable_plan(self.path, self.plan_path.name)
        checked = len(checksummed_files(self.path, KIND))
        return Verification(self.path, "search", tuple(damage), checked)

    def seal(self, result: TuningResult) -> None:
        """Write down that the choice is made: checksums of it, and of what it was made from.

        Candidates that were not promoted have no summary that would hold theirs.
        """
        names = [self.json_path.name, self.tuned_path.name, self.table_path.name]
        tuned = own_files(self.path, ["tuned-*.toml"])
        names += [self.plot_path.name, *(file.name for file in tuned)]
        runs = [RunDirectory(self.path / name) for name in self._run_names()]
        paused = [run for run in runs if not run.finished]
        scored = self._scored_folders(result)
        for run in paused:
            if run.path.parent in scored and not is_own_file(run.path, run.metrics_path.name):
                raise FedpbcError(
                    f"{run.metrics_path} is missing; resume the search to run this candidate again"
                )
        names += [run.metrics_path.relative_to(self.path).as_posix() for run in paused]
        add_checksums(self.path, KIND, [n for n in names if is_own_file(self.path, n)])

    def _scored_folders(self, result: TuningResult) -> set[Path]:
        """The folders of the candidates that have a score: those that did not diverge."""
        return {
            self.path / label / f"candidate-{k}"
            for label, entry in result.as_dict()["algorithms"].items()
            for k, candidate in enumerate(entry["candidates"])
            if candidate["score"] is not None
        }

    def load_plan(self, *, trust: bool = False) -> TuningPlan:
        """The plan in this directory; ``trust`` allows plugins that are new on this machine."""
        self._refuse_damage()
        values = read_own_toml(self.plan_path)
        check_trust(self.path, values, trust=trust)
        load_plugins(values)
        plan = TuningPlan.from_values(values, str(self.plan_path))
        for name in self._run_names():
            run = RunDirectory(self.path / name)
            if trust and run.holds_run:
                check_trust(run.path, read_own_toml(run.config_path), trust=True)
        return plan

    def result(self) -> dict[str, Any]:
        """The scores of a finished search, as they were written."""
        try:
            content = parse_json(read_own_file(self.path, self.json_path.name))
            if not isinstance(content["algorithms"], dict):
                raise TypeError("it has no table of algorithms")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.json_path} cannot be read: {error}") from None
        return dict(content)

    def tuned_file(self, label: str) -> Path:
        """The configuration with one entry's choice."""
        return self.path / f"tuned-{label}.toml"

    @contextmanager
    def opened(self, plan: TuningPlan, *, overwrite: bool = False) -> Iterator[TuningPlan]:
        """Make the directory for a search, or continue the same one, and lock it.

        Yields the plan: of a search with a budget in minutes, the one that was begun.
        """
        check_result_folder(self.path, lambda: self.was_begun)
        ours = self.was_begun
        for each in misplaced_folders(self.path, [*self._planned_names(), *plan.entries]):
            raise InputError(str(each))
        for each in misplaced_files(self.path, self._result_files(plan)):
            raise InputError(str(each))
        # The inputs may lie in the very directory that is to be overwritten: they are read before.
        text, inputs = plan.self_contained()
        if ours and not overwrite:
            self._refuse_damage(begun=self.plan_path.exists())
        if ours and self.plan_path.is_file() and not overwrite:
            plan = self._as_begun(plan, text, inputs)
        remember_plugins(plan.shared.get("plugins") or ())
        make_directory(self.path)
        with locked_directory(self.path):
            if self.plan_path.is_file() and not overwrite:
                # Meanwhile another process may have begun it, or chosen how many are tried.
                plan = self._as_begun(plan, text, inputs)
            clear_trial_round(self.path)
            if overwrite and ours:
                first = [plan.trials(label)[0] for label in plan.entries]
                run_trial_round(self.path, [plan.config(trial, plan.seeds[0]) for trial in first])
                self._clear()
            self.write_plan(plan)
            yield plan

    def write_plan(self, plan: TuningPlan) -> None:
        """Write the plan, with the files that it names before it."""
        text, inputs = plan.self_contained()
        files = self._result_files(plan)
        write_plan(self.path, KIND, self.plan_path.name, text, inputs, files)

    def _result_files(self, plan: TuningPlan) -> list[str]:
        """The files that the search will have, beside its plan and its runs."""
        return [*(self.tuned_file(label).name for label in plan.entries), *FILES]

    def _as_begun(self, plan: TuningPlan, text: str, inputs: Mapping[str, bytes]) -> TuningPlan:
        """The plan with the numbers of the search begun here; raises if that is another one."""
        begun = self._same_search(text, inputs)
        if begun is None:
            raise InputError(
                f"out: {self.path} holds another search; choose a new folder, or replace it "
                "with --overwrite"
            )
        return replace(plan, count=begun[0], most_rungs=begun[1])

    def _same_search(self, text: str, inputs: Mapping[str, bytes]) -> tuple[int, int] | None:
        """The numbers of candidates and rungs of the search begun here, if it is this one."""
        for name, content in inputs.items():
            try:
                if read_own_file(self.path, f"inputs/{name}") != content:
                    return None
            except OSError:
                return None
        try:
            begun = parse_toml(read_own_file(self.path, self.plan_path.name).decode())
            count, rungs = begun["tune"].pop("count"), begun["tune"].pop("most_rungs", 0)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        requested = parse_toml(text)
        planned = requested["tune"].pop("count")
        del requested["tune"]["most_rungs"]
        numbers = type(count) is type(rungs) is int and min(count, rungs) >= 0
        # With a budget in minutes, they follow from the speed of the first runs.
        same = numbers and begun == requested and planned in (0, count)
        return (count, rungs) if same else None

    def _run_names(self) -> list[str]:
        """The runs that were begun."""
        return [name for name in self._planned_names() if (self.path / name).exists()]

    def _planned_names(self) -> list[str]:
        try:
            plan = parse_toml(read_own_file(self.path, self.plan_path.name).decode())
            counts = {
                str(name): len(candidates)
                for name, candidates in plan["tune"]["candidates"].items()
            }
            seeds = [int(seed) for seed in plan["seeds"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return []
        return [
            f"{label}/candidate-{k}/seed-{seed}"
            for label, count in counts.items()
            if is_folder_name(label)
            for k in range(count)
            for seed in seeds
        ]

    def _refuse_damage(self, *, begun: bool = True) -> None:
        """Raise if the plan or its inputs are damaged, or something is behind a link."""
        for each in self.verify().damage if begun else ():
            if not each.repairable:
                raise InputError(str(each))

    def _clear(self) -> None:
        """Remove what an earlier search wrote, and nothing else."""
        runs = [RunDirectory(self.path / name) for name in self._run_names()]
        if plan_damage(self.path, KIND, self.plan_path.name) or not runs:
            # The plan does not say which runs there were.
            runs = runs_below(self.path, "*/candidate-*/seed-*")
        refuse_busy_runs(runs)
        listed = read_manifest(self.path, KIND) or ()
        # Without checksums: what is removed here must not look as if it had been lost.
        write_manifest(self.path, KIND, listed)
        clear_runs(self.path, runs)
        # The plan stays until the new one takes its place: if the disk fails before that, the
        # earlier search can be run again. With inputs it cannot: the new ones replace them.
        plan = [self.plan_path.name, MANIFEST]
        remove_files(self.path, [name for name in listed if name not in plan])
        remove_empty_folder(self.path / "inputs")
        if any(name.startswith("inputs/") for name in listed):
            remove_files(self.path, plan)

    def run(
        self, plan: TuningPlan, jobs: int, on_plan: Callable[[TuningPlan], OnProgress]
    ) -> TuningResult:
        """Run what is not done yet, and choose; the directory must be opened.

        ``on_plan`` is called when it is known how many candidates there are, and returns what is
        told of the runs' progress: they are numbered as :func:`planned_steps` lists them.
        """
        if plan.minutes is not None and not plan.count:
            plan = self._with_count(plan, jobs)
        sealed = {*checksummed_files(self.path, KIND)} - {*changed_files(self.path, KIND)}
        return Search(self.path, plan, jobs, on_plan(plan), sealed).run()

    def _with_count(self, plan: TuningPlan, jobs: int) -> TuningPlan:
        """The plan with as many candidates as its minutes allow, by the speed of the default.

        Of an algorithm whose first candidates all diverge before they are evaluated, nothing is
        known: it counts as slow as the slowest of the others.
        """
        ends: list[float] = []
        seconds: list[float] = []
        speeds: dict[str, float] = {}
        for number in range(ENOUGH_CANDIDATES):
            # A default that diverged before its first evaluation does not tell: the next one does.
            untimed = [
                label
                for label in plan.entries
                if label not in speeds and number < len(plan.candidates[label])
            ]
            if not untimed:
                break
            runs = self._run_first_rung(plan, untimed, number, jobs)
            for label, (end, lines) in zip(untimed, runs, strict=True):
                if lines:
                    speeds[label] = lines[-1]["seconds"] / lines[-1]["round"]
                if number == 0:
                    ends.append(end)
                    seconds.append(lines[-1]["seconds"] if lines else 0.0)
        slowest = max(speeds.values(), default=0.0)
        speeds = {label: speeds.get(label, slowest) for label in plan.entries}
        plan = with_affordable_count(plan, speeds, jobs, start_seconds(ends, seconds, jobs))
        self.write_plan(plan)
        return plan

    def _run_first_rung(
        self, plan: TuningPlan, labels: Sequence[str], number: int, jobs: int
    ) -> list[tuple[float, list[dict[str, Any]]]]:
        """Run one candidate of each to the first rung; when it ended, and its evaluations."""
        seed, cells = plan.seeds[0], []
        for label in labels:
            trial = Trial(label, number, plan.candidates[label][number])
            path = self.path / trial.folder / f"seed-{seed}"
            rung = plan.halving(label).rungs[0]
            cells.append(GridCell(path, plan.config(trial, seed), self.path, rung))
        ends = [0.0] * len(cells)

        def on_progress(progress: GridProgress) -> None:
            ends[progress.cell] = time.monotonic()

        # With several jobs, each run of the search has one core.
        failures = run_grid(cells, jobs, on_progress, one_core=True)
        for label, failure in zip(labels, failures, strict=True):
            if failure is not None and not isinstance(failure, DivergedReason):
                raise FedpbcError(f"{label}: {failure}")
        return [
            (end, RunDirectory(cell.path).metrics()) for end, cell in zip(ends, cells, strict=True)
        ]

    def remove_checkpoints(self) -> None:
        """Remove the checkpoints of candidates that were not promoted: nobody resumes them."""
        for name in self._run_names():
            RunDirectory(self.path / name).checkpoints.remove()
