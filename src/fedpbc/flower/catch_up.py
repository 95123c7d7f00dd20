"""The client's side: a mod that calls the app's own ``train`` for every round that is owed.

What a client owes, and since when, comes with the message: for algorithms without client state the
context only saves time. The others keep their state in Flower's context. The mod imports no torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import uuid4

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from fedpbc.algorithms import ClientResult, ClientRule, ClientWork, ServerInit, find_algorithm
from fedpbc.errors import FedpbcError
from fedpbc.flower.array_layout import ArrayLayout, BadRecordError
from fedpbc.flower.messages import (
    CORRECTION,
    INITIAL,
    PROTOCOL,
    RECEIVED,
    UPLOAD,
    Identity,
    WorkReply,
    WorkRequest,
    has_protocol,
)
from fedpbc.flower.numpy_vector import to_numpy, vector_for
from fedpbc.flower.progress import Progress
from fedpbc.flower.state_history import StateHistory
from fedpbc.text import printable

__all__ = ["START_LOSS", "catch_up_mod", "correction_of"]

START_LOSS = "start-loss"
"""The metric that holds the loss of the received model, for algorithms that need it."""

Train = Callable[[Message, Context], Message]
LOG = logging.getLogger("flwr.fedpbc")
WITHIN = "fedpbc.within"
"""The key of a record in the messages that the app's ``train`` is given."""


def catch_up_mod(message: Message, context: Context, call_next: Train) -> Message:
    """Train all rounds that are owed, from the model that came with the message.

    ``ClientApp(mods=[catch_up_mod])``: messages of other strategies pass unchanged. Mods before it
    see each message once, mods after it once for each round.
    """
    if not message.has_content() or not has_protocol(message.content):
        return call_next(message, context)
    if WITHIN in message.content:
        raise FedpbcError("catch_up_mod is there twice: write ClientApp(mods=[catch_up_mod])")
    identity = Identity.of(context.node_config)
    try:
        request = WorkRequest.read(message.content)
    except BadRecordError as error:
        return refusal(WorkReply("", 0, identity, problem=str(error), is_lasting=True), message)
    if request.is_greeting:
        greeting = WorkReply(request.job, request.round, identity)
        return Message(RecordDict({PROTOCOL: greeting.record()}), reply_to=message)
    try:
        return answered(request, identity, message, context, call_next)
    except FedpbcError as error:
        # Not an error of Flower's: the server must be able to tell it from a link that failed.
        problem = WorkReply(
            request.job, request.round, identity, "", printable(str(error), 300), True
        )
        return refusal(problem, message)


def refusal(reply: WorkReply, message: Message) -> Message:
    """The reply that says why there is no upload."""
    LOG.error("nothing is uploaded: %s", reply.problem)
    return Message(RecordDict({PROTOCOL: reply.record()}), reply_to=message)


def answered(
    request: WorkRequest, identity: Identity, message: Message, context: Context, call_next: Train
) -> Message:
    """Train as the request says."""
    if request.rule is None:
        trained = train_rounds(request, message, context, call_next, correction=None)
        if trained.error is not None:
            return trained.error
        content = RecordDict({**trained.others, request.arrays_key: trained.end})
        content[PROTOCOL] = WorkReply(request.job, request.round, identity).record()
        return Message(content, reply_to=message)
    return with_rule(request, identity, message, context, call_next)


