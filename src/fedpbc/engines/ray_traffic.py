"""The bytes that a Ray cluster moves between its nodes: the data, start models and results.

Nothing here imports Ray. What is counted follows how Ray moves objects: one in the object store is
copied to a node when a segment there reads it first, and shared by the node's processes from then
on; a small result travels inside messages instead, to every segment that reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["StoredObject", "Traffic"]

INLINE_BYTES = 100 * 1024
"""Results below this are not in the object store (Ray's max_direct_call_object_size)."""


@dataclass(eq=False)
class StoredObject:
    """A vector, or the task, that segments read.

    Attributes:
        reference: Ray's reference to it.
        size: in bytes.
        nodes: the ids of the nodes that have a copy.
        result_of: the node whose segment made it; None if it was stored from here, where it stays
            whatever happens to other nodes.
    """

    reference: Any
    size: int
    nodes: set[str]
    result_of: str | None = None

    @property
    def inlined(self) -> bool:
        """Whether it travels inside messages: then no node keeps a copy."""
        return self.result_of is not None and self.size < INLINE_BYTES

    def move_to(self, node: str) -> int:
        """Have it read on a node; returns the number of bytes that are sent there."""
        if node in self.nodes and not self.inlined:
            return 0
        self.nodes.add(node)
        return self.size


@dataclass(eq=False)
class Traffic:
    """What was sent between the node of the server (``here``) and the others, in bytes.

    What a node received before it was lost, and Ray's own messages, are not in it.

    Example:
        >>> traffic = Traffic("head")
        >>> data, model = (StoredObject(None, size, {"head"}) for size in (5000, 80))
        >>> for node in ("head", "a", "a", "b"):
        ...     traffic.count_segment(7, node, data, [model], result_bytes=80)
        >>> traffic.data, traffic.out, traffic.back
        (10000, 160, 240)
    """

    here: str
    data: int = 0
    out: int = 0
    back: int = 0
    repeated: int = 0
    """Segments that were run again."""
    segments: Counter[str] = field(default_factory=Counter)
    """How many segments each node ran to the end."""
    rounds: Counter[int] = field(default_factory=Counter)
    """Bytes of models, out and back, by the round in which the result was due."""

    def count_segment(
        self,
        due: int,
        node: str,
        data: StoredObject,
        inputs: Iterable[StoredObject],
        result_bytes: int,
    ) -> None:
        """Count a segment that ended on a node, due in a round."""
        self.segments[node] += 1
        self.rounds[due] += 0
        if node == self.here:
            return
        self.data += data.move_to(node)
        out = sum(each.move_to(node) for each in inputs)
        self.out += out
        self.back += result_bytes
        self.rounds[due] += out + result_bytes

    def as_dict(self) -> dict[str, float]:
        """As in a run's summary; the mean is over all rounds from the first to the last result."""
        rounds = max(self.rounds) - min(self.rounds) + 1 if self.rounds else 0
        return {
            "segments": self.segments.total(),
            "segments_elsewhere": self.segments.total() - self.segments[self.here],
            "segments_repeated": self.repeated,
            "bytes_data": self.data,
            "bytes_out": self.out,
            "bytes_back": self.back,
            "bytes_per_round": (self.out + self.back) / rounds if rounds else 0.0,
            "bytes_largest_round": max(self.rounds.values(), default=0),
        }
