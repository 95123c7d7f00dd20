"""How an algorithm looks on a page: the same colour, dashes and marker as in plots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedpbc.algorithms import ALGORITHMS
from fedpbc.report.plot import look

__all__ = ["in_order", "looks_of"]

ON_DARK = {
    "#000000": "#FFFFFF",
    "#0072B2": "#4FA8E0",
    "#882255": "#D66BA0",
    "#117733": "#4CB876",
    "#D55E00": "#F0803C",
}
"""Colours that would be lost on a dark page, and what they are there."""

DASHED = {
    "-": None,
    "--": (3.7, 1.6),
    "-.": (6.4, 1.6, 1, 1.6),
    ":": (1, 1.65),
}
"""What matplotlib means by them, in widths of the line."""

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


def in_order(algorithms: Iterable[str]) -> list[str]:
    """As in the registry; those that are not known here by name, after them."""
    known = list(ALGORITHMS)
    return sorted(set(algorithms), key=lambda a: (known.index(a) if a in known else len(known), a))


def looks_of(algorithms: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colours, dashes and marker of each algorithm.

    Example:
        >>> looks_of(["fedavg"])["fedavg"]["marker"]
        'rect'
    """
    names = [*ALGORITHMS, *(name for name in in_order(algorithms) if name not in ALGORITHMS)]
    looks = {}
    for name in in_order(algorithms):
        k = names.index(name)
        colour, dash, marker = look(k)
        lengths = DASHED[dash] if isinstance(dash, str) else dash[1]
        looks[name] = {
            "colour": colour,
            "dark": ON_DARK.get(colour, colour),
            "dash": None if lengths is None else [2 * length for length in lengths],
            "marker": SYMBOLS[marker],
            "place": k,
        }
    return looks
