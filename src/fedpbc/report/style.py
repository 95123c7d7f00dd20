"""Colours, dashes and markers of algorithms: the same in every plot and on every page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fedpbc.algorithms import ALGORITHMS

__all__ = ["LineStyle", "in_registry_order", "line_style", "page_styles", "style_of"]

Dash = str | tuple[int, tuple[int, ...]]

# Okabe and Ito's colours and two of Tol's, for colour-blind readers; dashes and markers tell curves
# apart in grey. The first ten algorithms have one of each, the others new combinations.
COLOURS = (
    *("#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2"),
    *("#D55E00", "#CC79A7", "#999999", "#882255", "#117733"),
)
DASHES: Sequence[Dash] = (
    *("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1))),
    *((0, (1, 1)), (0, (8, 2, 2, 2)), (0, (10, 3)), (0, (6, 2, 1, 2, 1, 2))),
)
MARKERS = "osD^vPX*<>"

DARK_COLOURS = {
    "#000000": "#FFFFFF",
    "#0072B2": "#4FA8E0",
    "#882255": "#D66BA0",
    "#117733": "#4CB876",
    "#D55E00": "#F0803C",
}
"""Replacements on a dark page for colours that would be hard to see."""

DASH_LENGTHS = {"-": None, "--": (3.7, 1.6), "-.": (6.4, 1.6, 1, 1.6), ":": (1, 1.65)}
"""Matplotlib's named dashes, in line widths."""

SYMBOLS = {
    "o": "circle",
    "s": "rect",
    "D": "diamond",
    "^": "triangle",
    "v": "path://M0,0L10,0L5,9Z",
    "P": "path://M3,0H7V3H10V7H7V10H3V7H0V3H3Z",
    "X": "path://M2,0L5,3L8,0L10,2L7,5L10,8L8,10L5,7L2,10L0,8L3,5L0,2Z",
    "*": "path://M5,0L6.2,3.5L10,3.6L7,5.9L8.1,9.5L5,7.4L1.9,9.5L3,5.9L0,3.6L3.8,3.5Z",
    "<": "path://M9,0L9,10L0,5Z",
    ">": "path://M0,0L0,10L9,5Z",
}
"""ECharts symbols for matplotlib's markers."""


class LineStyle(NamedTuple):
    """Colour, dashes and marker of a curve."""

    colour: str
    dash: Dash
    marker: str


def line_style(index: int) -> LineStyle:
    """Return the style of the algorithm at an index of the registry; the first 100 all differ."""
    # Beyond the ten, each part advances by its own step, so that combinations do not repeat.
    rest, turn = index % len(COLOURS), index // len(COLOURS)
    return LineStyle(
        COLOURS[(rest + 4 * turn) % len(COLOURS)],
        DASHES[(rest + 3 * turn) % len(DASHES)],
        MARKERS[(rest + 7 * turn) % len(MARKERS)],
    )


def style_of(algorithm: str) -> LineStyle:
    """Return the style of a registered algorithm."""
    return line_style(list(ALGORITHMS).index(algorithm))


def in_registry_order(algorithms: Iterable[str]) -> list[str]:
    """Sort names as in the registry; unknown names come last, in alphabetical order."""
    names = list(ALGORITHMS)
    return sorted(set(algorithms), key=lambda a: (names.index(a) if a in names else len(names), a))


def page_styles(algorithms: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the styles of algorithms as page.js needs them."""
    ordered = in_registry_order(algorithms)
    names = [*ALGORITHMS, *(name for name in ordered if name not in ALGORITHMS)]
    styles = {}
    for name in ordered:
        index = names.index(name)
        colour, dash, marker = line_style(index)
        lengths = DASH_LENGTHS[dash] if isinstance(dash, str) else dash[1]
        styles[name] = {
            "colour": colour,
            "dark": DARK_COLOURS.get(colour, colour),
            "dash": None if lengths is None else [2 * length for length in lengths],
            "marker": SYMBOLS[marker],
            "index": index,
        }
    return styles
