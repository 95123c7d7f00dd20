"""The client's side of an algorithm, as every engine runs it around the steps of a segment."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedpbc.algorithms.client import ClientResult, ClientWork
from fedpbc.engines.segment import (
    KEPT_LAYERS,
    STATISTICS,
    Segment,
    Trained,
    after_round,
    all_finite,
    parameters_of,
)
from fedpbc.errors import DivergedError, InputError
from fedpbc.tasks.task import Task, WithBatchGradients, WithClientLoss, WithStatistics

__all__ = ["finish", "own_steps", "plain_result", "work_of"]


def work_of(task: Task, segment: Segment) -> ClientWork:
    """What the client knows when it trains a segment."""

    def loss(model: Tensor) -> float:
        if not isinstance(task, WithClientLoss):
            raise InputError("task", type(task).__name__, "one with client_loss(), for this rule")
        rest = segment.full_start[segment.trained :]
        return task.client_loss(segment.client, torch.cat([model, rest]) if len(rest) else model)

    rounds, training = range(segment.first_round, segment.last_round + 1), task.training
    return ClientWork(
        client=segment.client,
        start=parameters_of(segment.start, segment.statistics),
        received=segment.received,
        state=segment.state,
        first_round=segment.first_round,
        rates=tuple(training.rate(t) for t in rounds),
        local_steps=training.local_steps,
        loss=loss,
        step_sum_of=training.step_sum,
    )


def sent_part(segment: Segment, end: Tensor) -> Tensor:
    """A model after local steps without the layers that stay on the client."""
    return end if len(end) == len(segment.start) else end[: len(segment.start)].clone()


def kept_layers(segment: Segment, end: Tensor) -> dict[str, Tensor]:
    """The layers that stay on the client, after local steps."""
    if KEPT_LAYERS not in segment.state:
        return {}
    return {KEPT_LAYERS: end[len(segment.start) :].clone()}


def plain_result(segment: Segment, end: Tensor) -> Trained:
    """The result of a segment without a rule, whose local steps led to the model ``end``."""
    return Trained(segment, {"model": sent_part(segment, end)}, kept_layers(segment, end))


def finish(segment: Segment, work: ClientWork, end: Tensor) -> Trained:
    """Finish a segment after plain local steps, which led to the model ``end``."""
    assert segment.rule is not None
    model = sent_part(segment, end)
    # A copy, as all that a rule gets: it may change it in place, but the model is uploaded.
    result = own(segment.rule.finish(work, parameters_of(model, segment.statistics).clone()))
    if "model" in segment.rule.uploads:
        result = ClientResult({"model": model, **result.upload}, result.state)
    trained = checked(segment, result, model if segment.keeps_model else None)
    return _with_statistics(trained, model[segment.trained :], kept_layers(segment, end))


def own(result: ClientResult) -> ClientResult:
    """Copies of what a rule returns, which may be a buffer that it uses again."""
    upload, state = (
        {name: vector.clone() for name, vector in vectors.items()}
        for vectors in (result.upload, result.state)
    )
    return ClientResult(upload, state)


def _with_statistics(
    trained: Trained, statistics: Tensor, layers: Mapping[str, Tensor] | None = None
) -> Trained:
    """The result of a rule with what the rule does not see."""
    segment, upload = trained.segment, dict(trained.upload)
    if segment.uploads_statistics:
        if not all_finite(statistics):
            raise DivergedError(client=segment.client, round=segment.last_round)
        upload[STATISTICS] = statistics.clone()
    return Trained(segment, upload, {**trained.state, **(layers or {})}, trained.kept_model)


def own_steps(task: Task, segment: Segment, work: ClientWork) -> Trained:
    """Run a segment whose rule takes the local steps itself."""
    assert segment.rule is not None
    if not isinstance(task, WithBatchGradients):
        raise InputError("task", type(task).__name__, "one with batch_gradient(), for this rule")

    statistics = segment.start[segment.trained :]

    def gradient(model: Tensor, k: int) -> Tensor:
        nonlocal statistics
        batch, vector = segment.first_batch + k, model.to(segment.start.dtype)
        if not segment.statistics:
            result = task.batch_gradient(segment.client, vector, batch)
            # A task from outside may return a tensor of its own.
            return result if type(task).__module__.startswith("fedpbc.") else result.clone()
        assert isinstance(task, WithStatistics)
        full = torch.cat([vector, statistics])
        result, statistics = task.gradient_and_statistics(segment.client, full, batch)
        return result

    result = own(segment.rule.local_steps(work, gradient))
    if segment.scale != 1 and "model" in result.upload:
        scaled = after_round(work.start, result.upload["model"], segment.scale)
        result = ClientResult({**result.upload, "model": scaled}, result.state)
    if segment.statistics and "model" in result.upload:
        full = torch.cat([result.upload["model"].to(segment.start.dtype), statistics])
        result = ClientResult({**result.upload, "model": full}, result.state)
    return _with_statistics(checked(segment, result), statistics)


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
