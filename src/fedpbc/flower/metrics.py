"""Metrics from replies that may hold anything."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable

from flwr.app import MetricRecord, RecordDict

from fedpbc.errors import one_line

__all__ = ["averaged", "consistent"]

LOG = logging.getLogger("flwr.fedpbc")


def averaged(
    contents: list[RecordDict],
    weight: str,
    function: Callable[[list[RecordDict], str], MetricRecord],
) -> MetricRecord | None:
    """The metrics of the replies that can be averaged, by the app's function or Flower's."""
    usable = consistent(contents, weight)
    if len(usable) < len(contents):
        LOG.warning("the metrics of %d replies are left out", len(contents) - len(usable))
    if not usable:
        return None
    try:
        return function(usable, weight)
    except Exception as error:  # The app's own function, on what clients sent.
        LOG.warning("the metrics cannot be averaged: %s", one_line(error))
        return None


def consistent(contents: Iterable[RecordDict], weight: str) -> list[RecordDict]:
    """The replies with one record of metrics, a positive weight, and the names that most have.

    Flower's functions raise an error if one reply differs from the others.

    Example:
        >>> from flwr.app import MetricRecord
        >>> good = RecordDict({"metrics": MetricRecord({"loss": 1.0, "n": 5})})
        >>> bad = RecordDict({"metrics": MetricRecord({"loss": 1.0})})
        >>> len(consistent([good, bad, good], weight="n"))
        2
    """
    usable: list[tuple[frozenset[tuple[str, int]], RecordDict]] = []
    for content in contents:
        records = list(content.metric_records.values())
        value = records[0].get(weight) if len(records) == 1 else None
        if isinstance(value, int | float) and 0 < value < math.inf:
            lengths = {n: len(v) if isinstance(v, list) else -1 for n, v in records[0].items()}
            usable.append((frozenset(lengths.items()), content))
    if not usable:
        return []
    [(names, _)] = Counter(names for names, _ in usable).most_common(1)
    return [content for names_of_reply, content in usable if names_of_reply == names]
