"""The results of a study: one table of all runs, and what follows from it.

Labels, roles and conditions are those of the runs; nothing is guessed from names. Accuracies are
means over the evaluations of the last rounds, ± the standard deviation over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from fedpbc.algorithms import ALGORITHMS
from fedpbc.errors import InputError
from fedpbc.experiments.paired import (
    Costs,
    EntryScores,
    Paired,
    Scores,
    check_baseline,
    paired,
)
from fedpbc.experiments.spread import Spread
from fedpbc.experiments.verdict import Verdict, verdict
from fedpbc.options import nearest
from fedpbc.simulation.views import DEPLOYABLE, paper_view
from fedpbc.study.record import Record
from fedpbc.study.rows import Row, Value, cost_of, row_of, tail_mean, window_of
from fedpbc.study.run_folder import RunFolder
from fedpbc.study.study_folder import StudyFolder

__all__ = ["Results"]

Allowed = Callable[[Row], bool]
DIVERGED = 1e6
"""Times a usual loss at the beginning; the loss of a run that diverges grows without bound."""


class Results:
    """All records of a study, in the order of its variants, and what follows from them.

    Example:
        >>> evaluation = {"test_accuracy": 0.5, "train_accuracy": 0.6, "test_loss": 1.2,
        ...               "per_class": [0.5]}
        >>> line = {"round": 10, "local_steps": 50, "uploads": 10, "views": {"server": evaluation}}
        >>> result = {"cost": {"models_on_server": {"server": 1}, "models_on_client": 0}}
        >>> values = {"algorithm": {"name": "fedavg"}}
        >>> runs = [Record("fedavg", "entry", "", k, values, [line], result) for k in (0, 1)]
        >>> [str(row.test) for row in Results(runs).rows]
        ['50.0 ± 0.0']
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = tuple(records)

    @classmethod
    def read(cls, folder: Path | str) -> Results:
        """The results in the folder of a study, or of one run."""
        if StudyFolder(folder).holds_study:
            return cls(StudyFolder(folder).records())
        return cls([RunFolder(folder).record()])

    @property
    def finished(self) -> list[Record]:
        """The runs that are complete."""
        return [run for run in self.records if run.finished and run.metrics]

    @property
    def failed(self) -> list[Record]:
        """The runs that failed."""
        return [run for run in self.records if run.failure is not None]

    @property
    def labels(self) -> list[str]:
        """The labels of the variants, in order."""
        return list(dict.fromkeys(run.label for run in self.records))

    @property
    def seeds(self) -> list[int]:
        """All seeds, ascending."""
        return sorted({run.seed for run in self.records})

    @property
    def rounds(self) -> int:
        """The rounds of a finished run; of the longest, if they have several lengths."""
        return max((run.metrics[-1]["round"] for run in self.finished), default=0)

    @property
    def window(self) -> int:
        """Over how many last rounds evaluations are averaged, in the longest run."""
        return window_of(self.rounds)

    @property
    def tuned(self) -> bool:
        """Whether entries have step sizes of their own, or a search chose their views."""
        runs = [run for run in self.records if run.role != "ceiling"]
        return len({run.step_sizes for run in runs}) > 1 or all(r.deploy_view for r in runs)

    def _diverged(self, run: Record, view: str) -> bool:
        """Whether a run ended with a loss far beyond any that training begins with.

        With a seed all variants begin with the same model, so the smallest loss that any of them
        had at its first evaluation tells what is usual; what is smaller than 1 is no measure.
        """
        first, last = (run.metrics[k]["views"][view]["test_loss"] for k in (0, -1))
        if last < first:
            return False
        same = (each.metrics[0]["views"] for each in self.finished if each.seed == run.seed)
        usual = min(v["test_loss"] for views in same for v in views.values())
        return bool(last > DIVERGED * max(1.0, usual))

    def of(self, label: str) -> list[Record]:
        """The finished runs of one variant."""
        return [run for run in self.finished if run.label == label]

    def any_of(self, label: str) -> Record:
        """A run of a variant: its algorithm, role and condition."""
        run = next((run for run in self.records if run.label == label), None)
        if run is None:
            raise InputError("label", label, nearest(str(label), self.labels))
        return run

    def tail(self, run: Record, view: str, value: Value) -> float | None:
        """The mean of a value over the evaluations of a run's last rounds."""
        return tail_mean(run, view, value)

    @cached_property
    def rows(self) -> list[Row]:
        """One row for each variant and view."""
        rows: list[Row] = []
        for label in self.labels:
            if runs := self.of(label):
                cost = cost_of(runs)
                views = runs[0].metrics[-1]["views"]
                own = [row_of(label, view, runs, cost) for view in views]
                deployable = [row for row in own if row.view in DEPLOYABLE]
                best = _best(deployable, chosen=self.deploy_view(label))
                rows += [replace(row, best_deployable=row is best) for row in own]
        return rows

    def row(self, label: str, *, deployable: bool = False) -> Row | None:
        """A variant in the paper's view, or in its best deployable one.

        None if it failed or has no test accuracy.
        """
        rows = [row for row in self.rows if row.label == label and row.test is not None]
        for row in rows:
            if row.best_deployable if deployable else row.view == self.paper_view(label):
                return row
        return None

    def curve(
        self, label: str, view: str, key: str = "test_accuracy"
    ) -> tuple[list[int], list[float], list[float]]:
        """The rounds of the evaluations, and a value's mean and deviation over seeds at each."""
        runs = self.of(label)
        rounds = [line["round"] for line in runs[0].metrics] if runs else []
        if rounds:
            views = runs[0].metrics[0]["views"]
            if view not in views:
                raise InputError("view", view, nearest(str(view), views))
            numbers = [name for name, v in views[view].items() if isinstance(v, int | float)]
            if key not in numbers:
                raise InputError("key", key, nearest(str(key), numbers))
        spreads = [
            Spread.of([run.metrics[k]["views"][view][key] for run in runs])
            for k in range(len(rounds))
        ]
        return rounds, [s.mean for s in spreads], [s.deviation for s in spreads]

    def paper_view(self, label: str) -> str:
        """The view that the paper's tables show for a variant's algorithm."""
        return paper_view(tuple(self.of(label)[0].metrics[-1]["views"]))

    def deploy_view(self, label: str) -> str | None:
        """The view to deploy that was chosen before a variant's runs, if it was one."""
        views = {run.deploy_view for run in self.of(label)}
        return next(iter(views)) if len(views) == 1 else None

    def best_deployable(self, label: str) -> str | None:
        """The view that a server is to deploy: chosen beforehand, or the best by these values."""
        rows = (row for row in self.rows if row.label == label and row.best_deployable)
        return next((row.view for row in rows), None)

    # ----------------------------------------------------------------- differences and verdict

    def by_condition(self) -> dict[str, Self]:
        """The results for each condition, with its ceilings; of one alone, these.

        Only runs of the same condition can be compared.
        """
        entries = [run for run in self.records if run.role != "ceiling"]
        problems = {run.condition: run.problem for run in entries}
        if len(problems) <= 1:
            return {"": self}
        return {
            condition: type(self)(
                run
                for run in self.records
                if run.condition == (problem if run.role == "ceiling" else condition)
            )
            for condition, problem in problems.items()
        }

    def scores(self, allowed: Allowed | None = None) -> Scores:
        """One value per seed of each variant, in its best deployable view.

        ``allowed`` restricts what a verdict may choose: where it rules out the view to deploy, to
        the best of the views allowed.
        """
        if not callable(allowed) and allowed is not None:
            raise InputError("allowed", allowed, "a function of a row")
        deployable = [row for row in self.rows if row.view in DEPLOYABLE]
        has_classes = all(row.test is not None for row in deployable)
        entries = []
        for label in self.labels:
            rows = [row for row in deployable if row.label == label]
            choice = rows if allowed is None else [row for row in rows if _passes(allowed, row)]
            starred = next((row.view for row in rows if row.best_deployable), None)
            row = _best(choice or rows, chosen=starred)
            entries.append(self._scores(label, row, has_classes, allowed=bool(choice)))
        return Scores(entries, has_classes, self.tuned)

    def _scores(
        self, label: str, row: Row | None, has_classes: bool, *, allowed: bool
    ) -> EntryScores:
        runs = [run for run in self.records if run.label == label]
        is_ceiling, algorithm = runs[0].role == "ceiling", runs[0].algorithm
        entry = EntryScores(
            label,
            algorithm,
            None,
            {},
            None,
            len(runs),
            tuple(sorted(run.seed for run in runs if run.failure is not None)),
            is_ceiling=is_ceiling,
        )
        if row is None:
            return entry
        key, sign = ("test_accuracy", 1.0) if has_classes else ("test_loss", -1.0)
        diverged = [run.seed for run in self.of(label) if self._diverged(run, row.view)]
        tails = {
            run.seed: tail_mean(run, row.view, lambda e: e[key])
            for run in self.of(label)
            if run.seed not in diverged
        }
        kind = ALGORITHMS.get(algorithm)
        sent, stored = (row.bytes_up, row.bytes_down), (row.models_on_server, row.models_on_client)
        return replace(
            entry,
            view=row.view,
            values={seed: sign * tail for seed, tail in tails.items() if tail is not None},
            costs=Costs(row.local_steps, *sent, *stored),
            diverged=tuple(sorted(diverged)),
            needs_probabilities=kind is not None and kind.needs_probabilities,
            allowed=allowed and not is_ceiling,
        )

    def paired(self, baseline: str | None = None, *, allowed: Allowed | None = None) -> Paired:
        """Each variant's paired difference to a baseline: that by its role, FedAvg, or the first.

        The baseline may be named by its label, or by its algorithm.
        """
        return paired(self, self.baseline_label(baseline), allowed=allowed)

    def verdict(self, baseline: str | None = None, *, allowed: Allowed | None = None) -> Verdict:
        """Who is clearly the best, or who is ahead and how many seeds would decide."""
        return verdict(self.scores(allowed), self.baseline_label(baseline))

    def baseline_label(self, name: str | None) -> str | None:
        """The label of a baseline that is named by its label or its algorithm."""
        if name is None:
            roles = (run.label for run in self.records if run.role == "baseline")
            return next(roles, None)
        if name in self.labels:
            return name
        entries = [run for run in self.records if run.role != "ceiling"]
        own = (run.label for run in entries if run.algorithm == name)
        if (label := next(own, None)) is None:
            check_baseline(name, [*self.labels, *dict.fromkeys(r.algorithm for r in entries)])
        return label

    def as_dict(self, baseline: str | None = None) -> dict[str, Any]:
        """The content of ``comparison.json``."""
        self.baseline_label(baseline)
        parts: Sequence[Mapping[str, Any]] = [
            {
                "condition": condition,
                "paired": part.paired(part.own_baseline(baseline)).as_dict(),
                "verdict": part.verdict(part.own_baseline(baseline)).as_dict(),
            }
            for condition, part in self.by_condition().items()
        ]
        tested = (run.result.get("test_data") for run in self.finished if run.result is not None)
        described = next(filter(None, tested), None)
        return {
            "rounds": self.rounds,
            "window": self.window,
            "seeds": self.seeds,
            "rows": [asdict(row) for row in self.rows],
            # Of several conditions, rows of one must not be compared with those of another.
            "paired": parts[0]["paired"] if len(parts) == 1 else None,
            "verdict": parts[0]["verdict"] if len(parts) == 1 else None,
            "conditions": parts,
            **({"test_data": described} if described else {}),
            "failed": [
                {"algorithm": r.algorithm, "label": r.label, "seed": r.seed, "failure": r.failure}
                for r in self.failed
            ],
        }

    def own_baseline(self, name: str | None) -> str | None:
        """A baseline of all results, if it is among these of one condition."""
        names = {n for run in self.records for n in (run.label, run.algorithm)}
        return name if name in names else None


def _best(rows: Sequence[Row], chosen: str | None) -> Row | None:
    """The row of the chosen view, if it is there; or else the one with the best score."""
    best = max(rows, key=lambda row: row.score, default=None)
    return next((row for row in rows if row.view == chosen), best)


def _passes(allowed: Allowed, row: Row) -> bool:
    try:
        return bool(allowed(row))
    except TypeError as error:
        raise InputError("allowed", allowed, "a function of a row") from error