class Correction(Mapping[str, NDArray[Any]]):
    """Arrays by name, and a note that somebody has read one."""

    reads: ClassVar[int] = 0
    """Of this process, whichever thread or copy of a message it was: a client that does not read
    runs the same app as the others."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays: dict[str, NDArray[Any]] = {n: a.numpy() for n, a in arrays.items()}

    def __getitem__(self, name: str) -> NDArray[Any]:
        array = self._arrays[name]
        Correction.reads += 1
        return array

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def correction_of(message: Message) -> Mapping[str, NDArray[Any]]:
    """What ``train`` must add to every gradient, by the names of the model's arrays.

    Empty for algorithms without a correction: ``for name, g in correction_of(msg).items(): …``
    then does nothing. A ``train`` that does not read it is refused where there is one.

    Example:
        >>> from types import SimpleNamespace
        >>> records = RecordDict({CORRECTION: ArrayRecord({"w": Array(np.ones(2))})})
        >>> correction_of(SimpleNamespace(content=records))["w"].tolist()
        [1.0, 1.0]
        >>> dict(correction_of(SimpleNamespace(content=RecordDict())))
        {}
    """
    return Correction(message.content.array_records.get(CORRECTION, {}))


@dataclass(frozen=True, eq=False)
class TrainedRounds:
    """What the app's ``train`` returned for the last of the rounds, or an error."""

    end: ArrayRecord
    others: dict[str, Any]
    first_metrics: dict[str, Any]
    error: Message | None = None


def train_rounds(
    request: WorkRequest,
    message: Message,
    context: Context,
    call_next: Train,
    correction: ArrayRecord | None,
) -> TrainedRounds:
    """Call the app's ``train`` once for each round that is owed."""
    content = message.content
    hidden = (RECEIVED, INITIAL, request.arrays_key, request.config_key)
    records = {key: record for key, record in content.items() if key not in hidden}
    records[WITHIN] = ConfigRecord()
    if correction is not None:
        records[CORRECTION] = correction
    model, config = content.array_records[request.arrays_key], content[request.config_key]
    progress, first = None, request.first_round
    if request.keeps_training and request.rule is None:
        progress = Progress(context.state, request, model)
        first, model = progress.resume()
    others: dict[str, Any] = {}
    first_metrics: dict[str, Any] | None = None
    for round in range(first, request.round + 1):
        own_config = ConfigRecord({**config, "server-round": round})
        message.content = RecordDict(
            {**records, request.arrays_key: model, request.config_key: own_config}
        )
        reads = Correction.reads
        reply = call_next(message, context)
        if reply.has_error():
            return TrainedRounds(model, {}, {}, reply)
        if correction is not None and Correction.reads == reads:
            raise FedpbcError(
                f"{request.rule and request.rule.algorithm} corrects every gradient, but train "
                "has not read the correction: in train, add correction_of(msg) of fedpbc.flower "
                f"to the gradients of {printable(', '.join(correction), 100)}"
            )
        arrays = reply.content.array_records
        if len(arrays) != 1:
            raise FedpbcError(f"train replied with {len(arrays)} ArrayRecords: it should be one")
        [end] = arrays.values()
        model = end if request.scale == 1 else scaled(model, end, request.scale)
        others = {key: record for key, record in reply.content.items() if key not in arrays}
        if first_metrics is None:
            metrics = reply.content.metric_records.values()
            first_metrics = {name: value for each in metrics for name, value in each.items()}
    if progress is not None:
        progress.save(model)
    return TrainedRounds(model, others, first_metrics or {})


def scaled(start: ArrayRecord, end: ArrayRecord, scale: float) -> ArrayRecord:
    """start + scale·(end − start)."""
    layout = ArrayLayout.of(start)
    before, after = layout.vector(start), layout.vector(end)
    trained = layout.parameters.size  # Running statistics are what they are.
    change = after[:trained].astype(np.float64) - before[:trained]
    after[:trained] = before[:trained] + scale * change
    return layout.record(after, layout.exact(end))


