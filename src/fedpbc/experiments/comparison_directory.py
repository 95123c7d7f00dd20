"""A comparison's directory: one run directory for each entry and seed, and the results.

fedpbc-manifest.json    which files belong to the comparison; nothing else is ever removed
compare.toml            what is compared
inputs/                 copies of the files that it names
LABEL/seed-K/           a run's directory each
comparison.json, table.md, accuracy.png, report.html     written at the end
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import tomli_w

from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.comparison_plan import (
    DEFAULT_SEEDS,
    ComparisonPlan,
    parse_plan,
    plan_comparison,
)
from fedpbc.experiments.config_file import read_own_toml
from fedpbc.experiments.integrity import Damage, Verification
from fedpbc.experiments.plan_files import (
    clear_runs,
    misplaced_files,
    misplaced_folders,
    plan_damage,
    runs_below,
    write_plan,
)
from fedpbc.experiments.result_folder import check_result_folder
from fedpbc.experiments.run_directory import RunDirectory, inputs_named_in, is_report
from fedpbc.experiments.run_result import RunResult, step_sizes_of
from fedpbc.experiments.sweep import GridCell, GridProgress, everyone_trains, run_grid
from fedpbc.experiments.trial_round import clear_trial_round, run_trial_round
from fedpbc.experiments.trust import check_trust, remember_plugins
from fedpbc.experiments.widening import widened
from fedpbc.limits import parse_toml
from fedpbc.storage.directories import locked_directory, make_directory
from fedpbc.storage.files import read_own_file
from fedpbc.storage.manifest import MANIFEST, is_folder_name, is_inside, read_manifest
from fedpbc.storage.removal import own_files, remove_empty_folder, remove_files

__all__ = ["DEFAULT_SEEDS", "ComparisonDirectory", "ComparisonPlan", "plan_comparison"]

FILES = ("comparison.json", "table.md", "accuracy.png", "compare.toml", MANIFEST)
"""What a comparison writes besides its runs, inputs and report."""


class ComparisonDirectory:
    """A comparison on disk."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.plan_path = self.path / "compare.toml"
        self.table_path = self.path / "table.md"
        self.plot_path = self.path / "accuracy.png"
        self.json_path = self.path / "comparison.json"
        self.report_path = self.path / "report.html"

    @property
    def holds_comparison(self) -> bool:
        """Whether a comparison was begun here: a plan of ours, not just a file of that name."""
        return bool(self.planned_runs())

    def planned_runs(self) -> list[RunDirectory]:
        """The run directories of the plan in this directory; never others."""
        names = [name for name in self._planned_names() if is_inside(self.path, name)]
        return [RunDirectory(self.path / name) for name in names]

    def planned(self) -> tuple[list[str], list[int]]:
        """The labels and seeds of the plan in this directory; none if there is no such plan."""
        try:
            plan = parse_toml(read_own_file(self.path, self.plan_path.name).decode())
            labels = [name for name in plan["algorithms"] if is_folder_name(name)]
            return labels, [int(seed) for seed in plan["seeds"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return [], []

    def _planned_names(self) -> list[str]:
        return [f"{label}/seed-{seed}" for label, seed in product(*self.planned())]

    def _misplaced(self, runs: Iterable[str]) -> list[Damage]:
        """Links in place of the inputs or on the way to runs; files that are not regular files."""
        return [*misplaced_folders(self.path, runs), *misplaced_files(self.path, FILES)]

    @property
    def was_begun(self) -> bool:
        """Whether a comparison was begun here, even if its plan is damaged now."""
        return self.holds_comparison or read_manifest(self.path, "comparison") is not None

    @property
    def _is_ours(self) -> bool:
        """Whether we made this directory: a plan that was written by hand is the user's."""
        if read_manifest(self.path, "comparison") is not None:
            return True
        # Earlier versions wrote no manifest.
        if not any(run.path.is_dir() for run in self.planned_runs()):
            return False
        text = read_own_file(self.path, self.plan_path.name).decode()
        return tomli_w.dumps(parse_toml(text)) == text

    @contextmanager
    def opened(self, plan: ComparisonPlan, *, overwrite: bool = False) -> Iterator[ComparisonPlan]:
        """Make the directory for a comparison, or continue or widen one, and lock it.

        Yields the plan of everything that the directory is for now.
        """
        runs = (f"{name}/seed-{seed}" for name, seed in product(plan.entries, plan.seeds))
        for misplaced in self._misplaced(runs):
            raise InputError(str(misplaced))
        hint = " (its compare.toml was not written by a comparison)" * self.holds_comparison
        check_result_folder(self.path, lambda: self._is_ours, hint)
        goes_on = self.holds_comparison and not overwrite
        remember_plugins(plan.first().code)
        full_plan = self._widened(plan) if goes_on else plan
        # The inputs may lie in the very directory that is to be overwritten: they are read before.
        text, inputs = full_plan.self_contained()
        make_directory(self.path)
        with locked_directory(self.path):
            # Of a command whose disk was read-only in the end.
            clear_trial_round(self.path)
            if overwrite and self.was_begun:
                run_trial_round(
                    self.path, [plan.config(name, plan.seeds[0]) for name in plan.entries]
                )
                self._clear()
            elif self.holds_comparison:
                # Another process may have widened it in the meantime.
                full_plan = self._widened(plan)
                text, inputs = full_plan.self_contained()
            write_plan(self.path, "comparison", self.plan_path.name, text, inputs, FILES)
            yield full_plan

    def _widened(self, plan: ComparisonPlan) -> ComparisonPlan:
        """The plan in this directory with what another one adds."""
        for each in self._plan_damage():
            raise InputError(str(each))
        values = read_own_toml(self.plan_path)
        check_trust(self.path, values)
        return widened(parse_plan(values), plan, self.path)

    def _clear(self) -> None:
        """Remove what an earlier comparison wrote, and nothing else."""
        runs = self.planned_runs()
        if plan_damage(self.path, "comparison", self.plan_path.name) or not runs:
            # The plan does not say which runs there were.
            runs = runs_below(self.path, "*/seed-*")
        clear_runs(self.path, runs)
        inputs = {f"inputs/{file.name}" for file in own_files(self.path, ["inputs/*"])}
        listed = read_manifest(self.path, "comparison")
        if listed is None:
            # Earlier versions wrote no manifest; their plan names the inputs.
            listed = [*inputs_named_in(self.plan_path.read_text(encoding="utf-8"))]
        remove_files(self.path, inputs & {*listed})
        remove_empty_folder(self.path / "inputs")
        if is_report(self.report_path):
            remove_files(self.path, [self.report_path.name])
        # The plan stays until the new one takes its place: if the disk fails before that, the
        # earlier comparison can be run again. With inputs it cannot: the new ones replace them.
        kept = () if inputs else (self.plan_path.name, MANIFEST)
        remove_files(self.path, [name for name in FILES if name not in kept])

    def verify(self) -> Verification:
        """Check the plan, its inputs and the page; the runs are checked one by one."""
        damage = self._plan_damage()
        if os.path.lexists(self.report_path) and not is_report(self.report_path):
            reason = "it is not a report, and is not replaced by one; move it elsewhere"
            damage.append(Damage(self.report_path, reason, repairable=False))
        return Verification(self.path, "comparison", tuple(damage), checked=1)

    def _plan_damage(self) -> list[Damage]:
        damage = plan_damage(self.path, "comparison", self.plan_path.name)
        damage += self._misplaced(self._planned_names())
        if not damage and not self.holds_comparison:
            damage = [Damage(self.plan_path, "it is not a plan of runs in this folder", False)]
        return damage

    def load_plan(
        self, track: Sequence[str] | None = None, *, trust: bool = False
    ) -> ComparisonPlan:
        """The plan in this directory, with other trackers if they are given.

        ``trust`` allows plugins that this user has not run on this machine.
        """
        for each in self._plan_damage():
            raise InputError(str(each))
        values = read_own_toml(self.plan_path)
        for name in values.get("algorithms", ()):
            if not is_folder_name(str(name)):
                raise InputError(f"algorithms in {self.plan_path}", name, "the name of a folder")
        check_trust(self.path, values, trust=trust)
        for run in self.planned_runs() if trust else ():
            if run.holds_run:
                check_trust(run.path, read_own_toml(run.config_path), trust=True)
        values = values if track is None else {**values, "track": list(track)}
        return plan_comparison(values, lenient=True)

    def cells(self, plan: ComparisonPlan) -> list[tuple[str, int, GridCell]]:
        """All runs, the long ones first: then the cores are busy to the end."""
        cells = []
        for label, seed in product(plan.entries, plan.seeds):
            path = self.path / label / f"seed-{seed}"
            cells.append((label, seed, GridCell(path, plan.config(label, seed), self.path)))

        def is_short(cell: tuple[str, int, GridCell]) -> bool:
            return not everyone_trains(cell[0], plan.algorithm_of(cell[0]))

        return sorted(cells, key=is_short)

    def run(
        self, plan: ComparisonPlan, jobs: int, on_progress: Callable[[GridProgress], None]
    ) -> Comparison:
        """Run what is not finished yet; the directory must be opened."""
        cells = self.cells(plan)
        failures = run_grid([cell for *_, cell in cells], jobs, on_progress)
        results = {}
        for (label, seed, cell), failure in zip(cells, failures, strict=True):
            name = plan.algorithm_of(label)
            condition = plan.entries[label].condition
            config = plan.config(label, seed)
            result = RunResult(
                name,
                seed,
                failure=failure,
                label=label,
                condition=condition,
                deploy_view=config.get("deploy_view"),
                step_sizes=step_sizes_of(config),
            )
            if failure is None:
                run = RunDirectory(cell.path)
                summary = run.summary()
                result = replace(result, metrics=run.metrics()).with_summary(summary)
            results[label, seed] = result
        comparison = Comparison(results[pair] for pair in product(plan.entries, plan.seeds))
        if not comparison.finished:
            raise FedpbcError(f"every run failed; the first: {comparison.failed[0].failure}")
        return comparison
