"""Statistics of links as a table for the terminal, tables for the page, and a picture."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpbc.report.page_tables import PageTable, TableCell
from fedpbc.report.pictures import svg_of
from fedpbc.report.text_table import TextTable
from fedpbc.storage.atomic import write_atomically
from fedpbc.text import printable
from fedpbc.theory.daily_cycle import DAY
from fedpbc.theory.link_sentences import format_devices, format_p, format_rounds, format_share
from fedpbc.theory.link_statistics import LinkStatistics
from fedpbc.theory.run_lengths import RunLengths

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "SUBJECTS",
    "link_figure",
    "link_page_tables",
    "link_rows",
    "link_table",
    "plot_links",
    "sentences_table",
]

SUBJECTS = {
    "log": "the log itself",
    "availability": "availability",
    "outages": "outages",
    "contacts": "contacts",
    "change": "change over time",
    "rounds": "memory",
    "clients": "devices together",
    "day": "hour of the day",
    "data": "data",
    "weights": "averaging",
    "mixing": "mixing",
    "staleness": "staleness",
}
"""How each sentence's subject is called."""
BLACK, BLUE, ORANGE, GREY = "#000000", "#0072B2", "#E69F00", "#999999"
# Okabe and Ito's; lines and hatches tell them apart in grey.


def link_rows(statistics: LinkStatistics) -> list[tuple[str, str, str]]:
    """Name, value and remark of each number."""
    seconds, quantiles = statistics.round_seconds, statistics.quantiles
    length = format_rounds(statistics.rounds, seconds)
    rows = [
        ("rounds and devices", f"{length}, {format_devices(statistics.clients)}", ""),
        (
            "share of rounds up",
            " · ".join(format_share(quantiles[q]) for q in (0.1, 0.5, 0.9)),
            "of 10 %, 50 % and 90 % of devices, at most",
        ),
        ("devices never up", f"{statistics.never:,}", ""),
        ("rounds with nobody up", f"{statistics.empty_rounds:,}", ""),
        *_run_rows("outages", statistics.outages, seconds),
        *_run_rows("contacts", statistics.contacts, seconds),
    ]
    share, tests = statistics.share_test, statistics.client_tests
    p, dependence = statistics.stationarity_p, statistics.round_dependence
    correlation, day, data = statistics.correlation, statistics.day, statistics.data
    verdict = {None: "–", True: "no change shown", False: "changes"}[statistics.stationary]
    how = _p(p, "all tests of it, corrected")
    if statistics.constant:
        verdict, how = "no link changed", ""
    rows.append(("change over time", verdict, how))
    if share is not None:
        how = f"strongest at {format_rounds(share.period, seconds)}" if share.cycles > 1 else "slow"
        rows.append(("  share of devices up", how, _p(share.p, "drift or cycle, periodogram")))
    if not statistics.constant:
        rows.append(
            (
                "  single devices",
                f"{tests.changing:,} of {tests.tested:,} change",
                _p(tests.combined, "orders of their outages"),
            )
        )
    if dependence is not None:
        rows.append(
            (
                "autocorrelation",
                f"{dependence.lag1:.3f}",
                _p(dependence.p, "rounds in random order"),
            )
        )
        if dependence.stretch is not None:
            rows.append(
                (
                    "outages, by those of chance",
                    f"{dependence.stretch:.3g}",
                    "times as long as of independent rounds",
                )
            )
    if correlation.plain is not None:
        rows.append(
            (
                "correlation of two devices",
                f"{correlation.plain:.4f}",
                _p(correlation.plain_p, "devices rotated in time"),
            )
        )
    if correlation.beyond_course is not None:
        width = f"course: mean of {correlation.course_rounds} rounds around"
        rows.append(
            (
                "  without a common course",
                f"{correlation.beyond_course:.4f}",
                _p(correlation.beyond_course_p, width),
            )
        )
    if correlation.overdispersion is not None:
        rows.append(
            (
                "variance of the number up",
                f"{correlation.overdispersion:.3g}",
                "by that of independent devices",
            )
        )
    if day is not None:
        rows.append(
            (
                "daily cycle",
                f"± {format_share(day.amplitude)} of devices",
                _p(day.p, f"most in hour {day.most}, fewest in {day.fewest}"),
            )
        )
    if data is not None:
        rows.append(
            (
                "class mix of who is up",
                f"{data.total_variation:.3f}",
                _p(data.p, "total variation; shares dealt anew"),
            )
        )
    return rows


