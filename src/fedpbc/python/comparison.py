"""The results of several simulations, and how they show themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpbc.errors import InputError
from fedpbc.experiments import comparison as experiments
from fedpbc.experiments.conditions import is_ceiling
from fedpbc.experiments.run_record import RunRecord
from fedpbc.experiments.run_result import RunResult
from fedpbc.limits import check_path
from fedpbc.options import check_type
from fedpbc.python.data_frame import data_frame, evaluation_rows
from fedpbc.python.html_table import html_table, paragraph
from fedpbc.report.comparison_table import cells_of, footnotes, headings, metric_names, sent_unit
from fedpbc.report.page import write_page
from fedpbc.report.plot import comparison_figure
from fedpbc.storage.scratch import scratch_folder

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

__all__ = ["Comparison"]


class Comparison(experiments.Comparison):
    """What :func:`fedpbc.compare` returns: all runs, and what follows from them.

    Attributes:
        folder: where the runs are stored; None if they are not.

    Example:
        >>> from fedpbc import Quadratic, compare
        >>> links = {"name": "bernoulli", "p": 0.5}
        >>> comparison = compare(lambda seed: Quadratic([[0.0], [9.0]], seed=seed),
        ...                      ["fedavg", "mifa"], links=links, rounds=50)
        >>> comparison
        <Comparison: fedavg and mifa, seeds 0-2, 50 rounds; 6 runs>
        >>> comparison.verdict().best
        'mifa'
    """

    def __init__(
        self,
        runs: Iterable[RunResult],
        *,
        folder: Path | None = None,
        records: Sequence[tuple[str, RunRecord]] = (),
    ) -> None:
        super().__init__(runs)
        self.folder = folder
        self.records = records

    @property
    def title(self) -> str:
        """What was compared, in a few words."""
        from fedpbc.experiments.seeds import seeds_text
        from fedpbc.text import listed

        labels = self.labels
        names = listed(labels) if len(labels) <= 6 else f"{len(labels)} entries"
        seeds = sorted({run.seed for run in self.runs})
        plural = "s" if len(seeds) > 1 else ""
        return f"{names}, seed{plural} {seeds_text(seeds)}, {self.rounds} rounds"

    def __repr__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"<Comparison: {self.title}; {len(self.runs)} runs{failed}>"

    def _repr_html_(self) -> str:
        parts = [paragraph(self.title)]
        for condition, part in self.by_condition().items():
            given = f" with {condition}" if condition else ""
            parts.append(paragraph(f"Verdict{given}: {part.verdict()}"))
        rows = self.rows()
        unit, names = sent_unit(rows), metric_names(rows)
        candidates = [row for row in rows if row.best_deployable and not is_ceiling(row.label)]
        best = max(candidates, key=lambda row: row.score, default=None)
        aided = {label: self.cost_of(label)["memory_aided"] for label in self.labels}
        cells = [cells_of(row, unit, aided[row.label], names) for row in rows]
        bold = [k for k, row in enumerate(rows) if row is best]
        parts.append(html_table(headings(rows), cells, bold=bold, left=2))
        parts += [paragraph(note) for note in footnotes(self)[:2]]
        return "".join(parts)

    def to_pandas(self, *, evaluations: bool = False) -> pandas.DataFrame:
        """Return the rows as a data frame, or all evaluations of all runs.

        Args:
            evaluations: one row for each evaluation of each view of each run, instead of one for
                each entry and view.

        Example:
            >>> from fedpbc import Quadratic, compare
            >>> comparison = compare(lambda seed: Quadratic([[0.0], [9.0]], seed=seed), ["fedavg"],
            ...                      seeds=[0, 1], links={"name": "bernoulli", "p": 0.5}, rounds=50)
            >>> comparison.to_pandas()["view"].tolist(), len(comparison.to_pandas(evaluations=True))
            (['server', 'averaged'], 20)
        """
        if check_type("evaluations", evaluations, bool):
            return data_frame(
                {"label": run.label, "algorithm": run.algorithm, "seed": run.seed, **row}
                for run in self.finished
                for row in evaluation_rows(run.metrics)
            )
        return data_frame(map(_flat_row, self.rows()))

    def plot(self) -> Figure:
        """Return a figure of accuracy, or loss, over rounds; a notebook shows it.

        On the left the view that the paper shows, on the right each entry's best deployable one.
        """
        if not self.finished:
            raise InputError("no run has finished: there is nothing to plot")
        return comparison_figure(self, self.title)

    def report(self, path: Path | str = "report.html", *, baseline: str | None = None) -> Path:
        """Write the HTML page about all runs, and return its path."""
        check_path(path, "path")
        check_type("baseline", baseline, str | None)
        page = Path(path)
        title, labels = f"Comparison: {self.title}", self.labels
        if self.folder is not None:
            folders = [self.folder / run.label / f"seed-{run.seed}" for run in self.runs]
            write_page(page, folders, title=title, baseline=baseline, labels=labels)
            return page
        if not self.records:
            raise InputError("these results have no record of their runs: compare() makes one")
        with scratch_folder() as scratch:
            folders = []
            for label, record in self.records:
                folders.append(scratch / label / f"seed-{record.summary['seed']}")
                folders[-1].parent.mkdir(exist_ok=True)
                record.write(folders[-1])
            write_page(
                page,
                folders,
                title=title,
                # A run that failed has left nothing else.
                notes=[
                    f"{run.label}, seed {run.seed}, failed: {run.failure}" for run in self.failed
                ],
                baseline=baseline,
                labels=labels,
                stored=False,
            )
        return page


def _flat_row(row: experiments.ComparisonRow) -> dict[str, Any]:
    """A row with a column for each mean and each deviation."""
    values: dict[str, Any] = {"label": row.label, "algorithm": row.algorithm, "view": row.view}
    spreads = {
        "test_accuracy": row.test,
        "train_accuracy": row.train,
        "worst_class": row.worst_class,
        "test_loss": row.loss,
        **row.metrics,
    }
    for name, spread in spreads.items():
        values[name] = None if spread is None else spread.mean
        values[f"{name}_deviation"] = None if spread is None else spread.deviation
    done = {"algorithm", "label", "view", "test", "train", "worst_class", "loss", "metrics"}
    return {**values, **{k: v for k, v in asdict(row).items() if k not in done}}
