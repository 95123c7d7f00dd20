"""What a trainer keeps on disk: how far it has got with a segment, and what its client keeps.

With it a later process continues where the last one stopped. Only time is lost with it, unless the
client keeps something: see :mod:`fedpbc.deployment.device.client_state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedpbc.deployment.device.client_state import KeptStates, check_states
from fedpbc.deployment.protocol.messages import TrainRequest
from fedpbc.engines.segment import KEPT_LAYERS, Segment
from fedpbc.limits import MAX_INTEGER

__all__ = ["TrainerState"]

ON_DISK = ("client", "start", "first_round", "rounds", "first_batch", "scale", "statistics")
"""The fields of a segment that are saved: what is sent along comes again, with the request."""


@dataclass(frozen=True, eq=False)
class TrainerState:
    """How far a segment has been trained. The field names are the keys on disk.

    Attributes:
        everyone: whether to train on when no request comes.
        segment: the synchronized model, and the rounds since that were last requested.
        done: how many rounds since are trained; more than requested while offline.
        model: the model after them.
        round: the round of the last reply.
        asked: how many rounds were trained for it.
        asked_model: the model after them. The server may request fewer rounds than are done: it
            was down, or its rounds took longer than this device's clock assumed.
        began: when that round began, on this device's clock.
        round_seconds: the deadline of a round.
        job_rounds: T, as of the last request.
        app: the fingerprint of the code that it was trained with.
        data: that of the samples; empty for a task that has none.
        start_over: that of the last request: work of before is not gone on with.
        correction: what the client's rule adds to every gradient of the segment.
        layers: the normalisation layers at the segment's start, if they stay on the client; then
            the models after it have them at their end.
        kept: what the client keeps, if it keeps anything.
        request: identifies the request that was last replied to, in that case.
    """

    job: str
    settings: str
    everyone: bool
    segment: Segment
    done: int
    model: Tensor
    round: int
    asked: int
    asked_model: Tensor
    began: float
    round_seconds: float
    job_rounds: int
    app: str
    data: str
    start_over: int
    correction: Tensor | None = None
    layers: Tensor | None = None
    kept: KeptStates = field(default_factory=dict)
    request: str = ""

    @classmethod
    def from_disk(cls, saved: Mapping[str, Any]) -> TrainerState:
        """Restore what :meth:`on_disk` returned; KeyError, TypeError or ValueError if damaged."""
        segment = dict(saved["segment"])
        layers = saved.get("layers")
        # An earlier version saved it there; only scaffold's were not None.
        if segment.pop("correction", None) is not None:
            raise ValueError("the state is that of an earlier version")
        kept = {} if layers is None else {KEPT_LAYERS: layers}
        state = cls(**{**saved, "segment": Segment(**segment, state=kept)})
        state.check()
        return state

    def on_disk(self) -> dict[str, Any]:
        """Return what is saved."""
        segment = {name: getattr(self.segment, name) for name in ON_DISK}
        return {**vars(self), "segment": segment}

    def check(self) -> None:
        """Raise TypeError for a state that no trainer saved."""
        segment = self.segment
        counts = (self.done, self.round, self.asked, self.job_rounds, segment.first_round)
        texts = (self.job, self.settings, self.request, self.app, self.data)
        times = (self.began, self.round_seconds)
        models = [self.model, self.asked_model, segment.full_start]
        others = [each for each in (self.correction, self.layers) if each is not None]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("the trainer's state has no job")
        if not isinstance(self.start_over, int):
            raise TypeError("the trainer's state has no start_over")
        if not all(isinstance(count, int) and 0 <= count <= MAX_INTEGER for count in counts):
            raise TypeError("the trainer's state has a wrong number of rounds")
        if not all(isinstance(t, int | float) and abs(t) <= MAX_INTEGER for t in times):
            raise TypeError("the trainer's state has a wrong time")
        if not all(isinstance(m, Tensor) and m.shape == models[0].shape for m in models):
            raise TypeError("the trainer's state has a wrong model")
        size = len(self.model)
        if not all(isinstance(v, Tensor) and v.dim() == 1 and len(v) <= size for v in others):
            raise TypeError("the trainer's state has a wrong vector")
        if self.correction is not None and len(self.correction) != segment.trained:
            raise TypeError("the trainer's state has a wrong correction")
        check_states(self.kept, size)

    def progress_on(
        self, request: TrainRequest, segment: Segment, correction: Tensor | None
    ) -> tuple[int, Tensor]:
        """How many rounds of the requested segment are done, and the model after them."""
        same_layers = equal(self.layers, segment.state.get(KEPT_LAYERS))
        if (
            self._is_same_work(request, segment)
            and equal(self.correction, correction) & same_layers
        ):
            for done, model in ((self.done, self.model), (self.asked, self.asked_model)):
                if done <= segment.rounds:
                    return done, model
        return 0, segment.full_start

    def _is_same_work(self, request: TrainRequest, segment: Segment) -> bool:
        saved = self.segment
        return (
            (self.job, self.settings, self.start_over)
            == (request.job, request.settings, request.start_over)
            and (saved.client, saved.first_round) == (segment.client, segment.first_round)
            and (saved.first_batch, saved.scale) == (segment.first_batch, segment.scale)
            and equal(saved.start, segment.start)
        )

    @property
    def next_round(self) -> int:
        """The first round that is not trained."""
        return self.segment.first_round + self.done

    @property
    def next_deadline(self) -> float:
        """When the next round is over, on this device's clock."""
        return self.began + (self.next_round - self.round + 1) * self.round_seconds


def equal(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two models have the same values."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and torch.equal(a, b)
