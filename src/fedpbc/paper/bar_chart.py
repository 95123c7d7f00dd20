"""Bar charts of accuracy: a cluster of bars for each condition, a bar for each algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedpbc.algorithms import find_algorithm
from fedpbc.experiments.comparison import Comparison
from fedpbc.paper.results import figure_title
from fedpbc.report.comparison_table import marked_name
from fedpbc.report.plot import save_figure
from fedpbc.report.style import style_of

__all__ = ["BarCluster", "BarPanel", "draw_bars"]


@dataclass(frozen=True)
class BarCluster:
    """The bars of one condition; ``published`` are the paper's accuracies in per cent."""

    label: str
    comparison: Comparison
    published: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class BarPanel:
    """A row of clusters; shows the paper's views, or the best deployable ones."""

    title: str
    clusters: Sequence[BarCluster]
    deployable: bool = False


def draw_bars(panels: Sequence[BarPanel], title: str, path: Path, *, quick: bool) -> list[Path]:
    """Write panels below each other; hatched: aided by memory; ◇: the paper's accuracy."""
    figure = Figure(figsize=(12, 1.0 + 2.9 * len(panels)), layout="constrained")
    cells = [cell for p in panels for c in p.clusters for cell in c.comparison.runs]
    algorithms = list(dict.fromkeys(cell.algorithm for cell in cells))
    seeds = len({cell.seed for cell in cells})
    rows = figure.subplots(len(panels), 1, sharey=True, squeeze=False)[:, 0]
    for axes, panel in zip(rows, panels, strict=True):
        draw_panel(axes, panel, algorithms)
    handles, labels = rows[0].get_legend_handles_labels()
    entries = dict(zip(labels, handles, strict=True))
    figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside lower center",
        ncols=8,
        frameon=False,
        fontsize=9,
    )
    over = f"± one deviation over {seeds} seeds" if seeds > 1 else "one seed"
    title = figure_title(f"{title} · {over}", quick)
    figure.suptitle(f"{title} · hatched: aided by memory", fontsize=12)
    return save_figure(figure, path)


def draw_panel(axes: Axes, panel: BarPanel, algorithms: Sequence[str]) -> None:
    """Draw one row of clusters."""
    width = 0.84 / len(algorithms)
    for k, name in enumerate(algorithms):
        positions = {
            cluster.label: index + (k - (len(algorithms) - 1) / 2) * width
            for index, cluster in enumerate(panel.clusters)
        }
        tests = {
            cluster.label: row.test
            for cluster in panel.clusters
            if (row := cluster.comparison.row(name, deployable=panel.deployable)) and row.test
        }
        deviations = [100 * test.deviation for test in tests.values()]
        axes.bar(
            [positions[label] for label in tests],
            [100 * test.mean for test in tests.values()],
            width,
            # One seed has no deviation; an error bar of length 0 would look like a small one.
            yerr=deviations if any(deviations) else None,
            color=style_of(name).colour,
            edgecolor="white" if name == "fedpbc" else "black",
            linewidth=0.6,
            hatch="\\\\\\" if find_algorithm(name).memory_aided else None,
            error_kw={"ecolor": "#777777", "elinewidth": 1.1, "capsize": 1.5},
            label=marked_name(name),
        )
        published = {
            cluster.label: cluster.published[name]
            for cluster in panel.clusters
            if name in cluster.published and not panel.deployable
        }
        if published:
            axes.plot(
                [positions[label] for label in published],
                list(published.values()),
                "D",
                markersize=4,
                markerfacecolor="white",
                markeredgecolor="black",
                markeredgewidth=0.9,
                linestyle="none",
                label="the paper's",
            )
    axes.set_xticks(range(len(panel.clusters)), [c.label for c in panel.clusters])
    axes.tick_params(axis="x", length=0)
    axes.set_title(panel.title, fontsize=10.5, loc="left")
    axes.set_ylabel("test accuracy, %")
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.grid(axis="y", alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
