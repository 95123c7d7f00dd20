"""Comparisons of several entries × seeds on the same links.

An entry is an algorithm under a label, which is its name unless it has settings of its own. Every
row of a comparison names its view (which model was evaluated), and what it cost. Accuracies are
means over the evaluations of the last rounds, ± the standard deviation over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Self

from fedpbc.algorithms import ALGORITHMS
from fedpbc.errors import InputError
from fedpbc.experiments.comparison_row import (
    ComparisonRow,
    Value,
    comparison_row,
    cost_of_runs,
    tail_mean,
    window_of,
)
from fedpbc.experiments.conditions import is_ceiling
from fedpbc.experiments.paired import (
    Costs,
    EntryScores,
    Paired,
    Scores,
    check_baseline,
    paired,
)
from fedpbc.experiments.run_result import RunResult
from fedpbc.experiments.spread import Spread, mean_of
from fedpbc.experiments.verdict import Verdict, verdict
from fedpbc.options import check_kind, nearest
from fedpbc.simulation.views import DEPLOYABLE, paper_view

__all__ = ["Comparison", "ComparisonRow", "Spread", "mean_of", "names_for"]


DIVERGED = 1e6
"""Times a usual loss at the beginning; the loss of a run that diverges grows without bound."""


def names_for(label: str, algorithm: str) -> tuple[str, ...]:
    """The names by which a baseline may be given; a ceiling is not meant by its algorithm.

    Example:
        >>> names_for("fedau:cutoff=5", "fedau"), names_for("ceiling", "fedavg")
        (('fedau:cutoff=5', 'fedau'), ('ceiling',))
    """
    return (label,) if is_ceiling(label) else (label, algorithm)


class Comparison:
    """The results of all runs, in the order of the entries, and what follows from them.

    Example:
        >>> evaluation = {"test_accuracy": 0.5, "train_accuracy": 0.6, "test_loss": 1.2,
        ...               "per_class": [0.5]}
        >>> line = {"round": 10, "local_steps": 50, "uploads": 10, "views": {"server": evaluation}}
        >>> runs = [RunResult("fedavg", seed, 100, [line]) for seed in (0, 1)]
        >>> [str(row.test) for row in Comparison(runs).rows()]
        ['50.0 ± 0.0']
    """

    def __init__(self, runs: Iterable[RunResult]) -> None:
        check_kind("runs", runs, Iterable, "results of runs")
        self.runs = list(runs)
        self._rows: tuple[tuple[int, ...], list[ComparisonRow]] | None = None
        for run in self.runs:
            check_kind("runs", run, RunResult, "results of runs")

    @property
    def finished(self) -> list[RunResult]:
        """The runs that are complete."""
        return [run for run in self.runs if run.failure is None and run.metrics]

    @property
    def failed(self) -> list[RunResult]:
        """The runs that failed."""
        return [run for run in self.runs if run.failure is not None]

    @property
    def algorithms(self) -> list[str]:
        """The names of the algorithms, in order."""
        return list(dict.fromkeys(run.algorithm for run in self.runs))

    @property
    def labels(self) -> list[str]:
        """The labels of the entries, in order."""
        return list(dict.fromkeys(run.label for run in self.runs))

    def algorithm_of(self, label: str) -> str:
        """The name of an entry's algorithm."""
        check_kind("label", label, str, "an entry's label")
        names = (run.algorithm for run in self.runs if run.label == label)
        name = next(names, None)
        if name is None:
            raise InputError("label", label, nearest(label, self.labels))
        return name

    @property
    def rounds(self) -> int:
        """The rounds of a finished run; of the longest, if a sweep has runs of several lengths."""
        return max((run.metrics[-1]["round"] for run in self.finished), default=0)

    @property
    def window(self) -> int:
        """Over how many last rounds evaluations are averaged, in the longest run."""
        return window_of(self.rounds)

    @property
    def tuned(self) -> bool:
        """Whether entries have step sizes of their own, or a search chose their views."""
        runs = [run for run in self.runs if not is_ceiling(run.label)]
        sizes = {run.step_sizes for run in runs}
        return len(sizes) > 1 or all(run.deploy_view is not None for run in runs)

    def _diverged(self, run: RunResult, view: str) -> bool:
        """Whether a run ended with a loss far beyond any that training begins with.

        With a seed all entries begin with the same model, so the smallest loss that any of them had
        at its first evaluation tells what is usual; what is smaller than 1 is no measure.
        """
        first, last = (run.metrics[k]["views"][view]["test_loss"] for k in (0, -1))
        if last < first:
            return False
        same = (each.metrics[0]["views"] for each in self.finished if each.seed == run.seed)
        usual = min(v["test_loss"] for views in same for v in views.values())
        return bool(last > DIVERGED * max(1.0, usual))

    def of(self, label: str) -> list[RunResult]:
        """The finished runs of one entry."""
        check_kind("label", label, str, "an entry's label")
        return [run for run in self.finished if run.label == label]

    def tail(self, run: RunResult, view: str, value: Value) -> float | None:
        """The mean of a value over the evaluations of a run's last rounds."""
        return tail_mean(run, view, value)

    def rows(self) -> list[ComparisonRow]:
        """One row for each entry and view."""
        # Asked for many times, for tables, differences and verdicts.
        runs = tuple(map(id, self.runs))
        if self._rows is None or self._rows[0] != runs:
            self._rows = runs, self._compute_rows()
        return list(self._rows[1])

    def _compute_rows(self) -> list[ComparisonRow]:
        all_rows: list[ComparisonRow] = []
        for label in self.labels:
            if runs := self.of(label):
                cost = self.cost_of(label)
                views = runs[0].metrics[-1]["views"]
                rows = [comparison_row(label, view, runs, cost) for view in views]
                deployable = [row for row in rows if row.view in DEPLOYABLE]
                best = best_row(deployable, chosen=self.deploy_view(label))
                all_rows += [replace(row, best_deployable=row is best) for row in rows]
        return all_rows

    def cost_of(self, label: str) -> Mapping[str, Any]:
        """What an entry's algorithm stores, as counted at the end of its runs."""
        runs = self.of(label) or [run for run in self.runs if run.label == label]
        return cost_of_runs(runs, algorithm=label)

    def curve(
        self, label: str, view: str, key: str = "test_accuracy"
    ) -> tuple[list[int], list[float], list[float]]:
        """The rounds of the evaluations, and a value's mean and deviation over seeds at each."""
        runs = self.of(label)
        rounds = [line["round"] for line in runs[0].metrics] if runs else []
        if rounds:
            views = runs[0].metrics[0]["views"]
            if not isinstance(view, str) or view not in views:
                raise InputError("view", view, nearest(str(view), views))
            numbers = [name for name, v in views[view].items() if isinstance(v, int | float)]
            if not isinstance(key, str) or key not in numbers:
                raise InputError("key", key, nearest(str(key), numbers))
        spreads = [
            Spread.of([run.metrics[k]["views"][view][key] for run in runs])
            for k in range(len(rounds))
        ]
        return rounds, [s.mean for s in spreads], [s.deviation for s in spreads]

    def paper_view(self, label: str) -> str:
        """The view that the paper's tables show for an entry's algorithm."""
        return paper_view(tuple(self.of(label)[0].metrics[-1]["views"]))

    def deploy_view(self, label: str) -> str | None:
        """The view to deploy that was chosen before an entry's runs, if it was the same for all."""
        views = {run.deploy_view for run in self.of(label)}
        [view, *others] = views or {None}
        return None if others else view

    def best_deployable(self, label: str) -> str | None:
        """The view that a server is to deploy: chosen beforehand, or the best by these values."""
        best = [row.view for row in self.rows() if row.label == label and row.best_deployable]
        return best[0] if best else None

    def row(self, label: str, *, deployable: bool = False) -> ComparisonRow | None:
        """The entry in the paper's view, or in its best deployable one.

        None if it failed or has no test accuracy.
        """
        check_kind("label", label, str, "an entry's label")
        rows = [row for row in self.rows() if row.label == label and row.test is not None]
        for row in rows:
            if row.best_deployable if deployable else row.view == self.paper_view(label):
                return row
        return None

    def scores(self, allowed: Callable[[ComparisonRow], bool] | None = None) -> Scores:
        """One value per seed of each row, in its best deployable view.

        ``allowed`` restricts what a verdict may choose: where it rules out the view to deploy, to
        the best of the views allowed.
        """
        if not callable(allowed) and allowed is not None:
            raise InputError("allowed", allowed, "a function of a row")
        deployable = [row for row in self.rows() if row.view in DEPLOYABLE]
        has_classes = all(row.test is not None for row in deployable)
        entries = []
        for name in self.labels:
            rows = [row for row in deployable if row.label == name]
            choice = rows if allowed is None else [row for row in rows if _passes(allowed, row)]
            starred = next((row.view for row in rows if row.best_deployable), None)
            row = best_row(choice or rows, chosen=starred)
            entries.append(self._scores(name, row, has_classes, allowed=bool(choice)))
        return Scores(entries, has_classes, self.tuned)

    def _scores(
        self, name: str, row: ComparisonRow | None, has_classes: bool, *, allowed: bool
    ) -> EntryScores:
        runs = [run for run in self.runs if run.label == name]
        failed = tuple(sorted(run.seed for run in runs if run.failure is not None))
        algorithm = runs[0].algorithm
        if row is None:
            return EntryScores(
                name, algorithm, None, {}, None, len(runs), failed, is_ceiling=is_ceiling(name)
            )
        key, sign = ("test_accuracy", 1.0) if has_classes else ("test_loss", -1.0)
        tails, diverged = {}, []
        for run in (run for run in self.finished if run.label == name):
            if self._diverged(run, row.view):
                diverged.append(run.seed)
            else:
                tails[run.seed] = self.tail(run, row.view, lambda evaluation: evaluation[key])
        kind = ALGORITHMS.get(algorithm)
        sent, stored = (row.bytes_up, row.bytes_down), (row.models_on_server, row.models_on_client)
        return EntryScores(
            name=name,
            algorithm=algorithm,
            view=row.view,
            values={seed: sign * tail for seed, tail in tails.items() if tail is not None},
            costs=Costs(row.local_steps, *sent, *stored),
            runs=len(runs),
            failed=failed,
            diverged=tuple(sorted(diverged)),
            needs_probabilities=kind is not None and kind.needs_probabilities,
            allowed=allowed and not is_ceiling(name),
            is_ceiling=is_ceiling(name),
        )

    def paired(
        self,
        baseline: str | None = None,
        *,
        allowed: Callable[[ComparisonRow], bool] | None = None,
    ) -> Paired:
        """Each row's paired difference to a baseline: FedAvg, or else the first, by default."""
        return paired(self, baseline, allowed=allowed)

    def verdict(
        self,
        baseline: str | None = None,
        *,
        allowed: Callable[[ComparisonRow], bool] | None = None,
    ) -> Verdict:
        """Who is clearly the best, or who is ahead and how many seeds would decide."""
        return verdict(self.scores(allowed), baseline)

    def by_condition(self) -> dict[str, Self]:
        """A comparison for each condition, with its ceiling; of one alone, this one.

        What a sweep over data, model or links has made can be shown together, but only rows of
        the same condition can be compared.
        """
        conditions = dict.fromkeys(r.condition for r in self.runs if not is_ceiling(r.label))
        if len(conditions) <= 1:
            return {"": self}
        return {
            str(condition): type(self)(
                run
                for run in self.runs
                if run.condition == condition
                or (is_ceiling(run.label) and run.condition.problem == condition.problem)
            )
            for condition in conditions
        }

    def baseline_label(self, name: str | None) -> str | None:
        """The label of a baseline that is named by its label or its algorithm, if it is here."""
        labels = [run.label for run in self.runs if name in names_for(run.label, run.algorithm)]
        return name if name in labels else next(iter(labels), None)

    def as_dict(self, baseline: str | None = None) -> dict[str, Any]:
        """The content of ``comparison.json``."""
        names = [name for run in self.runs for name in names_for(run.label, run.algorithm)]
        check_baseline(baseline, list(dict.fromkeys(names)))
        parts = [
            {
                "condition": condition,
                "paired": part.paired(part.baseline_label(baseline)).as_dict(),
                "verdict": part.verdict(part.baseline_label(baseline)).as_dict(),
            }
            for condition, part in self.by_condition().items()
        ]
        described = [dict(run.test_data) for run in self.finished if run.test_data]
        return {
            "rounds": self.rounds,
            "window": self.window,
            "seeds": sorted({run.seed for run in self.runs}),
            "rows": [asdict(row) for row in self.rows()],
            # Of several conditions, rows of one must not be compared with those of another.
            "paired": parts[0]["paired"] if len(parts) == 1 else None,
            "verdict": parts[0]["verdict"] if len(parts) == 1 else None,
            "conditions": parts,
            **({"test_data": described[0]} if described else {}),
            "failed": [
                {
                    "algorithm": run.algorithm,
                    "label": run.label,
                    "seed": run.seed,
                    "failure": run.failure,
                }
                for run in self.failed
            ],
        }


def best_row(rows: Sequence[ComparisonRow], chosen: str | None) -> ComparisonRow | None:
    """The row of the chosen view, if it is there; or else the one with the best score."""
    best = max(rows, key=lambda row: row.score, default=None)
    return next((row for row in rows if row.view == chosen), best)


def _passes(allowed: Callable[[ComparisonRow], bool], row: ComparisonRow) -> bool:
    try:
        return bool(allowed(row))
    except TypeError as error:
        raise InputError("allowed", allowed, "a function of a row") from error
