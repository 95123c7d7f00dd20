"""Plot a comparison: accuracy over rounds, with deviation bands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedpbc.experiments.comparison import Comparison
from fedpbc.report.comparison_table import marked_label
from fedpbc.report.curve_names import curve_names
from fedpbc.report.pictures import svg_of
from fedpbc.report.style import LineStyle, curve_styles, line_style, style_of
from fedpbc.storage.atomic import write_atomically
from fedpbc.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["comparison_figure", "plot_comparison", "run_figure", "save_figure"]


def plot_comparison(
    comparison: Comparison, path: Path, title: str, *, deployable_only: bool = False
) -> None:
    """Write :func:`comparison_figure` as PNG."""
    figure = comparison_figure(comparison, title, deployable_only=deployable_only)
    write_atomically(path, partial(figure.savefig, format="png", dpi=150))


def comparison_figure(
    comparison: Comparison,
    title: str,
    *,
    levels: Sequence[float] = (),
    deployable_only: bool = False,
) -> Figure:
    """Draw accuracy over rounds: the paper's views on the left, the best deployable on the right.

    ``levels`` are accuracies in per cent to mark with thin lines; ``deployable_only`` leaves out
    the paper's views.
    """
    from fedpbc.report.shown_figure import ShownFigure

    figure = ShownFigure(figsize=(9 if deployable_only else 12, 5.4), layout="constrained")
    panels = figure.subplots(1, 1 if deployable_only else 2, sharey=True, squeeze=False).ravel()
    left, right = panels[0], panels[-1]
    has_classes = any(row.test is not None for row in comparison.rows())
    key, scale = ("test_accuracy", 100.0) if has_classes else ("test_loss", 1.0)
    algorithms = {label: comparison.algorithm_of(label) for label in comparison.labels}
    names = curve_names(algorithms)
    styles = curve_styles({names[label]: algorithms[label] for label in names})
    drawn: list[tuple[Axes, str, Callable[[str], str | None]]] = [
        (left, "the view that the paper shows", comparison.paper_view),
        (right, "the best view that a server could deploy", comparison.best_deployable),
    ]
    for axes, heading, choose in drawn[1:] if deployable_only else drawn:
        for level in levels:
            axes.axhline(level, color="#555555", linewidth=0.8, linestyle=(0, (1, 3)), zorder=0)
        for k, label in enumerate(comparison.labels):
            view = choose(label) if comparison.of(label) else None
            if view is not None:
                marked = marked_label(names[label], comparison.cost_of(label)["memory_aided"])
                curve = Curve(f"{marked} ({view})", styles[names[label]], k)
                draw(axes, curve, comparison.curve(label, view, key), scale)
        axes.set_title(heading, fontsize=11)
        axes.set_xlabel("round")
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(left=0)
        if axes.has_data():
            legend = axes.legend(fontsize=8.5, frameon=False, handlelength=3.2, loc="best")
            for text in legend.get_texts():
                text.set_parse_math(False)
    left.set_ylabel("test accuracy, %" if has_classes else "test loss")
    if not has_classes:
        left.set_yscale("log")
    seeds = len({cell.seed for cell in comparison.runs})
    band = f"bands: ± one deviation over {seeds} seeds" if seeds > 1 else "one seed"
    figure.suptitle(printable(f"{title} · {band}"), fontsize=12, parse_math=False)
    return figure


def run_figure(
    metrics: Sequence[Mapping[str, Any]], title: str, key: str, views: Sequence[str]
) -> Figure:
    """Draw a value of one run over its rounds: one curve per view."""
    from fedpbc.report.shown_figure import ShownFigure

    figure = ShownFigure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    # A custom metric is shown as it is, whatever its name.
    share = key in ("test_accuracy", "train_accuracy")
    for index, view in enumerate(views):
        points = [(line["round"], line["views"][view].get(key)) for line in metrics]
        known = [(t, value) for t, value in points if value is not None]
        rounds, means = [t for t, _ in known], [value for _, value in known]
        curve = Curve(view, line_style(index), index)
        draw(axes, curve, (rounds, means, [0.0] * len(means)), 100.0 if share else 1.0)
    axes.set_xlabel("round")
    axes.set_ylabel(key.replace("_", " ") + (", %" if share else ""), parse_math=False)
    axes.set_title(printable(title), fontsize=11, parse_math=False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(left=0)
    axes.legend(fontsize=8.5, frameon=False, handlelength=3.2, loc="best")
    return figure


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG, SVG and PDF and return the paths; ``path`` has no extension."""
    png, svg, pdf = files = [
        path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg", "pdf")
    ]
    write_atomically(png, partial(figure.savefig, format="png", dpi=150))
    write_atomically(svg, svg_of(figure))
    # Without a date, so that the same numbers make the same file.
    undated = {"CreationDate": None}
    write_atomically(pdf, partial(figure.savefig, format="pdf", dpi=150, metadata=undated))
    return files


class Curve(NamedTuple):
    """What a curve looks like: its legend, its style, and its number among the others."""

    legend: str
    style: LineStyle
    number: int


def draw(
    axes: Axes, curve: Curve, points: tuple[list[int], list[float], list[float]], scale: float
) -> None:
    """Draw a curve and its band, from rounds, means and deviations."""
    rounds, means, deviations = points
    colour, dash, marker = curve.style
    low = [scale * (m - d) for m, d in zip(means, deviations, strict=True)]
    high = [scale * (m + d) for m, d in zip(means, deviations, strict=True)]
    axes.fill_between(rounds, low, high, color=colour, alpha=0.13, linewidth=0)
    every = max(1, len(rounds) // 6)
    axes.plot(
        rounds,
        [scale * m for m in means],
        color=colour,
        linestyle=dash,
        marker=marker,
        # A few markers, each curve's at other rounds.
        markevery=(curve.number * max(1, len(rounds) // 50) % every, every),
        markersize=5,
        linewidth=2.4 if curve.style == style_of("fedpbc") else 1.5,
        # Matplotlib hides labels that begin with an underscore.
        label=(" " if curve.legend.startswith("_") else "") + printable(curve.legend, 60),
    )