def _run_rows(name: str, lengths: RunLengths, seconds: float | None) -> list[tuple[str, str, str]]:
    if lengths.mean is None:
        return [(name, f"{lengths.runs:,}", "none of them ended in these rounds")]
    values = ["–" if q is None else format_rounds(q, seconds) for q in lengths.quantiles[:2]]
    at_least = "" if lengths.longest_complete else "at least "
    cut = lengths.runs - lengths.complete
    return [
        (name, f"{lengths.runs:,}", f"{cut:,} cut off by the first or last round"),
        ("  mean", format_rounds(lengths.mean, seconds), "rounds in it by times it ended"),
        ("  half, 90 % at most", " · ".join(values), "Kaplan–Meier"),
        ("  longest", f"{at_least}{format_rounds(lengths.longest, seconds)}", ""),
    ]


def _p(p: float | None, what: str) -> str:
    return f"too little to test: {what}" if p is None else f"{format_p(p)}: {what}"


def link_table(statistics: LinkStatistics) -> TextTable:
    """Return every number, for the terminal."""
    table = TextTable()
    for heading in ("links", "value", "how"):
        table.column(heading, folds=16)
    for row in link_rows(statistics):
        table.row(*row)
    return table


def link_page_tables(statistics: LinkStatistics) -> list[PageTable]:
    """Return every number, for the page."""
    notes = []
    if statistics.sampled < statistics.clients:
        notes.append(
            f"Outages, contacts and dependence: of {statistics.sampled:,} of the "
            f"{statistics.clients:,} devices, drawn at random."
        )
    rows = [[TableCell(cell, kind="text") for cell in row] for row in link_rows(statistics)]
    return [PageTable("The links in numbers", ["links", "value", "how"], rows, notes)]


def sentences_table(title: str, sentences: Mapping[str, str]) -> PageTable:
    """Return sentences by subject, for the page."""
    rows = [
        [TableCell(SUBJECTS.get(subject, subject), kind="text"), TableCell(text, kind="text prose")]
        for subject, text in sentences.items()
    ]
    return PageTable(title, ["subject", "what these rounds say"], rows)


def plot_links(statistics: LinkStatistics, path: Path, title: str) -> None:
    """Write :func:`link_figure` as PNG, or as SVG if the name ends so."""
    figure = link_figure(statistics, title)
    if path.suffix == ".svg":
        write_atomically(path, svg_of(figure))
    else:
        write_atomically(path, partial(figure.savefig, format="png", dpi=150))


