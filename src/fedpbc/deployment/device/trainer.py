"""The trainer on a device: holds the model and the data, and trains while offline.

A reply depends on the request alone: the synchronized model, the rounds since, and the seed. On
disk the trainer keeps how far it has got with that. So it may be killed at any point, get the same
request twice, or even lose its disk: the reply has the same bits.

Where the algorithm's clients keep something, a reply also depends on that, and it is on this disk
alone: see :mod:`fedpbc.deployment.device.client_state`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from fedpbc.algorithms.client import ClientRule
from fedpbc.deployment.device.client_state import (
    KeptStates,
    after_reply,
    check_order,
    fingerprint,
    state_for,
)
from fedpbc.deployment.device.trainer_state import TrainerState
from fedpbc.deployment.protocol.messages import MessageError, Payload, TrainReply, TrainRequest
from fedpbc.deployment.protocol.tensors import checksum, dtype_name, to_vectors
from fedpbc.engines.client_side import finish, own_steps, plain_result, work_of
from fedpbc.engines.engine import one_thread
from fedpbc.engines.segment import KEPT_LAYERS, Segment, Trained
from fedpbc.engines.serial import train_model
from fedpbc.errors import DivergedError, FedpbcError
from fedpbc.simulation.model_parts import ModelParts, initial_state
from fedpbc.storage.files import append_line, refuse_links
from fedpbc.storage.tensors import DamagedCheckpointError, load_state, save_state
from fedpbc.tasks import Task

__all__ = ["Trainer"]

LOG = logging.getLogger("fedpbc.deployment")


def salted(job: str, fingerprint: str) -> str:
    """A fingerprint as it is sent; that of nothing is empty.

    Example:
        >>> len(salted("job", "1f2e")), salted("job", "")
        (32, '')
    """
    if not fingerprint:
        return ""
    return sha256(f"{job}\n{fingerprint}".encode()).hexdigest()[:32]


def steady_clock() -> Callable[[], float]:
    """A clock that starts at the time of day, and does not jump when that is set."""
    # Where available, one that also counts while the device sleeps.
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    offset = time.time() - time.clock_gettime(clock)
    return lambda: offset + time.clock_gettime(clock)


class Trainer:
    """One client's trainer, with its state in a folder."""

    def __init__(
        self,
        client: int,
        folder: Path,
        make_task: Callable[[str], Task],
        make_rule: Callable[[str, Task], ClientRule | None] = lambda settings, task: None,
        *,
        app: str = "",
        lazy: bool = False,
        now: Callable[[], float] | None = None,
    ) -> None:
        """Set up a trainer, with the state of an earlier process if there is one.

        ``make_task`` builds the task from the server's settings, and ``make_rule`` the client's
        side of the algorithm. ``app`` is the fingerprint of the code that both come from. A
        ``lazy`` trainer trains only on request, all missed rounds at once. The default of
        ``now`` is a :func:`steady_clock`.
        """
        self.client, self.folder, self.lazy = client, folder, lazy
        self._make_task, self._make_rule, self._now = make_task, make_rule, now or steady_clock()
        self._work: tuple[str, Task, ClientRule | None] | None = None
        self._app, self._data = app, ""
        self._lock = Lock()
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links(folder)
        self._path = folder / "trainer.safetensors"
        self.state = self._load()

    def _load(self) -> TrainerState | None:
        if not self._path.exists():
            return None
        try:
            return TrainerState.from_disk(load_state(self._path))
        except (DamagedCheckpointError, KeyError, TypeError, ValueError, AttributeError) as error:
            # Only time is lost, since the server sends the synchronized model again; unless the
            # client keeps something, which is refused when a request refers to it.
            LOG.warning("starts from scratch: %s", error)
            return None

    def handle(self, payload: Payload) -> Payload:
        """Reply to a message; a FedpbcError if that is impossible."""
        if payload.kind == "hello":
            return Payload({"kind": "hello", "client": self.client})
        with self._lock:
            return self._train_request(TrainRequest.unpack(payload)).pack()

    def _train_request(self, request: TrainRequest) -> TrainReply:
        if request.client != self.client:
            raise MessageError(f"this is client {self.client}, not {request.client}")
        task, rule = self._work_for(request.settings)
        segment, before = _segment_of(request, task, rule), self.state
        # Work with another app or other samples is not what this one would have come to.
        progress = before if before is not None and self._made(before) else None
        kept: KeptStates = {}
        if keeps_state := bool(task.layout.kept) or (rule is not None and bool(rule.keeps)):
            if before is not None and before.job == request.job:
                check_order(request, before.round, before.request)
                kept = before.kept
            parts = ModelParts.of(task.init(), task.layout)
            initial = initial_state(rule, parts.x0, parts.kept_layers)
            segment = replace(segment, state=state_for(request, kept, initial))
        done, model, correction, trained = _run(task, request, segment, progress)
        has_own_steps = rule is not None and rule.has_own_steps
        # Steps of the rule's own cannot be continued from a model.
        rounds = 0 if has_own_steps else segment.rounds
        state = TrainerState(
            job=request.job,
            settings=request.settings,
            everyone=request.everyone and not has_own_steps,
            segment=segment,
            done=rounds,
            model=model,
            round=request.round,
            asked=rounds,
            asked_model=model,
            began=self._now() - request.age,
            round_seconds=request.round_seconds,
            job_rounds=request.job_rounds,
            app=self._app,
            data=self._data,
            start_over=request.start_over,
            correction=correction,
            layers=segment.state.get(KEPT_LAYERS),
            kept=after_reply(kept, request, trained.state) if keeps_state else {},
            request=fingerprint(request) if keeps_state else "",
        )
        # On disk before anything is sent: the new state of the client in the same file.
        self._save(state)
        self._log_reply(state, trained, trained_before=done)
        # Of this job only: nobody can tell from two jobs that a device has the same data.
        fingerprints = {
            name: salted(request.job, text)
            for name, text in (("app", self._app), ("data", self._data))
        }
        upload = to_vectors(trained.upload)
        return TrainReply(request.job, request.round, self.client, upload, **fingerprints)

    def tick(self) -> bool:
        """Train a round that passed without a request; returns whether there was one.

        A round is missed when its deadline is over: until then its request may come, with another
        model to start from. After the job's last round there is nothing to train.
        """
        with self._lock:
            state = self.state
            if self.lazy or state is None or not state.everyone:
                return False
            if state.next_round >= state.job_rounds or self._now() < state.next_deadline:
                return False
            task, rounds = self._work_for(state.settings)[0], state.done + 1
            if not self._made(state):
                return False  # The next request begins again.
            segment = replace(state.segment, rounds=rounds)
            with one_thread():
                model = _train_on(task, segment, state.done, state.model, state.correction)
            self._save(replace(state, done=rounds, model=model))
            LOG.info("round %d trained offline", state.next_round)
            return True

    def _made(self, state: TrainerState) -> bool:
        """Whether a state was made with this app and these samples."""
        return (state.app, state.data) == (self._app, self._data)

    def _work_for(self, settings: str) -> tuple[Task, ClientRule | None]:
        if self._work is None or self._work[0] != settings:
            task = self._make_task(settings)
            self._work = settings, task, self._make_rule(settings, task)
            # A task of a plugin's own may have none.
            hashed = getattr(task, "client_fingerprint", None)
            in_range = 0 <= self.client < task.clients
            self._data = str(hashed(self.client)) if hashed is not None and in_range else ""
        _, task, rule = self._work
        if not 0 <= self.client < task.clients:
            raise FedpbcError(f"this is client {self.client}, but the fleet has {task.clients}")
        return task, rule

    def _save(self, state: TrainerState) -> None:
        save_state(self._path, state.on_disk())
        self.state = state

    def _log_reply(self, state: TrainerState, trained: Trained, trained_before: int) -> None:
        trained_now = state.segment.rounds - trained_before
        line = {
            "job": state.job,
            "round": state.round,
            "first_round": state.segment.first_round,
            "trained_before": trained_before,
            "trained_now": trained_now,
            "checksum": checksum(trained.upload),
        }
        append_line(self.folder / "answers.jsonl", json.dumps(line))
        LOG.info("round %d: %d rounds trained", state.round, trained_now)


