"""Segment: the unit of local work, a pure function of its fields and the seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Segment", "SegmentNumbers", "Trained", "after_round", "all_finite"]

SegmentNumbers = tuple[int, int, int, int, float]
"""A segment without its vectors: client, first_round, rounds, first_batch and scale."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Run the local steps of these rounds from this model.

    A client that cannot reach the server continues from the model it received last, so nothing
    elsewhere can change its result. FedAvg's segments are one round long; FedPBC's run from the
    last synchronisation to the next contact.

    ``first_batch`` is the number of the client's first batch, ``scale`` is η_g, applied to each
    round's change (1 where the server applies it), and ``correction`` is added to every gradient.

    Example:
        >>> import torch
        >>> work = Segment(3, torch.zeros(2), first_round=4, rounds=3, first_batch=20)
        >>> work.last_round
        6
    """

    client: int
    start: Tensor
    first_round: int
    rounds: int
    first_batch: int
    scale: float = 1.0
    correction: Tensor | None = None

    @property
    def last_round(self) -> int:
        """The last round to train in, after which the result is needed."""
        return self.first_round + self.rounds - 1

    @property
    def numbers(self) -> SegmentNumbers:
        """The segment without its vectors, as sent to another process."""
        return self.client, self.first_round, self.rounds, self.first_batch, self.scale

    @classmethod
    def from_numbers(
        cls, numbers: SegmentNumbers, start: Tensor, correction: Tensor | None
    ) -> Segment:
        """Create from :attr:`numbers` and the vectors."""
        client, first_round, rounds, first_batch, scale = numbers
        return cls(client, start, first_round, rounds, first_batch, scale, correction)


@dataclass(frozen=True, eq=False)
class Trained:
    """A finished segment and the model at its end.

    Example:
        >>> import torch
        >>> work = Segment(0, torch.zeros(1), first_round=0, rounds=1, first_batch=0)
        >>> Trained(work, torch.ones(1)).segment.client
        0
    """

    segment: Segment
    end: Tensor


def all_finite(model: Tensor) -> bool:
    """Return whether a vector has neither infinite nor NaN values, at the cost of one sum."""
    # A finite sum has finite terms. Large finite terms may overflow: then check each.
    return math.isfinite(float(model.sum())) or bool(model.isfinite().all())


def after_round(start: Tensor, end: Tensor, scale: float) -> Tensor:
    """Return start + scale·(end − start), exactly ``end`` for a scale of 1."""
    if scale == 1:
        return end
    return (start.double() + scale * (end.double() - start.double())).to(start.dtype)
