"""Several algorithms × seeds on the same links, compared honestly.

Every row of a comparison names its view (which model was judged), and says what it cost. Accuracies
are means over the evaluations of the last rounds, ± the deviation over seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

from fedpbc.algorithms import ALGORITHMS
from fedpbc.simulation.views import DEPLOYABLE, cost_of, paper_view

__all__ = ["Cell", "Comparison", "Row", "Spread"]

Value = Callable[[Mapping[str, Any]], Any]
"""What is wanted of an evaluation."""


@dataclass(frozen=True)
class Spread:
    """A mean and a deviation over seeds (0 where there is one seed, and then not shown).

    Example:
        >>> str(Spread.of([0.5, 0.7]))
        '60.0 ± 14.1'
        >>> str(Spread.of([0.5]))
        '50.0'
    """

    mean: float
    deviation: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Over one value a seed."""
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(statistics.fmean(values), deviation, len(values))

    def __str__(self) -> str:
        shown = f"{100 * self.mean:.1f}"
        return f"{shown} ± {100 * self.deviation:.1f}" if self.seeds > 1 else shown


@dataclass(frozen=True)
class Cell:
    """One run of a comparison: its metrics, or why it failed.

    Attributes:
        algorithm: by name.
        seed: of the run.
        clients: m.
        metrics: a line for every evaluation.
        failure: what went wrong, if it did.
        cost: as in a run's summary; for an algorithm that is not known here.

    Example:
        >>> Cell("fedavg", seed=0, failure="it diverged").metrics
        ()
    """

    algorithm: str
    seed: int
    clients: int = 0
    metrics: Sequence[Mapping[str, Any]] = ()
    failure: str | None = None
    cost: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Row:
    """One algorithm in one view.

    Attributes:
        test: test accuracy; None where the task has no classes.
        train: training accuracy.
        worst_class: the test accuracy of the class that does worst.
        loss: test loss.
        models_on_server: None where no server could have the view.
        best_deployable: whether this is the algorithm's best view that a server could have.

    Example:
        >>> one = Spread.of([0.7, 0.8])
        >>> row = Row("fedavg", "server", one, one, one, one, 500, 100, 1, 0)
        >>> str(row.test)
        '75.0 ± 7.1'
    """

    algorithm: str
    view: str
    test: Spread | None
    train: Spread | None
    worst_class: Spread | None
    loss: Spread
    local_steps: int
    uploads: int
    models_on_server: int | None
    models_on_client: int | None
    best_deployable: bool = False


UNKNOWN_COST: Mapping[str, Any] = {
    "models_on_server": {},
    "models_on_client": None,
    "vectors_per_upload": 1,
    "memory_aided": False,
}


