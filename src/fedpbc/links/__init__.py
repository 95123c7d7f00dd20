"""Link schemes: whose uplink is up in which round.

A link scheme sees a seed and sizes, never a model, so the whole :class:`Timetable` is drawn before
training starts. To add a scheme, decorate a generator function with :func:`link_scheme`.
"""

from __future__ import annotations

# Importing a scheme's module registers it.
from fedpbc.links import (  # noqa: F401
    always,
    bernoulli,
    bernoulli_varying,
    by_volume,
    cyclic,
    cyclic_reset,
    group,
    interleaved_sine,
    label_cyclic,
    markov,
    markov_varying,
    staircase,
    table,
    trace,
)
from fedpbc.links.probabilities import class_rates, from_data, varying
from fedpbc.links.scheme import SCHEMES, LinkScheme, Row, Setting, find_scheme, link_scheme
from fedpbc.links.timetable import Timetable, from_table

__all__ = [
    "SCHEMES",
    "LinkScheme",
    "Row",
    "Setting",
    "Timetable",
    "class_rates",
    "find_scheme",
    "from_data",
    "from_table",
    "link_scheme",
    "varying",
]
