"""A grid search as pictures: accuracy over η_0 and η_g, one square for each algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpbc.paper.result_table import name_of

if TYPE_CHECKING:
    from fedpbc.paper.tune import GridPoint

__all__ = ["draw_grids"]

COLUMNS = 4


def draw_grids(found: Mapping[str, Sequence[GridPoint]], title: str, place: Path) -> list[Path]:
    """Write a picture: accuracies as shades and numbers, × where a pair diverged or failed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    from fedpbc.report.plot import save_figure

    columns = min(COLUMNS, len(found))
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(3.1 * columns + 0.8, 2.9 * rows + 0.6), layout="constrained")
    squares = figure.subplots(rows, columns, squeeze=False)
    tests = [t.test.mean for tried in found.values() for t in tried if t.test is not None]
    low, high = 100 * min(tests, default=0.0), 100 * max(tests, default=1.0)
    for axes in squares.flat[len(found) :]:
        axes.set_visible(False)
    for axes, (name, tried) in zip(squares.flat, found.items(), strict=False):
        etas = list(dict.fromkeys(t.learning_rate for t in tried))
        etas_g = list(dict.fromkeys(t.global_learning_rate for t in tried))
        values = np.full((len(etas), len(etas_g)), np.nan)
        for t in tried:
            if t.test is not None:
                at = etas.index(t.learning_rate), etas_g.index(t.global_learning_rate)
                values[at] = 100 * t.test.mean
        # One hue from light to dark is read in grey and by the colour-blind alike.
        axes.imshow(values, cmap="cividis", vmin=low, vmax=high, aspect="auto")
        for (i, j), value in np.ndenumerate(values):
            dark = value < (low + high) / 2
            shown = "×" if np.isnan(value) else f"{value:.0f}"
            best = not np.isnan(value) and value == np.nanmax(values)
            axes.text(
                j,
                i,
                shown,
                ha="center",
                va="center",
                fontsize=9,
                color="white" if dark else "black",
                bbox={
                    "boxstyle": "round,pad=0.2",
                    "fill": False,
                    "ec": "white" if dark else "black",
                }
                if best
                else None,
            )
        axes.set_xticks(range(len(etas_g)), [f"{v:g}" for v in etas_g], fontsize=8)
        axes.set_yticks(range(len(etas)), [f"{v:g}" for v in etas], fontsize=8)
        axes.set_title(name_of(name), fontsize=10)
        axes.set_xlabel("η_g", fontsize=9)
        axes.set_ylabel("η_0", fontsize=9)
    figure.suptitle(f"{title}\ntest accuracy, %; × diverged; framed: chosen", fontsize=11)
    return save_figure(figure, place)
