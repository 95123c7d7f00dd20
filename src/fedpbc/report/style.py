"""Colours, dashes and markers of curves: an algorithm's are the same in every plot and page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedpbc.algorithms import ALGORITHMS
from fedpbc.experiments.conditions import is_ceiling
from fedpbc.simulation.views import VIEWS

__all__ = [
    "LineStyle",
    "curve_styles",
    "in_registry_order",
    "line_style",
    "page_styles",
    "style_of",
    "view_styles",
]

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
CEILING_COLOUR = "#777777"

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


def curve_styles(algorithms: Mapping[str, str]) -> dict[str, LineStyle]:
    """Return the style of each curve; ``algorithms`` are the algorithms by the curves' names.

    A curve named after its algorithm has the algorithm's style. Several curves of an algorithm have
    its colour, with the same dashes for the same setting; where all are of one algorithm, each
    has a colour of its own.

    Example:
        >>> styles = curve_styles({"fedau cutoff=5": "fedau", "fedau cutoff=50": "fedau"})
        >>> [style.colour for style in styles.values()]
        ['#000000', '#E69F00']
    """
    names = [name for name in algorithms if not is_ceiling(name)]
    others = in_registry_order(algorithms[name] for name in names)
    registry = [*ALGORITHMS, *(name for name in others if name not in ALGORITHMS)]
    one_algorithm = len(others) == 1 and len(names) > 1
    telling = {name: _telling(name, algorithms) for name in names}
    settings = list(dict.fromkeys(telling.values()))
    ceilings = [name for name in algorithms if is_ceiling(name)]
    styles = {}
    for name, algorithm in algorithms.items():
        if is_ceiling(name):
            index = ceilings.index(name)
            dash, marker = DASHES[(6 + index) % len(DASHES)], MARKERS[index % len(MARKERS)]
            styles[name] = LineStyle(CEILING_COLOUR, dash, marker)
        elif one_algorithm:
            styles[name] = line_style(names.index(name))
        elif name == algorithm:
            styles[name] = line_style(registry.index(algorithm))
        else:
            variant = settings.index(telling[name])
            colour = line_style(registry.index(algorithm)).colour
            styles[name] = LineStyle(
                colour, DASHES[variant % len(DASHES)], MARKERS[variant % len(MARKERS)]
            )
    return styles


def _telling(name: str, algorithms: Mapping[str, str]) -> str:
    """Return the words of a curve's name that tell it from others of the same algorithm."""
    others = [
        other.split()
        for other, algorithm in algorithms.items()
        if algorithm == algorithms[name] and other != name and not is_ceiling(other)
    ]
    words = [word for word in name.split() if not others or not all(word in o for o in others)]
    return " ".join(words).removeprefix(algorithms[name]).strip()


def page_styles(algorithms: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the styles of curves as the page's scripts need them; see :func:`curve_styles`."""
    names = list(ALGORITHMS)
    return {
        # The first algorithm of the registry is drawn bold.
        name: _page_style(style, names.index(name) if name in names else k + 1)
        for k, (name, style) in enumerate(curve_styles(algorithms).items())
    }


def view_styles() -> dict[str, dict[str, Any]]:
    """Return the style of each view, for a chart of one algorithm's views."""
    return {view: _page_style(line_style(k), k + 1) for k, view in enumerate(VIEWS)}


def _page_style(style: LineStyle, index: int) -> dict[str, Any]:
    """Return a style for the page's scripts; ``index`` says where a curve has its markers."""
    colour, dash, marker = style
    lengths = DASH_LENGTHS[dash] if isinstance(dash, str) else dash[1]
    return {
        "colour": colour,
        "dark": DARK_COLOURS.get(colour, colour),
        "dash": None if lengths is None else [2 * length for length in lengths],
        "marker": SYMBOLS[marker],
        "index": index,
    }
