"""What an engine is: it takes segments and gives their results back, in any order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from fedpbc.engine.segment import Segment, Trained

__all__ = ["Engine", "one_thread"]


class Engine(Protocol):
    """Where segments run.

    Segments may be submitted long before their results are needed. Whatever the engine, a
    segment's result has the same bits however the work was split or ordered.
    """

    name: str

    def submit(self, segment: Segment) -> None:
        """Take on a segment."""

    def next_result(self) -> Trained:
        """Wait for some submitted segment to be finished and hand it over.

        Segments that are due earlier should come earlier. Raises DivergedError for a segment whose
        model is not finite, and LookupError if nothing was submitted.
        """

    def close(self) -> None:
        """Give up what is still under way and free everything."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch use one thread: quickest for small batches, and its sums have one order."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
