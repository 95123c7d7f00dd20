"""Which replies have metrics that can be averaged."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from flwr.app import RecordDict

__all__ = ["consistent"]


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
    return [content for found, content in usable if found == names]
