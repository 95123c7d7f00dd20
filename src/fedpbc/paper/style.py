"""The common look of the paper's figures."""

from __future__ import annotations

from typing import Any

from fedpbc.report.style import style_of

__all__ = ["STYLE", "algorithm_style"]

STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.5,
    # Embed fonts as text, which can be searched and edited in the PDF.
    "pdf.fonttype": 42,
}
"""Settings of matplotlib."""


def algorithm_style(algorithm: str) -> dict[str, Any]:
    """Colour, dashes and marker of an algorithm, the same in every figure.

    Example:
        >>> algorithm_style("fedavg")["marker"]
        's'
    """
    colour, dash, marker = style_of(algorithm)
    return {"color": colour, "linestyle": dash, "marker": marker}