def with_rule(
    request: WorkRequest, identity: Identity, message: Message, context: Context, call_next: Train
) -> Message:
    """Train with the client's side of an algorithm."""
    assert request.rule is not None
    start = message.content.array_records[request.arrays_key]
    layout = ArrayLayout.of(start)
    parameters = layout.parameters.size
    x = layout.vector(start)[:parameters]
    rule = rule_of(request, x)
    received = _vectors(message, RECEIVED)
    initial = _vectors(message, INITIAL)
    kept = StateHistory(context.state, request.job)
    state = kept.get(request.rule.counted) if request.rule.counted else initial
    if state is None:
        raise FedpbcError(
            "has lost what it keeps: its node was restarted, or another run of the app is "
            "continued; the job goes on without it"
        )
    if rule.keeps and request.round < kept.last_round:
        problem = f"request of round {request.round}, but has replied to {kept.last_round}"
        return refusal(WorkReply(request.job, request.round, identity, "", problem), message)
    metrics: dict[str, Any] = {}

    def loss(model: object) -> float:
        value = metrics.get(START_LOSS)
        if not isinstance(value, int | float):
            raise FedpbcError(
                f"{request.rule and request.rule.algorithm} needs the metric {START_LOSS!r} of "
                "train: the loss of the received model on the client's samples"
            )
        return float(value)

    vector = vector_for(type(rule), x)
    wrapped = {name: vector_for(type(rule), part) for name, part in (state or {}).items()}
    work = ClientWork(
        client=max(identity.partition, 0),
        start=vector,
        received={name: vector_for(type(rule), part) for name, part in received.items()},
        state=wrapped or rule.initial_state(vector.clone()),
        first_round=request.first_round - 1,
        rates=request.rule.rates,
        local_steps=request.rule.local_steps,
        loss=loss,
    )
    correction = rule.correction(work)
    trained = train_rounds(
        request,
        message,
        context,
        call_next,
        None if correction is None else layout.parameters.record(to_numpy(correction)),
    )
    if trained.error is not None:
        return trained.error
    metrics.update(trained.first_metrics)
    end = layout.vector(trained.end)[:parameters]
    # A copy: the model is uploaded as it is.
    result = rule.finish(work, vector_for(type(rule), end.copy()))
    if "model" in rule.uploads:
        result = ClientResult({"model": vector_for(type(rule), end), **result.upload}, result.state)
    rule.check(result)
    return uploaded(request, identity, message, rule, layout, trained, result, kept)


def uploaded(
    request: WorkRequest,
    identity: Identity,
    message: Message,
    rule: ClientRule,
    layout: ArrayLayout,
    trained: TrainedRounds,
    result: ClientResult,
    kept: StateHistory,
) -> Message:
    """The reply with what a rule uploads; what it keeps goes to the context."""
    assert request.rule is not None
    token = f"{request.round}-{uuid4().hex[:12]}" if rule.keeps else ""
    content = RecordDict({**trained.others})
    if "model" in rule.uploads:
        content[request.arrays_key] = trained.end
    elif layout.others.names:
        content[request.arrays_key] = ArrayRecord({n: trained.end[n] for n in layout.others.names})
    vectors = {n: _rounded(v, layout) for n, v in result.upload.items() if n != "model"}
    if vectors:
        content[UPLOAD] = ArrayRecord({name: Array(vector) for name, vector in vectors.items()})
    if rule.keeps:
        state = {name: _rounded(vector, layout) for name, vector in result.state.items()}
        kept.put(token, request.round, request.rule.counted, state)
    content[PROTOCOL] = WorkReply(request.job, request.round, identity, token).record()
    return Message(content, reply_to=message)


def rule_of(request: WorkRequest, x: NDArray[Any]) -> ClientRule:
    """The client's side of the algorithm that the server runs."""
    assert request.rule is not None
    algorithm = find_algorithm(request.rule.algorithm)
    # Only its options matter here: a rule knows nothing of the server.
    init = ServerInit(vector_for(algorithm, x[:1]), clients=1)
    rule = algorithm(init, **request.rule.algorithm_options()).client_rule()
    if rule is None:
        raise FedpbcError(f"{algorithm.name} has no client rule here, but has one on the server")
    return rule


def _vectors(message: Message, key: str) -> dict[str, NDArray[Any]]:
    return {n: a.numpy() for n, a in message.content.array_records.get(key, {}).items()}


def _rounded(vector: Any, layout: ArrayLayout) -> NDArray[Any]:
    return np.ascontiguousarray(to_numpy(vector).astype(layout.dtype))
