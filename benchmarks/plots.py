"""Plots of what was measured; readable in grey and for the colour-blind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.comparison import Comparison
from benchmarks.tables import digits, duration, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Line", "plot_bars", "plot_lines"]

# Of Okabe and Ito's colours, apart in brightness too; the hatch says it once more.
STYLES: Mapping[str, tuple[str, str, str]] = {
    "plain": ("#BBBBBB", "", "plain PyTorch"),
    "ours": ("#0072B2", "", "this package"),
    "peer": ("#F0E442", "///", "other frameworks"),
}
COLOURS = (
    *("#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2"),
    *("#D55E00", "#CC79A7", "#999999", "#882255", "#117733"),
)
DASHES = ("-", "--", "-.", ":")
MARKERS = "osD^vPX*<>"

Line = tuple[Sequence[float], Sequence[float]]
"""What stands on the two axes."""


def new_figure(width: float, height: float) -> Figure:
    """A figure that needs no screen."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write an image."""
    figure.savefig(path, format="png", dpi=150)


def tidy(axes: Axes) -> None:
    """Remove clutter."""
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def plot_bars(comparison: Comparison, path: Path) -> None:
    """Seconds per round of every contestant, the quickest on top."""
    rows = comparison.rows()[::-1]
    figure = new_figure(9.0, 1.6 + 0.42 * len(rows))
    axes = figure.subplots()
    shown: set[str] = set()
    for k, row in enumerate(rows):
        colour, hatch, label = STYLES[row.kind]
        spread = [[row.seconds - row.low], [row.high - row.seconds]]
        axes.barh(
            k,
            row.seconds,
            color=colour,
            hatch=hatch,
            edgecolor="black",
            linewidth=0.7,
            xerr=spread,
            error_kw={"elinewidth": 1.0, "capsize": 3},
            label=None if label in shown else label,
        )
        shown.add(label)
        text = f"  {duration(row.seconds)}"
        if "plain" in row.speedup and row.name != "plain":
            text += f" · {digits(row.speedup['plain'])} × as fast as plain"
        if row.share is not None:
            text += f" · {percent(row.share)} of the bound"
        axes.text(row.high, k, text, va="center", fontsize=8.5)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.set_xlim(0, 1.8 * max((row.high for row in rows), default=1.0))
    axes.set_xlabel("seconds per round (median; lines: least to most)")
    axes.set_title(comparison.work.title, fontsize=10)
    tidy(axes)
    axes.grid(visible=False, axis="y")
    figure.legend(fontsize=8.5, frameon=False, loc="outside lower center", ncols=3)
    save(figure, path)


def plot_lines(
    panels: Mapping[str, Mapping[str, Line]],
    path: Path,
    *,
    title: str,
    across: str,
    logarithmic: bool = True,
) -> None:
    """One panel for each quantity, with one curve for each name in it."""
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = new_figure(2.6 + 4.6 * len(panels), 4.4)
    # A name looks the same in all panels.
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    for axes, (quantity, curves) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        for name, (x, y) in curves.items():
            k = names.index(name)
            axes.plot(
                x,
                y,
                color=COLOURS[k % len(COLOURS)],
                linestyle=DASHES[k % len(DASHES)],
                marker=MARKERS[k % len(MARKERS)],
                markersize=5,
                linewidth=1.6,
                label=name,
            )
        if logarithmic:
            axes.loglog()
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter("{x:,.10g}")
                axis.set_minor_formatter(NullFormatter())
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        else:
            axes.set_ylim(bottom=0)
            axes.set_xticks(sorted({value for x, _ in curves.values() for value in x}))
        axes.set_xlabel(across)
        axes.set_title(quantity, fontsize=10)
        tidy(axes)
    lines = {str(line.get_label()): line for axes in figure.axes for line in axes.get_lines()}
    figure.legend(
        [lines[name] for name in names],
        names,
        fontsize=8.5,
        frameon=False,
        handlelength=3.2,
        loc="outside right center",
    )
    figure.suptitle(title, fontsize=11)
    save(figure, path)