def _run(
    task: Task, request: TrainRequest, segment: Segment, before: TrainerState | None
) -> tuple[int, Tensor, Tensor | None, Trained]:
    """Train a segment, from where an earlier request or the clock has got to.

    Returns how many rounds were done before, the model after plain local steps, what was added to
    their gradients, and the result.
    """
    rule, correction = segment.rule, None
    with one_thread():
        work = None if rule is None else work_of(task, segment)
        if rule is not None and work is not None:
            if rule.has_own_steps:
                return 0, segment.full_start, None, own_steps(task, segment, work)
            correction = rule.correction(work)
        if correction is not None:
            correction = correction.to(segment.start.dtype, copy=True)
        done, model = 0, segment.full_start
        if before is not None:
            done, model = before.progress_on(request, segment, correction)
        try:
            model = _train_on(task, segment, done, model, correction)
        except DivergedError:
            if not done:
                raise
            # What it had got to is of no use, and would be the next time.
            done, model = 0, _train_on(task, segment, 0, segment.full_start, correction)
        if work is None:
            return done, model, correction, plain_result(segment, model)
        return done, model, correction, finish(segment, work, model)


def _train_on(
    task: Task, segment: Segment, done: int, model: Tensor, correction: Tensor | None
) -> Tensor:
    """Take the local steps of a segment from the model after ``done`` of its rounds."""
    if segment.rounds == done:
        return model
    sent = len(segment.start)
    layers = {KEPT_LAYERS: model[sent:]} if sent < len(model) else {}
    rest = replace(
        segment,
        start=model[:sent],
        state={**segment.state, **layers},
        first_round=segment.first_round + done,
        rounds=segment.rounds - done,
        first_batch=segment.first_batch + done * task.training.local_steps,
    )
    return train_model(task, rest, correction)


def _segment_of(request: TrainRequest, task: Task, rule: ClientRule | None) -> Segment:
    template = task.init()[: task.layout.sent]
    dtype, size = dtype_name(template), len(template)
    received = {}
    try:
        start = torch.from_numpy(request.start.array(dtype, size))
        for name, vector in request.received.items():
            received[name] = torch.from_numpy(vector.array(dtype))
            if not 1 <= len(received[name]) <= size:
                raise MessageError(f"vector of {len(received[name]):,} values, not 1 to {size:,}")
    except MessageError as error:
        raise MessageError(f"the server's model does not match this device's: {error}") from None
    return Segment(
        client=request.client,
        start=start,
        first_round=request.first_round,
        rounds=request.rounds,
        first_batch=request.first_batch,
        scale=request.scale,
        rule=rule,
        received=received,
        statistics=task.layout.sent - task.layout.trained,
    )
