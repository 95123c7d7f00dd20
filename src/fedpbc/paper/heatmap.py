"""Heat maps of a grid search: accuracy over η_0 and η_g, one map for each algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedpbc.experiments.comparison import Spread
from fedpbc.report.comparison_table import marked_name
from fedpbc.report.plot import save_figure

__all__ = ["GridPoint", "draw_heatmaps"]

COLUMNS = 4


@dataclass(frozen=True)
class GridPoint:
    """One pair of step sizes, η_0 and η_g; ``test`` is None if it diverged or failed."""

    learning_rate: float
    global_learning_rate: float
    test: Spread | None
    diverged: bool = False

    @property
    def pair(self) -> tuple[float, float]:
        """η_0 and η_g."""
        return self.learning_rate, self.global_learning_rate


def draw_heatmaps(points: Mapping[str, Sequence[GridPoint]], title: str, path: Path) -> list[Path]:
    """Write a figure with each algorithm's accuracies; × where a pair diverged or failed."""
    columns = min(COLUMNS, len(points))
    rows = -(-len(points) // columns)
    figure = Figure(figsize=(3.1 * columns + 0.8, 2.9 * rows + 0.6), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    tests = [p.test.mean for of_one in points.values() for p in of_one if p.test is not None]
    limits = 100 * min(tests, default=0.0), 100 * max(tests, default=1.0)
    for axes in panels.flat[len(points) :]:
        axes.set_visible(False)
    for axes, (name, of_one) in zip(panels.flat, points.items(), strict=False):
        draw_panel(axes, of_one, limits)
        axes.set_title(marked_name(name), fontsize=10)
    figure.suptitle(f"{title}\ntest accuracy, %; × diverged; framed: chosen", fontsize=11)
    return save_figure(figure, path)


def draw_panel(axes: Axes, points: Sequence[GridPoint], limits: tuple[float, float]) -> None:
    """Draw the accuracies of one algorithm as shades and numbers."""
    etas = list(dict.fromkeys(p.learning_rate for p in points))
    etas_g = list(dict.fromkeys(p.global_learning_rate for p in points))
    values = np.full((len(etas), len(etas_g)), np.nan)
    for p in points:
        if p.test is not None:
            cell = etas.index(p.learning_rate), etas_g.index(p.global_learning_rate)
            values[cell] = 100 * p.test.mean
    # This colour map goes from dark to light, also in grey and for the colour-blind.
    axes.imshow(values, cmap="cividis", vmin=limits[0], vmax=limits[1], aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        missing = bool(np.isnan(value))
        colour = "white" if value < sum(limits) / 2 else "black"
        frame = {"boxstyle": "round,pad=0.2", "fill": False, "ec": colour}
        axes.text(
            j,
            i,
            "×" if missing else f"{value:.0f}",
            ha="center",
            va="center",
            fontsize=9,
            color=colour,
            bbox=frame if not missing and value == np.nanmax(values) else None,
        )
    axes.set_xticks(range(len(etas_g)), [f"{v:g}" for v in etas_g], fontsize=8)
    axes.set_yticks(range(len(etas)), [f"{v:g}" for v in etas], fontsize=8)
    axes.set_xlabel("η_g", fontsize=9)
    axes.set_ylabel("η_0", fontsize=9)
