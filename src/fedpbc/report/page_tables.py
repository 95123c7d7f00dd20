"""A page's tables; each can be sorted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from fedpbc.experiments.comparison import Comparison, Row
from fedpbc.report.groups import RunGroup
from fedpbc.report.page_data import peak_of
from fedpbc.report.table import cells_of, footnotes, headings
from fedpbc.simulation.views import DEPLOYABLE

__all__ = ["TableCell", "comparison_table", "footnote_list", "runs_table", "sortable_table"]


@dataclass(frozen=True)
class TableCell:
    """What stands in a table.

    Attributes:
        text: as it is; escaped when it goes into the page.
        by: what it is sorted by; None: by the text, as a number if it begins with one.
        tags: short marks after it: a CSS class and a text each.
        kind: a CSS class.

    Example:
        >>> TableCell("1,200", by=1200.0).html()
        '<td data-sort="1200.0">1,200</td>'
    """

    text: str
    by: float | None = None
    tags: Sequence[tuple[str, str]] = ()
    kind: str = ""

    def html(self) -> str:
        """For the page."""
        by = "" if self.by is None else f' data-sort="{float(self.by)!r}"'
        tags = "".join(f'<span class="tag {c}">{escape(text)}</span>' for c, text in self.tags)
        return f"<td{_kind(self.kind)}{by}>{escape(self.text)}{tags}</td>"


def _kind(name: str) -> str:
    return f' class="{name}"' if name else ""


def sortable_table(
    head: Sequence[str],
    rows: Sequence[Sequence[TableCell]],
    *,
    title: str = "",
    dimmed: Sequence[bool] | None = None,
) -> str:
    """A table whose columns can be sorted by a click or a key.

    Example:
        >>> "<td>fedpbc</td>" in sortable_table(["algorithm"], [[TableCell("fedpbc")]])
        True
    """
    texts = {k for row in rows for k, cell in enumerate(row) if "text" in cell.kind.split()}
    heads = "".join(
        f'<th scope="col"{_kind("text" if k in texts else "")}>'
        f'<button type="button">{escape(text)}</button></th>'
        for k, text in enumerate(head)
    )
    lines = "".join(
        f"<tr{_kind('undeployable' if dimmed and dimmed[k] else '')}>"
        f"{''.join(cell.html() for cell in row)}</tr>"
        for k, row in enumerate(rows)
    )
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    return (
        f'<div class="wide-table" tabindex="0"><table class="sortable">{caption}'
        f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def comparison_table(group: RunGroup, comparison: Comparison, rows: Sequence[Row]) -> str:
    """Every view of every algorithm, and what it cost."""
    body = [_comparison_row(group, comparison, row) for row in rows]
    return sortable_table(
        [*headings(rows), "seconds", "peak memory"],
        body,
        dimmed=[row.view not in DEPLOYABLE for row in rows],
    )


def _comparison_row(group: RunGroup, comparison: Comparison, row: Row) -> list[TableCell]:
    name, _, *texts = cells_of(row, comparison.cost_of(row.algorithm)["memory_aided"])
    tags = [("best", "best deployable")] if row.best_deployable else []
    if row.view == comparison.paper_view(row.algorithm):
        tags.append(("", "paper"))
    judged = [row.loss] if row.test is None else [row.test, row.train, row.worst_class]
    by: list[float | None] = [
        *(None if spread is None else spread.mean for spread in judged),
        row.local_steps,
        row.uploads,
        row.models_on_server,
        row.models_on_client,
    ]
    seconds = _mean([cell.metrics[-1]["seconds"] for cell in comparison.of(row.algorithm)])
    own = [run for run in group.runs if run.algorithm == row.algorithm]
    memory = _mean([peak for run in own if (peak := peak_of(run)) is not None])
    return [
        TableCell(name, kind="text"),
        TableCell(row.view, tags=tags, kind="text"),
        *(TableCell(text, number) for text, number in zip(texts, by, strict=True)),
        _seconds(seconds),
        _memory(memory),
    ]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _seconds(seconds: float | None) -> TableCell:
    return TableCell("–" if seconds is None else f"{seconds:,.1f}", seconds)


def _memory(memory: float | None) -> TableCell:
    return TableCell("–" if memory is None else f"{memory / 2**20:,.0f} MiB", memory)


def footnote_list(group: RunGroup, comparison: Comparison) -> str:
    """What a reader must know to read the table."""
    # What went wrong with a run is said in the table of runs.
    told = footnotes(Comparison(comparison.finished))
    notes = [note.replace("* the algorithm's", "best deployable: the algorithm's") for note in told]
    notes.insert(2, "paper: the view that the paper's tables show.")
    notes.append(
        "seconds: of training and judging, the mean over runs; peak memory: of a run's process and "
        "its workers, with everything that was in it."
    )
    if comparison.failed:
        missing = {(cell.algorithm, cell.seed) for cell in comparison.failed}
        states = [r.state for r in group.runs if (r.algorithm, r.seed or 0) in missing]
        notes.insert(0, f"not in this table: {counted(states)}; see the runs below.")
    return f'<ul class="footnotes">{"".join(f"<li>{escape(n)}</li>" for n in notes)}</ul>'


def counted(states: Sequence[str]) -> str:
    """How many runs there are of each kind.

    Example:
        >>> counted(["finished", "failed", "finished"])
        '2 finished, 1 failed'
    """
    return ", ".join(f"{count} {state}" for state, count in Counter(states).items())


def runs_table(number: int, group: RunGroup, *, opened: bool) -> str:
    """Every run: how far it is, how long it took, where it is."""
    rows = [
        [
            TableCell(run.algorithm, kind="text"),
            TableCell("–" if run.seed is None else str(run.seed)),
            TableCell(run.state, kind=f"text state-{run.state.replace(' ', '-')}"),
            TableCell(f"{run.done:,} of {run.rounds:,}" if run.rounds else "–", run.done),
            _seconds(run.metrics[-1]["seconds"] if run.metrics else None),
            _memory(peak_of(run)),
            TableCell(str(run.path), kind="text"),
            TableCell(run.note if run.note != run.state else "", kind="text"),
        ]
        for run in group.runs
    ]
    head = ["algorithm", "seed", "state", "rounds", "seconds", "peak memory", "folder", "note"]
    if not any(run.note for run in group.runs):
        head, rows = head[:-1], [row[:-1] for row in rows]
    summary = counted([run.state for run in group.runs])
    return (
        f'<details id="runs-{number}"{" open" if opened else ""}><summary>{summary}</summary>'
        f"{sortable_table(head, rows)}</details>"
    )
