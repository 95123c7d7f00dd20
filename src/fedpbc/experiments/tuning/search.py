"""The runs of a search, rung by rung: all candidates of one are scored before any is promoted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from fedpbc.algorithms import find_algorithm
from fedpbc.errors import FedpbcError
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.sweep import DivergedReason, GridCell, GridProgress, run_grid
from fedpbc.experiments.tuning.halving import promoted
from fedpbc.experiments.tuning.plan import Trial, TuningPlan
from fedpbc.experiments.tuning.result import (
    Score,
    TrialResult,
    TunedAlgorithm,
    TuningResult,
    score_of,
)

__all__ = ["OnProgress", "Search", "planned_steps"]

OnProgress = Callable[[GridProgress], None]


def planned_steps(plan: TuningPlan) -> list[tuple[str, int, bool]]:
    """A label, the rounds, and whether every client trains, for each run on each rung."""
    steps = []
    for rung, names in enumerate(_algorithms_by_rung(plan)):
        for name in names:
            halving = plan.halving(name)
            before = halving.rungs[rung - 1] if rung else 0
            row = (name, halving.rungs[rung] - before, find_algorithm(name).everyone_trains)
            steps += [row] * (halving.sizes[rung] * len(plan.seeds))
    return steps


def _algorithms_by_rung(plan: TuningPlan) -> list[list[str]]:
    """The algorithms on each rung, those with long runs first: then cores are busy to the end."""
    names = sorted(plan.algorithms, key=lambda name: not find_algorithm(name).everyone_trains)
    rungs = len(plan.halving(names[0]).rungs)
    return [names for _ in range(rungs)]


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
        alive = {name: plan.trials(name) for name in plan.algorithms}
        first_step = 0
        for rung, names in enumerate(_algorithms_by_rung(plan)):
            trials = [trial for name in names for trial in alive[name]]
            self._run_rung(rung, trials, first_step)
            first_step += sum(plan.halving(n).sizes[rung] for n in names) * len(plan.seeds)
            for name in names:
                halving = plan.halving(name)
                if rung + 1 < len(halving.rungs):
                    values = [self._value(trial) for trial in alive[name]]
                    kept = promoted(values, halving.sizes[rung + 1])
                    alive[name] = [alive[name][k] for k in kept]
        return TuningResult(
            plan,
            [
                TunedAlgorithm(
                    name,
                    [
                        TrialResult(
                            trial.settings,
                            self.scores[name, trial.number],
                            self.rounds[name, trial.number],
                        )
                        for trial in plan.trials(name)
                    ],
                )
                for name in plan.algorithms
            ],
            self.has_classes,
        )

    def _value(self, trial: Trial) -> float | None:
        score = self.scores[trial.algorithm, trial.number]
        return None if score is None else score.value

    def _run_rung(self, rung: int, trials: Sequence[Trial], first_step: int) -> None:
        """Run candidates up to a rung, and score them."""
        plan, cells, steps = self.plan, [], []
        position = dict.fromkeys(plan.algorithms, 0)
        offsets = self._offsets(rung, first_step)
        for trial in trials:
            halving = plan.halving(trial.algorithm)
            for seed in plan.seeds:
                path = self.path / trial.folder / f"seed-{seed}"
                config = plan.config(trial, seed)
                sealed = f"{trial.folder}/seed-{seed}/metrics.jsonl" in self.sealed
                until = halving.rungs[rung]
                cells.append(GridCell(path, config, self.path, until, sealed))
                before = halving.rungs[rung - 1] if rung else 0
                steps.append((offsets[trial.algorithm] + position[trial.algorithm], before))
                position[trial.algorithm] += 1

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
        for name in _algorithms_by_rung(self.plan)[rung]:
            offsets[name] = step
            step += self.plan.halving(name).sizes[rung] * len(self.plan.seeds)
        return offsets

    def _score(self, trial: Trial, runs: Sequence[tuple[GridCell, str | None]]) -> None:
        key, rounds, lines = (trial.algorithm, trial.number), runs[0][0].until or 0, []
        for cell, failure in runs:
            if isinstance(failure, DivergedReason):
                self.scores[key], self.rounds[key] = None, rounds
                return
            if failure is not None:
                # A full disk, say: it must not decide which settings are chosen.
                raise FedpbcError(
                    f"{trial.folder} failed: {failure}; resume the search when that is mended"
                )
            metrics = RunDirectory(cell.path).metrics()
            lines.append([line for line in metrics if line["round"] <= rounds])
        self.scores[key], self.rounds[key] = score_of(lines, rounds), rounds
        evaluation = next(iter(lines[0][-1]["views"].values()))
        self.has_classes = evaluation.get("test_accuracy") is not None
