"""A comparison as a plot: accuracy over rounds, with deviation bands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedpbc.algorithms import ALGORITHMS, find_algorithm
from fedpbc.experiments.comparison import Comparison
from fedpbc.storage.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["comparison_figure", "plot_comparison", "save_figure"]

# Okabe and Ito's colours and two of Tol's, apart for the colour-blind; dashes and markers tell them
# apart in grey. As many as there are algorithms.
COLOURS = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
    "#999999",
    "#882255",
    "#117733",
)
DASHES: Sequence[str | tuple[int, tuple[int, ...]]] = (
    "-",
    "--",
    "-.",
    ":",
    (0, (5, 1)),
    (0, (3, 1, 1, 1)),
    (0, (1, 1)),
    (0, (8, 2, 2, 2)),
    (0, (10, 3)),
    (0, (6, 2, 1, 2, 1, 2)),
)
MARKERS = "osD^vPX*<>"


class Look(NamedTuple):
    """A colour, dashes and a marker."""

    colour: str
    dash: str | tuple[int, tuple[int, ...]]
    marker: str


def look(place: int) -> Look:
    """How the algorithm at this place of the registry is drawn; alike for none of a hundred.

    Example:
        >>> look(0) == look(10)
        False
    """
    # After one's own have used up the ten, each goes on in steps of its own.
    rest, turn = place % len(COLOURS), place // len(COLOURS)
    return Look(
        COLOURS[(rest + 4 * turn) % len(COLOURS)],
        DASHES[(rest + 3 * turn) % len(DASHES)],
        MARKERS[(rest + 7 * turn) % len(MARKERS)],
    )


def plot_comparison(comparison: Comparison, path: Path, title: str) -> None:
    """Write a picture: the paper's views on the left, the best deployable ones on the right."""
    figure = comparison_figure(comparison, title)
    write_atomically(path, lambda place: figure.savefig(place, format="png", dpi=150))


def comparison_figure(
    comparison: Comparison, title: str, *, levels: Sequence[float] = ()
) -> Figure:
    """Accuracy over rounds: the paper's views on the left, the best deployable ones on the right.

    ``levels`` are accuracies in per cent that are to be told apart, as thin lines.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    has_classes = any(row.test is not None for row in comparison.rows())
    key, scale = ("test_accuracy", 100.0) if has_classes else ("test_loss", 1.0)
    for axes, heading, choose in (
        (left, "the view that the paper shows", comparison.paper_view),
        (right, "the best view that a server could deploy", comparison.best_deployable),
    ):
        for level in levels:
            axes.axhline(level, color="#555555", linewidth=0.8, linestyle=(0, (1, 3)), zorder=0)
        for algorithm in comparison.algorithms:
            view = choose(algorithm) if comparison.of(algorithm) else None
            if view is not None:
                draw(axes, comparison, algorithm, view, key, scale)
        axes.set_title(heading, fontsize=11)
        axes.set_xlabel("round")
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(left=0)
        if axes.has_data():
            axes.legend(fontsize=8.5, frameon=False, handlelength=3.2, loc="best")
    left.set_ylabel("test accuracy, %" if has_classes else "test loss")
    if not has_classes:
        left.set_yscale("log")
    seeds = len({cell.seed for cell in comparison.cells})
    band = f"bands: ± one deviation over {seeds} seeds" if seeds > 1 else "one seed"
    figure.suptitle(f"{title} · {band}", fontsize=12)
    return figure


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG and PDF; ``path`` without an ending. Gives both paths."""
    written = []
    for kind in ("png", "pdf"):
        place = path.with_name(f"{path.name}.{kind}")
        # Without a date, so that the same numbers make the same file.
        metadata = {"CreationDate": None} if kind == "pdf" else None
        write_atomically(place, partial(figure.savefig, format=kind, dpi=150, metadata=metadata))
        written.append(place)
    return written


def draw(
    axes: Axes, comparison: Comparison, algorithm: str, view: str, key: str, scale: float
) -> None:
    """One algorithm's curve and band."""
    rounds, means, deviations = comparison.curve(algorithm, view, key)
    # A place in the registry, not in this plot: an algorithm looks the same in every plot.
    k = list(ALGORITHMS).index(algorithm)
    colour, dash, marker = look(k)
    low = [scale * (m - d) for m, d in zip(means, deviations, strict=True)]
    high = [scale * (m + d) for m, d in zip(means, deviations, strict=True)]
    axes.fill_between(rounds, low, high, color=colour, alpha=0.13, linewidth=0)
    aided = "†" if find_algorithm(algorithm).memory_aided else ""
    axes.plot(
        rounds,
        [scale * m for m in means],
        color=colour,
        linestyle=dash,
        marker=marker,
        # A marker now and then, each curve at another place.
        markevery=(k * max(1, len(rounds) // 50), max(1, len(rounds) // 6)),
        markersize=5,
        linewidth=2.4 if algorithm == "fedpbc" else 1.5,
        label=f"{algorithm}{aided} ({view})",
    )
