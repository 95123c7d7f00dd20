"""The engine protocol: accepts segments and returns their results when they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from fedpbc.engines.segment import Segment, Trained

__all__ = ["LOOKAHEAD_BYTES", "Engine", "one_thread"]

LOOKAHEAD_BYTES = 2**29
"""Bound on the finished models that wait for their round, where an engine works ahead."""


class Engine(Protocol):
    """Where segments run.

    Segments may be submitted long before their results are needed, at most one per client at a
    time. A segment's result must have the same bits however the work is split or ordered.
    """

    name: str

    def submit(self, segment: Segment) -> None:
        """Accept a segment."""

    def result(self, client: int) -> Trained:
        """Wait for the client's segment and return its result.

        Raises DivergedError if the model is not finite, and LookupError if none was submitted.
        """

    def close(self) -> None:
        """Cancel unfinished work and free all resources."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Make PyTorch use one thread: fastest for small batches, with one order of summation."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
