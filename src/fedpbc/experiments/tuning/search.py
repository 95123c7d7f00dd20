"""The runs of a search, rung by rung: all candidates of one are scored before any is promoted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpbc.errors import FedpbcError
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.sweep import (
    DivergedReason,
    GridCell,
    GridProgress,
    everyone_trains,
    run_grid,
)
from fedpbc.experiments.tuning.halving import promoted
from fedpbc.experiments.tuning.plan import Trial, TuningPlan
from fedpbc.experiments.tuning.result import (
    Score,
    TrialResult,
    TunedEntry,
    TuningResult,
    score_of,
)
from fedpbc.simulation.evaluation_schedule import EvaluationSchedule

__all__ = ["OnProgress", "Search", "planned_steps"]

OnProgress = Callable[[GridProgress], None]


def planned_steps(plan: TuningPlan) -> list[tuple[str, int, bool]]:
    """A label, the rounds, and whether every client trains, for each run on each rung."""
    steps = []
    for rung, labels in enumerate(_labels_by_rung(plan)):
        for label in labels:
            halving = plan.halving(label)
            before = halving.rungs[rung - 1] if rung else 0
            row = (
                label,
                halving.rungs[rung] - before,
                everyone_trains(label, plan.entries[label].algorithm),
            )
            steps += [row] * (halving.sizes[rung] * len(plan.seeds))
    return steps


def _labels_by_rung(plan: TuningPlan) -> list[list[str]]:
    """The entries on each rung, those with long runs first: then cores are busy to the end."""
    labels = sorted(
        plan.entries, key=lambda label: not everyone_trains(label, plan.entries[label].algorithm)
    )
    rungs = len(plan.halving(labels[0]).rungs)
    return [labels for _ in range(rungs)]


class Search:
    """The runs of a search in its folder.

    ``sealed`` are the files that are known to be as they were written.
    """

    def __init__(
        self,
        path: Path,
        plan: TuningPlan,
        jobs: int,
        on_progress: OnProgress,
        sealed: Collection[str] = (),
    ) -> None:
        self.path, self.plan, self.jobs = path, plan, jobs
        self.on_progress, self.sealed = on_progress, sealed
        self.scores: dict[tuple[str, int], Score | None] = {}
        self.rounds: dict[tuple[str, int], int] = {}
        self.has_classes = True

    def run(self) -> TuningResult:
        """Run all rungs, and score the candidates."""
        plan = self.plan
        alive = {label: plan.trials(label) for label in plan.entries}
        first_step = 0
        for rung, labels in enumerate(_labels_by_rung(plan)):
            trials = [trial for label in labels for trial in alive[label]]
            self._run_rung(rung, trials, first_step)
            first_step += sum(plan.halving(e).sizes[rung] for e in labels) * len(plan.seeds)
            for label in labels:
                halving = plan.halving(label)
                if rung + 1 < len(halving.rungs):
                    values = [self._value(trial) for trial in alive[label]]
                    kept = promoted(values, halving.sizes[rung + 1])
                    alive[label] = [alive[label][k] for k in kept]
        return TuningResult(
            plan,
            [
                TunedEntry(
                    plan.entries[label].algorithm,
                    [
                        TrialResult(
                            trial.settings,
                            self.scores[label, trial.number],
                            self.rounds[label, trial.number],
                        )
                        for trial in plan.trials(label)
                    ],
                    label,
                )
                for label in plan.entries
            ],
            self.has_classes,
        )

    def _value(self, trial: Trial) -> float | None:
        score = self.scores[trial.label, trial.number]
        return None if score is None else score.value

    def _run_rung(self, rung: int, trials: Sequence[Trial], first_step: int) -> None:
        """Run candidates up to a rung, and score them."""
        plan, cells, steps = self.plan, [], []
        position = dict.fromkeys(plan.entries, 0)
        offsets = self._offsets(rung, first_step)
        for trial in trials:
            halving = plan.halving(trial.label)
            for seed in plan.seeds:
                path = self.path / trial.folder / f"seed-{seed}"
                config = plan.config(trial, seed)
                sealed = f"{trial.folder}/seed-{seed}/metrics.jsonl" in self.sealed
                until = halving.rungs[rung]
                cells.append(GridCell(path, config, self.path, until, sealed))
                before = halving.rungs[rung - 1] if rung else 0
                steps.append((offsets[trial.label] + position[trial.label], before))
                position[trial.label] += 1

        def forward(progress: GridProgress) -> None:
            step, before = steps[progress.cell]
            failure = progress.failure
            if isinstance(failure, DivergedReason):
                # A search expects some.
                done = cells[progress.cell].until or 0
                progress = GridProgress(progress.cell, done)
            self.on_progress(replace(progress, cell=step, done=max(0, progress.done - before)))

        failures = run_grid(cells, min(self.jobs, max(1, len(cells))), forward)
        of_trial = iter(zip(cells, failures, strict=True))
        for trial in trials:
            self._score(trial, [next(of_trial) for _ in plan.seeds])

    def _offsets(self, rung: int, first_step: int) -> dict[str, int]:
        offsets, step = {}, first_step
        for label in _labels_by_rung(self.plan)[rung]:
            offsets[label] = step
            step += self.plan.halving(label).sizes[rung] * len(self.plan.seeds)
        return offsets

    def _score(self, trial: Trial, runs: Sequence[tuple[GridCell, str | None]]) -> None:
        key, rounds, lines = (trial.label, trial.number), runs[0][0].until or 0, []
        for cell, failure in runs:
            if isinstance(failure, DivergedReason):
                self.scores[key], self.rounds[key] = None, rounds
                return
            if failure is not None:
                # A full disk, say: it must not decide which settings are chosen.
                raise FedpbcError(
                    f"{trial.folder} failed: {failure}; resume the search when that is fixed"
                )
            lines.append(self._lines(RunDirectory(cell.path), rounds))
        self.scores[key], self.rounds[key] = score_of(lines, rounds), rounds
        evaluation = next(iter(lines[0][-1]["views"].values()))
        self.has_classes = evaluation.get("test_accuracy") is not None

    def _lines(self, run: RunDirectory, rounds: int) -> list[dict[str, Any]]:
        """The evaluations of a run that came so far; none of them may have been lost."""
        lines = [line for line in run.metrics() if line["round"] <= rounds]
        due = EvaluationSchedule(self.plan.rounds, self.plan.evaluate_every).due(rounds)
        if [line["round"] for line in lines] != due:
            raise FedpbcError(
                f"{run.metrics_path} changed while the search was running; resume the search to "
                "run this candidate again"
            )
        return lines
