"""Segment: the unit of local work, a pure function of its fields and the seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedpbc.algorithms.client import ClientRule

__all__ = [
    "KEPT_LAYERS",
    "STATISTICS",
    "Segment",
    "SegmentNumbers",
    "Trained",
    "after_round",
    "all_finite",
    "parameters_of",
]

SegmentNumbers = tuple[int, int, int, int, float, int]
"""A segment without its vectors: client, first_round, rounds, first_batch, scale, statistics."""
STATISTICS = "running statistics"
"""The name of an upload's statistics, by a rule that does not upload the model."""
KEPT_LAYERS = "normalisation layers"
"""The name of the layers that stay on a client, in its state."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Run the local steps of these rounds from this model.

    A client that cannot reach the server continues from the model it received last, so nothing
    elsewhere can change its result. FedAvg's segments are one round long; FedPBC's run from the
    last synchronisation to the next contact.

    ``first_batch`` is the number of the client's first batch, and ``scale`` is η_g, applied to each
    round's change (1 where the server applies it). ``rule`` is the client's side of the algorithm,
    None for plain local steps; ``received`` and ``state`` are the vectors that it reads.

    The last ``statistics`` values of ``start`` are running statistics: the local steps change them,
    and neither the scale nor the rule concerns them. If the state has normalisation layers, they
    are trained behind the model, and stay on the client.

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
    statistics: int = 0

    @property
    def last_round(self) -> int:
        """The last round to train in, after which the result is needed."""
        return self.first_round + self.rounds - 1

    @property
    def numbers(self) -> SegmentNumbers:
        """The segment without its vectors, as sent to another process."""
        numbers = self.client, self.first_round, self.rounds, self.first_batch
        return *numbers, self.scale, self.statistics

    @property
    def trained(self) -> int:
        """The length of the part of the model that the algorithm sees."""
        return len(self.start) - self.statistics

    @property
    def full_start(self) -> Tensor:
        """The model that the local steps start from, with the layers that stay on the client."""
        if KEPT_LAYERS not in self.state:
            return self.start
        return torch.cat([self.start, self.state[KEPT_LAYERS]])

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
        layers = [f"state {KEPT_LAYERS}"] if KEPT_LAYERS in self.state else []
        if self.rule is None:
            return ["upload model", *layers]
        kept = (f"state {name}" for name in self.rule.keeps)
        model = ["kept model"] if self.keeps_model else []
        uploads = [f"upload {name}" for name in self.rule.uploads]
        uploads += [f"upload {STATISTICS}"] if self.uploads_statistics else []
        return [*uploads, *kept, *layers, *model]

    @property
    def uploads_statistics(self) -> bool:
        """Whether the statistics are uploaded by themselves, since the model is not."""
        rule = self.rule
        return bool(self.statistics) and rule is not None and "model" not in rule.uploads

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
        client, first_round, rounds, first_batch, scale, statistics = numbers
        numbered = client, inputs["start"], first_round, rounds, first_batch, scale
        parts = part_of(inputs, "received"), part_of(inputs, "state")
        return cls(*numbered, rule, *parts, statistics)


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


def parameters_of(model: Tensor, statistics: int) -> Tensor:
    """The part of a model that the algorithm sees: all but the statistics at its end."""
    # The same object where there are none: tensors are shared, and counted, by their identity.
    return model[:-statistics] if statistics else model


def all_finite(model: Tensor) -> bool:
    """Return whether a vector has neither infinite nor NaN values, at the cost of one sum."""
    # A finite sum has finite terms. Large finite terms may overflow: then check each.
    return math.isfinite(float(model.sum())) or bool(model.isfinite().all())


def after_round(start: Tensor, end: Tensor, scale: float, trained: int | None = None) -> Tensor:
    """Return start + scale·(end − start), exactly ``end`` for a scale of 1.

    Only the first ``trained`` values are scaled, if it is given.
    """
    if scale == 1:
        return end
    if trained is not None and trained < len(start):
        scaled = after_round(start[:trained], end[:trained], scale)
        return torch.cat([scaled, end[trained:]])
    return (start.double() + scale * (end.double() - start.double())).to(start.dtype)