def link_figure(statistics: LinkStatistics, title: str) -> Figure:
    """Draw who is up over time, how often each device is up, and how long outages last."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6.4), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(1, 1))
    over_time = figure.add_subplot(grid[0, :])
    _draw_curve(over_time, statistics)
    _draw_shares(figure.add_subplot(grid[1, 0]), statistics)
    _draw_lengths(figure.add_subplot(grid[1, 1]), statistics)
    for axes in figure.axes:
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(printable(title), fontsize=12, parse_math=False)
    return figure


def _draw_curve(axes: Axes, statistics: LinkStatistics) -> None:
    rounds, seconds = statistics.rounds, statistics.round_seconds
    scale, unit = 1.0, "round"
    if seconds is not None:
        days = rounds * seconds / DAY
        scale, unit = (seconds / DAY, "day") if days >= 4 else (seconds / 3600, "hour")
    edges = np.linspace(0, rounds, len(statistics.curve) + 1) * scale
    axes.stairs(100 * statistics.curve, edges, color=BLUE, linewidth=1.6, baseline=None)
    mean = 100 * float(statistics.shares.mean())
    label = f"mean: {mean:.3g} %"
    axes.axhline(mean, color=BLACK, linewidth=1, linestyle=(0, (5, 3)), label=label)
    if seconds is not None and rounds * seconds >= DAY:
        for day in range(1, int(rounds * seconds // DAY) + 1):
            axes.axvline(day * DAY / seconds * scale, color=GREY, linewidth=0.8, linestyle=":")
    if unit == "hour":
        step = next(s for s in (1, 2, 3, 6, 12, 24) if rounds * scale / s <= 24)
        axes.set_xticks(np.arange(0, rounds * scale + 1e-9, step))
    axes.set_xlim(0, rounds * scale)
    axes.set_ylim(0, max(1.0, 105 * float(statistics.curve.max())))
    axes.set_ylabel("devices up, %")
    dotted = "; dotted: whole days" if seconds is not None and rounds * seconds >= DAY else ""
    axes.set_xlabel(f"{unit}s since the start{dotted}" if seconds is not None else unit)
    _title_and_legend(axes, "How many devices are up")


def _draw_shares(axes: Axes, statistics: LinkStatistics) -> None:
    shares = 100 * statistics.shares
    heard = shares[shares > 0]
    bins = np.linspace(0, 100, 21)
    axes.hist(heard, bins=bins.tolist(), color=BLUE, edgecolor="white", linewidth=0.6)
    if statistics.never:
        axes.bar(
            [-3.5],
            [statistics.never],
            width=4,
            color=ORANGE,
            edgecolor=BLACK,
            hatch="//",
            label=f"never up: {statistics.never:,}",
        )
    median = float(np.median(shares))
    label = f"median: {median:.3g} %"
    axes.axvline(median, color=BLACK, linewidth=1, linestyle=(0, (5, 3)), label=label)
    axes.set_xlim(-7 if statistics.never else -1, 101)
    axes.locator_params(axis="y", integer=True)
    axes.set_xlabel("share of rounds in which a device is up, %")
    axes.set_ylabel("devices")
    _title_and_legend(axes, "How often each device is up")


def _title_and_legend(axes: Axes, title: str) -> None:
    """Side by side above the axes: inside, curves and bars may be anywhere."""
    axes.set_title(title, fontsize=11, loc="left")
    axes.legend(
        fontsize=9,
        frameon=False,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        borderaxespad=0,
        ncols=2,
    )


def _draw_lengths(axes: Axes, statistics: LinkStatistics) -> None:
    seconds = statistics.round_seconds
    scale = 1.0 if seconds is None else seconds / 3600
    for lengths, name, colour, dash in (
        (statistics.outages, "outages", BLUE, "-"),
        (statistics.contacts, "contacts", ORANGE, "--"),
    ):
        if lengths.complete:
            # All last at least a round.
            x = np.concatenate([[lengths.lengths[0]], lengths.lengths]) * scale
            y = 100 * np.concatenate([[1.0], lengths.longer])
            axes.step(x, y, where="post", color=colour, linestyle=dash, linewidth=1.8, label=name)
    dependence = statistics.round_dependence
    share = statistics.shares[(statistics.shares > 0) & (statistics.shares < 1)]
    if dependence is not None and len(share):
        length = np.unique(np.geomspace(1, max(2, statistics.outages.longest), 60).astype(int))
        # Outages of links without memory: by client, as many as each has.
        begun = share * (1 - share)
        chance = [float((begun * (1 - share) ** k).sum() / begun.sum()) for k in length]
        axes.plot(
            length * scale,
            100 * np.array(chance),
            color=GREY,
            linestyle=":",
            linewidth=1.8,
            label="outages if every round were drawn anew",
        )
    if axes.lines:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.legend(fontsize=9, frameon=False, loc="best")
    else:
        axes.text(
            0.5,
            0.5,
            "no outage or contact begins and ends here",
            ha="center",
            transform=axes.transAxes,
        )
    axes.set_ylim(0, 105)
    axes.set_xlabel(f"length, {'rounds' if seconds is None else 'hours'}")
    axes.set_ylabel("that last longer, %")
    axes.set_title("How long outages and contacts last", fontsize=11, loc="left")