class Comparison:
    """The cells of a comparison, and what follows from them.

    Example:
        >>> judged = {"test_accuracy": 0.5, "train_accuracy": 0.6, "test_loss": 1.2,
        ...           "per_class": [0.5]}
        >>> lines = [{"round": 10, "local_steps": 50, "uploads": 10, "views": {"server": judged}}]
        >>> cells = [Cell("fedavg", seed, 100, lines) for seed in (0, 1)]
        >>> [str(row.test) for row in Comparison(cells).rows()]
        ['50.0 ± 0.0']
    """

    def __init__(self, cells: Iterable[Cell]) -> None:
        self.cells = list(cells)

    @property
    def finished(self) -> list[Cell]:
        """The cells that came to their end."""
        return [cell for cell in self.cells if cell.failure is None and cell.metrics]

    @property
    def failed(self) -> list[Cell]:
        """The cells that did not."""
        return [cell for cell in self.cells if cell.failure is not None]

    @property
    def algorithms(self) -> list[str]:
        """In the order given."""
        return list(dict.fromkeys(cell.algorithm for cell in self.cells))

    @property
    def rounds(self) -> int:
        """How many were run."""
        return max((cell.metrics[-1]["round"] for cell in self.finished), default=0)

    @property
    def window(self) -> int:
        """Over how many last rounds evaluations are averaged: 100, but at most a fifth of all."""
        return max(1, min(100, self.rounds // 5))

    def of(self, algorithm: str) -> list[Cell]:
        """The finished cells of one algorithm."""
        return [cell for cell in self.finished if cell.algorithm == algorithm]

    def tail(self, cell: Cell, view: str, value: Value) -> float | None:
        """The mean of a value over the evaluations of a cell's last rounds."""
        first = cell.metrics[-1]["round"] - self.window
        # From the end: a run may have thousands of evaluations before.
        lines = list(takewhile(lambda line: line["round"] > first, reversed(cell.metrics)))
        values = [value(line["views"][view]) for line in reversed(lines)]
        return None if None in values else statistics.fmean(values)

    def rows(self) -> list[Row]:
        """A row for each algorithm and view."""
        found: list[Row] = []
        for algorithm in self.algorithms:
            cells = self.of(algorithm)
            if not cells:
                continue
            rows = [self._row(algorithm, view, cells) for view in cells[0].metrics[-1]["views"]]
            deployable = [row for row in rows if row.view in DEPLOYABLE]
            best = max(deployable, key=_goodness, default=None)
            for row in rows:
                found.append(Row(**{**vars(row), "best_deployable": row is best}))
        return found

    def _row(self, algorithm: str, view: str, cells: Sequence[Cell]) -> Row:
        cost = self.cost_of(algorithm)

        def spread(value: Value) -> Spread | None:
            values = [self.tail(cell, view, value) for cell in cells]
            known = [v for v in values if v is not None]
            return Spread.of(known) if len(known) == len(values) else None

        loss = spread(lambda e: e["test_loss"])
        assert loss is not None  # Every evaluation has a loss.
        return Row(
            algorithm=algorithm,
            view=view,
            test=spread(lambda e: e["test_accuracy"]),
            train=spread(lambda e: e["train_accuracy"]),
            worst_class=spread(_worst_class),
            loss=loss,
            local_steps=round(statistics.fmean(c.metrics[-1]["local_steps"] for c in cells)),
            uploads=round(statistics.fmean(c.metrics[-1]["uploads"] for c in cells)),
            models_on_server=cost["models_on_server"].get(view),
            models_on_client=cost["models_on_client"],
        )

    def cost_of(self, algorithm: str) -> Mapping[str, Any]:
        """What an algorithm keeps and sends: as it says, or as its runs' summaries say.

        A run may be of an algorithm that only the program knew that made it.
        """
        cells = self.of(algorithm) or [c for c in self.cells if c.algorithm == algorithm]
        kind = ALGORITHMS.get(algorithm)
        if kind is None:
            return next((c.cost for c in cells if c.cost is not None), None) or UNKNOWN_COST
        views = cells[0].metrics[-1]["views"] if cells[0].metrics else ()
        return cost_of(kind, cells[0].clients, tuple(views))

    def curve(
        self, algorithm: str, view: str, key: str = "test_accuracy"
    ) -> tuple[list[int], list[float], list[float]]:
        """Rounds, mean and deviation over seeds of a value."""
        cells = self.of(algorithm)
        rounds = [line["round"] for line in cells[0].metrics] if cells else []
        means, deviations = [], []
        for k in range(len(rounds)):
            spread = Spread.of([cell.metrics[k]["views"][view][key] for cell in cells])
            means.append(spread.mean)
            deviations.append(spread.deviation)
        return rounds, means, deviations

    def paper_view(self, algorithm: str) -> str:
        """The view that the paper's tables show for an algorithm."""
        return paper_view(tuple(self.of(algorithm)[0].metrics[-1]["views"]))

    def best_deployable(self, algorithm: str) -> str | None:
        """The algorithm's best view that a server could have."""
        best = [r.view for r in self.rows() if r.algorithm == algorithm and r.best_deployable]
        return best[0] if best else None

    def row(self, algorithm: str, *, deployable: bool = False) -> Row | None:
        """The algorithm in the paper's view, or in its best deployable one.

        None if it failed or has no test accuracy.
        """
        rows = [row for row in self.rows() if row.algorithm == algorithm and row.test is not None]
        for row in rows:
            if row.best_deployable if deployable else row.view == self.paper_view(algorithm):
                return row
        return None

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "rounds": self.rounds,
            "window": self.window,
            "seeds": sorted({cell.seed for cell in self.cells}),
            "rows": [asdict(row) for row in self.rows()],
            "failed": [
                {"algorithm": cell.algorithm, "seed": cell.seed, "failure": cell.failure}
                for cell in self.failed
            ],
        }


def _goodness(row: Row) -> float:
    return row.test.mean if row.test is not None else -row.loss.mean


def _worst_class(evaluation: Mapping[str, Any]) -> float | None:
    known = [v for v in evaluation["per_class"] or () if v is not None]
    return min(known, default=None)
