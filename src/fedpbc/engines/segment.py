"""Segment: the unit of local work, a pure function of its fields and the seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedpbc.algorithms.client import ClientRule

__all__ = ["Segment", "SegmentNumbers", "Trained", "after_round", "all_finite"]

SegmentNumbers = tuple[int, int, int, int, float]
"""A segment without its vectors: client, first_round, rounds, first_batch and scale."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Run the local steps of these rounds from this model.

    A client that cannot reach the server continues from the model it received last, so nothing
    elsewhere can change its result. FedAvg's segments are one round long; FedPBC's run from the
    last synchronisation to the next contact.

    ``first_batch`` is the number of the client's first batch, and ``scale`` is η_g, applied to each
    round's change (1 where the server applies it). ``rule`` is the client's side of the algorithm,
    None for plain local steps; ``received`` and ``state`` are the vectors that it reads.

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
    rule: ClientRule | None = None
    received: Mapping[str, Tensor] = field(default_factory=dict)
    state: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def last_round(self) -> int:
        """The last round to train in, after which the result is needed."""
        return self.first_round + self.rounds - 1

    @property
    def numbers(self) -> SegmentNumbers:
        """The segment without its vectors, as sent to another process."""
        return self.client, self.first_round, self.rounds, self.first_batch, self.scale

    @property
    def inputs(self) -> dict[str, Tensor]:
        """All vectors that the work reads; their keys tell where each belongs."""
        return {
            "start": self.start,
            **{f"received {name}": vector for name, vector in self.received.items()},
            **{f"state {name}": vector for name, vector in self.state.items()},
        }

    @property
    def outputs(self) -> list[str]:
        """The keys of all vectors that the work returns, as in :attr:`Trained.vectors`."""
        if self.rule is None:
            return ["upload model"]
        kept = (f"state {name}" for name in self.rule.keeps)
        model = ["kept model"] if self.keeps_model else []
        return [*(f"upload {name}" for name in self.rule.uploads), *kept, *model]

    @property
    def keeps_model(self) -> bool:
        """Whether the client has a model after its steps that it does not upload."""
        rule = self.rule
        return rule is not None and not rule.has_own_steps and "model" not in rule.uploads

    @classmethod
    def from_parts(
        cls, numbers: SegmentNumbers, rule: ClientRule | None, inputs: Mapping[str, Tensor]
    ) -> Segment:
        """Create from :attr:`numbers`, the rule and :attr:`inputs`."""
        client, first_round, rounds, first_batch, scale = numbers
        numbered = client, inputs["start"], first_round, rounds, first_batch, scale
        return cls(*numbered, rule, part_of(inputs, "received"), part_of(inputs, "state"))


def part_of(vectors: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """The vectors of one kind, by name."""
    prefix = f"{kind} "
    return {k.removeprefix(prefix): v for k, v in vectors.items() if k.startswith(prefix)}


@dataclass(frozen=True, eq=False)
class Trained:
    """A finished segment: what the client uploads, and what it keeps if that is counted.

    ``kept_model`` is the model after plain local steps, where it is not uploaded.

    Example:
        >>> import torch
        >>> work = Segment(0, torch.zeros(1), first_round=0, rounds=1, first_batch=0)
        >>> Trained(work, {"model": torch.ones(1)}).end
        tensor([1.])
    """

    segment: Segment
    upload: Mapping[str, Tensor]
    state: Mapping[str, Tensor] = field(default_factory=dict)
    kept_model: Tensor | None = None

    @property
    def end(self) -> Tensor:
        """The model after the local steps, where it is uploaded."""
        return self.upload["model"]

    @property
    def vectors(self) -> dict[str, Tensor]:
        """All vectors, by the keys of :attr:`Segment.outputs`."""
        return {
            **{f"upload {name}": vector for name, vector in self.upload.items()},
            **{f"state {name}": vector for name, vector in self.state.items()},
            **({} if self.kept_model is None else {"kept model": self.kept_model}),
        }

    @classmethod
    def from_vectors(cls, segment: Segment, vectors: Mapping[str, Tensor]) -> Trained:
        """Create from :attr:`vectors`."""
        upload, state = part_of(vectors, "upload"), part_of(vectors, "state")
        return cls(segment, upload, state, vectors.get("kept model"))


def all_finite(model: Tensor) -> bool:
    """Return whether a vector has neither infinite nor NaN values, at the cost of one sum."""
    # A finite sum has finite terms. Large finite terms may overflow: then check each.
    return math.isfinite(float(model.sum())) or bool(model.isfinite().all())


def after_round(start: Tensor, end: Tensor, scale: float) -> Tensor:
    """Return start + scale·(end − start), exactly ``end`` for a scale of 1."""
    if scale == 1:
        return end
    return (start.double() + scale * (end.double() - start.double())).to(start.dtype)
