"""Bars of accuracy: a cluster for each group, a bar for each algorithm, as the paper has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpbc.algorithms import find_algorithm
from fedpbc.experiments.comparison import Comparison, Row
from fedpbc.report.style import style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Cluster", "Panel", "bars"]

Published = Callable[[str], float | None]
"""The paper's figure for an algorithm, in per cent."""


@dataclass(frozen=True)
class Cluster:
    """The bars of one group: its name below them, and the paper's figures where there are any."""

    label: str
    comparison: Comparison
    published: Published = lambda algorithm: None


@dataclass(frozen=True)
class Panel:
    """Clusters beside each other, and which view of each algorithm they show."""

    title: str
    clusters: Sequence[Cluster]
    deployable: bool = False


def bars(panels: Sequence[Panel], title: str) -> Figure:
    """Panels below each other; hatched: aided by memory; ◇: the paper's figure."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 1.0 + 2.9 * len(panels)), layout="constrained")
    found = [name for p in panels for c in p.clusters for name in c.comparison.algorithms]
    algorithms = list(dict.fromkeys(found))
    stacked = figure.subplots(len(panels), 1, sharey=True, squeeze=False)[:, 0]
    for axes, panel in zip(stacked, panels, strict=True):
        draw_panel(axes, panel, algorithms)
    handles, labels = stacked[0].get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    figure.legend(
        named.values(), named.keys(), loc="outside lower center", ncols=8, frameon=False, fontsize=9
    )
    figure.suptitle(f"{title} · hatched: aided by memory", fontsize=12)
    return figure


def draw_panel(axes: Axes, panel: Panel, algorithms: Sequence[str]) -> None:
    """One row of clusters."""
    width = 0.84 / len(algorithms)
    for k, name in enumerate(algorithms):
        shown = [
            (place + (k - (len(algorithms) - 1) / 2) * width, row)
            for place, cluster in enumerate(panel.clusters)
            if (row := row_of(cluster.comparison, name, panel.deployable)) is not None
        ]
        deviations = [100 * row.test.deviation for _, row in shown if row.test]
        axes.bar(
            [x for x, _ in shown],
            [100 * row.test.mean for _, row in shown if row.test],
            width,
            # One seed has none, and a bar of no length would look like a small one.
            yerr=deviations if any(deviations) else None,
            color=style_of(name).colour,
            edgecolor="white" if name == "fedpbc" else "black",
            linewidth=0.6,
            hatch="\\\\\\" if find_algorithm(name).memory_aided else None,
            error_kw={"ecolor": "#777777", "elinewidth": 1.1, "capsize": 1.5},
            label=name + ("†" if find_algorithm(name).memory_aided else ""),
        )
        if not panel.deployable:
            paper = [
                (place + (k - (len(algorithms) - 1) / 2) * width, value)
                for place, cluster in enumerate(panel.clusters)
                if (value := cluster.published(name)) is not None
            ]
            axes.plot(
                [x for x, _ in paper],
                [value for _, value in paper],
                "D",
                markersize=4,
                markerfacecolor="white",
                markeredgecolor="black",
                markeredgewidth=0.9,
                linestyle="none",
                label="the paper's" if paper else None,
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


def row_of(comparison: Comparison, algorithm: str, deployable: bool) -> Row | None:
    """The algorithm in the paper's view, or in its best deployable one; None: it has failed."""
    if not comparison.of(algorithm):
        return None
    view = comparison.paper_view(algorithm)
    for row in comparison.rows():
        wanted = row.best_deployable if deployable else row.view == view
        if row.algorithm == algorithm and wanted and row.test is not None:
            return row
    return None
