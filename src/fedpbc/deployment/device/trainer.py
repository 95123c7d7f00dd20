"""The trainer on a device: holds the model and the data, and trains while offline.

A reply depends on the request alone: the synchronized model, the rounds since, and the seed. On
disk the trainer keeps how far it has got with that. So it may be killed at any point, get the same
request twice, or even lose its disk: the reply has the same bits.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from fedpbc.deployment.protocol.messages import MessageError, Payload, TrainReply, TrainRequest
from fedpbc.deployment.protocol.tensors import checksum, dtype_name, to_vector
from fedpbc.engines.engine import one_thread
from fedpbc.engines.segment import Segment
from fedpbc.engines.serial import train
from fedpbc.errors import FedpbcError
from fedpbc.limits import MAX_INTEGER
from fedpbc.storage.files import append_line, refuse_links
from fedpbc.storage.tensors import DamagedCheckpointError, load_state, save_state
from fedpbc.tasks import Task

__all__ = ["Trainer"]

LOG = logging.getLogger("fedpbc.deployment")


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

    def check(self) -> None:
        """Raise TypeError for a state that no trainer saved."""
        segment = self.segment
        counts = (self.done, self.round, self.asked, self.job_rounds, segment.first_round)
        times = (self.began, self.round_seconds)
        models = (self.model, self.asked_model, segment.start)
        if not all(isinstance(text, str) for text in (self.job, self.settings)):
            raise TypeError("the trainer's state has no job")
        if not all(isinstance(count, int) and 0 <= count <= MAX_INTEGER for count in counts):
            raise TypeError("the trainer's state has a wrong number of rounds")
        if not all(isinstance(t, int | float) and abs(t) <= MAX_INTEGER for t in times):
            raise TypeError("the trainer's state has a wrong time")
        if not all(isinstance(m, Tensor) and m.shape == models[0].shape for m in models):
            raise TypeError("the trainer's state has a wrong model")

    def progress_on(self, request: TrainRequest, segment: Segment) -> tuple[int, Tensor]:
        """How many rounds of the requested segment are done, and the model after them."""
        if self._is_same_work(request, segment):
            for done, model in ((self.done, self.model), (self.asked, self.asked_model)):
                if done <= segment.rounds:
                    return done, model
        return 0, segment.start

    def _is_same_work(self, request: TrainRequest, segment: Segment) -> bool:
        mine = self.segment
        return (
            (self.job, self.settings) == (request.job, request.settings)
            and (mine.client, mine.first_round) == (segment.client, segment.first_round)
            and (mine.first_batch, mine.scale) == (segment.first_batch, segment.scale)
            and equal(mine.start, segment.start)
            and equal(mine.correction, segment.correction)
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
        *,
        lazy: bool = False,
        now: Callable[[], float] | None = None,
    ) -> None:
        """Set up a trainer, with the state of an earlier process if there is one.

        ``make_task`` builds the task from the server's settings. A ``lazy`` trainer trains only on
        request, all missed rounds at once. The default of ``now`` is a :func:`steady_clock`.
        """
        self.client, self.folder, self.lazy = client, folder, lazy
        self._make_task, self._now = make_task, now or steady_clock()
        self._task: tuple[str, Task] | None = None
        self._lock = Lock()
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links(folder)
        self._path = folder / "trainer.safetensors"
        self.state = self._load()

    def _load(self) -> TrainerState | None:
        if not self._path.exists():
            return None
        try:
            state = load_state(self._path)
            loaded = TrainerState(**{**state, "segment": Segment(**state["segment"])})
            loaded.check()
            return loaded
        except (DamagedCheckpointError, KeyError, TypeError, ValueError, AttributeError) as error:
            # Only time is lost: the server sends the synchronized model again.
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
        task = self._task_for(request.settings)
        segment = _segment_of(request, task)
        done, model = 0, segment.start
        if self.state is not None:
            done, model = self.state.progress_on(request, segment)
        model = _train_on(task, segment, done, model, segment.rounds)
        state = TrainerState(
            job=request.job,
            settings=request.settings,
            everyone=request.everyone,
            segment=segment,
            done=segment.rounds,
            model=model,
            round=request.round,
            asked=segment.rounds,
            asked_model=model,
            began=self._now() - request.age,
            round_seconds=request.round_seconds,
            job_rounds=request.job_rounds,
        )
        # On disk before anything is sent.
        self._save(state)
        self._log_reply(state, trained_before=done)
        return TrainReply(request.job, request.round, self.client, to_vector(model))

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
            task, rounds = self._task_for(state.settings), state.done + 1
            model = _train_on(task, state.segment, state.done, state.model, rounds)
            self._save(replace(state, done=rounds, model=model))
            LOG.info("round %d trained offline", state.next_round)
            return True

    def _task_for(self, settings: str) -> Task:
        if self._task is None or self._task[0] != settings:
            self._task = settings, self._make_task(settings)
        task = self._task[1]
        if not 0 <= self.client < task.clients:
            raise FedpbcError(f"this is client {self.client}, but the fleet has {task.clients}")
        return task

    def _save(self, state: TrainerState) -> None:
        save_state(self._path, {**vars(state), "segment": vars(state.segment)})
        self.state = state

    def _log_reply(self, state: TrainerState, trained_before: int) -> None:
        trained_now = state.done - trained_before
        line = {
            "job": state.job,
            "round": state.round,
            "first_round": state.segment.first_round,
            "trained_before": trained_before,
            "trained_now": trained_now,
            "checksum": checksum(state.model),
        }
        append_line(self.folder / "answers.jsonl", json.dumps(line))
        LOG.info("round %d: %d rounds trained", state.round, trained_now)


def _train_on(task: Task, segment: Segment, done: int, model: Tensor, rounds: int) -> Tensor:
    """Train a segment on from the model after ``done`` of its rounds, up to ``rounds``."""
    if rounds == done:
        return model
    rest = replace(
        segment,
        start=model,
        first_round=segment.first_round + done,
        rounds=rounds - done,
        first_batch=segment.first_batch + done * task.training.local_steps,
    )
    with one_thread():
        return train(task, rest).end


def _segment_of(request: TrainRequest, task: Task) -> Segment:
    template = task.init()
    dtype, size = dtype_name(template), len(template)
    vectors = {"start": request.start}
    if request.correction is not None:
        vectors["correction"] = request.correction
    try:
        models = {name: torch.from_numpy(v.array(dtype, size)) for name, v in vectors.items()}
    except MessageError as error:
        raise MessageError(f"the server's model does not match this device's: {error}") from None
    return Segment(
        client=request.client,
        first_round=request.first_round,
        rounds=request.rounds,
        first_batch=request.first_batch,
        scale=request.scale,
        **models,
    )
