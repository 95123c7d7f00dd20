"""The client's side of an algorithm, as every engine runs it around the steps of a segment."""

from __future__ import annotations

from torch import Tensor

from fedpbc.algorithms.client import ClientResult, ClientWork
from fedpbc.engines.segment import Segment, Trained, after_round, all_finite
from fedpbc.errors import DivergedError, InputError
from fedpbc.tasks.task import Task, WithBatchGradients, WithClientLoss

__all__ = ["finish", "own_steps", "work_of"]


def work_of(task: Task, segment: Segment) -> ClientWork:
    """What the client knows when it trains a segment."""

    def loss(model: Tensor) -> float:
        if not isinstance(task, WithClientLoss):
            raise InputError("task", type(task).__name__, "one with client_loss(), for this rule")
        return task.client_loss(segment.client, model)

    rounds = range(segment.first_round, segment.last_round + 1)
    return ClientWork(
        client=segment.client,
        start=segment.start,
        received=segment.received,
        state=segment.state,
        first_round=segment.first_round,
        rates=tuple(task.training.rate(t) for t in rounds),
        local_steps=task.training.local_steps,
        loss=loss,
    )


def finish(segment: Segment, work: ClientWork, end: Tensor) -> Trained:
    """Finish a segment after plain local steps, which led to the model ``end``."""
    assert segment.rule is not None
    result = segment.rule.finish(work, end)
    if "model" in segment.rule.uploads:
        result = ClientResult({"model": end, **result.upload}, result.state)
    return checked(segment, result, end if segment.keeps_model else None)


def own_steps(task: Task, segment: Segment, work: ClientWork) -> Trained:
    """Run a segment whose rule takes the local steps itself."""
    assert segment.rule is not None
    if not isinstance(task, WithBatchGradients):
        raise InputError("task", type(task).__name__, "one with batch_gradient(), for this rule")

    def gradient(model: Tensor, k: int) -> Tensor:
        return task.batch_gradient(
            segment.client, model.to(segment.start.dtype), segment.first_batch + k
        )

    result = segment.rule.local_steps(work, gradient)
    if segment.scale != 1 and "model" in result.upload:
        scaled = after_round(segment.start, result.upload["model"], segment.scale)
        result = ClientResult({**result.upload, "model": scaled}, result.state)
    return checked(segment, result)


def checked(segment: Segment, result: ClientResult, kept_model: Tensor | None = None) -> Trained:
    """The result in the model's type; raises if a vector is missing or not finite."""
    assert segment.rule is not None
    segment.rule.check(result)
    dtype, size = segment.start.dtype, len(segment.start)
    parts = []
    for vectors in (result.upload, result.state):
        for name, vector in vectors.items():
            if vector.dim() != 1 or not 1 <= len(vector) <= size:
                shape = "×".join(map(str, vector.shape)) or "a number"
                raise InputError(
                    f"vector {name!r} of client {segment.client}", shape, f"1 to {size:,} values"
                )
            if not all_finite(vector):
                raise DivergedError(client=segment.client, round=segment.last_round)
        parts.append({name: vector.to(dtype) for name, vector in vectors.items()})
    upload, state = parts
    return Trained(segment, upload, state, kept_model)
