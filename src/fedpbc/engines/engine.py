"""What an engine is: it takes segments on, and gives their results back when they are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from fedpbc.engines.segment import Segment, Trained

__all__ = ["LOOKAHEAD_BYTES", "Engine", "one_thread"]

LOOKAHEAD_BYTES = 2**29
"""How much of finished work may wait for its round, where an engine works ahead."""


class Engine(Protocol):
    """Where segments run.

    Segments may be submitted long before their results are needed, at most one a client at a time.
    Whatever the engine, a segment's result has the same bits however the work was split or ordered.
    """

    name: str

    def submit(self, segment: Segment) -> None:
        """Take on a segment."""

    def result(self, client: int) -> Trained:
        """Wait for the client's segment to be finished and hand it over.

        Raises DivergedError if its model is not finite, and LookupError if none was submitted.
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
