"""The resident trainer on a device: holds the model and the data, and trains while offline.

Its work is a function of the message alone: the model that the server owes the client, the rounds
since, and the seed. What it keeps on disk is how far it has got with that. So it may be killed at
any point, be asked the same twice, or even lose its disk: the answer has the same bits.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from fedpbc.deployment.protocol.messages import MessageError, Payload, TrainReply, TrainRequest
from fedpbc.deployment.server.server_loop import checksum, to_vector
from fedpbc.engines.engine import one_thread
from fedpbc.engines.segment import Segment
from fedpbc.engines.serial import train
from fedpbc.errors import FedpbcError
from fedpbc.storage.tensors import DamagedCheckpointError, load_state, save_state
from fedpbc.tasks import Task

__all__ = ["Trainer"]

LOG = logging.getLogger("fedpbc.deployment")


@dataclass(frozen=True, eq=False)
class Progress:
    """How far the work of one base has got; what a trainer keeps on disk.

    Attributes:
        job: whose work it is.
        settings: how to train.
        everyone: whether to train on when no message comes.
        segment: the model that the server owed, and the rounds since; grows while offline.
        done: how many of its rounds are done.
        model: the model after them.
        round: the last round that an answer was made for.
        asked: how many rounds were done then.
        asked_model: the model after them. The server may ask for fewer rounds than are done here:
            it was down, or its rounds took longer than this device's clock believes.
        began: when that round began, on this device's clock.
        round_seconds: how long a round takes at most.
        job_rounds: T, as far as is known.
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

    def state(self) -> dict[str, Any]:
        """For the disk."""
        return {**vars(self), "segment": vars(self.segment)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Progress:
        """From the disk."""
        return cls(**{**state, "segment": Segment(**state["segment"])})

    def towards(self, job: str, settings: str, segment: Segment) -> Progress | None:
        """What is done here of that work, or was when it was last asked for; None if nothing."""
        if not self._is_of(job, settings, segment):
            return None
        if self.done <= segment.rounds:
            return self
        if self.asked <= segment.rounds:
            return replace(self, done=self.asked, model=self.asked_model)
        return None

    def _is_of(self, job: str, settings: str, segment: Segment) -> bool:
        own, other = self.segment, segment
        return (
            (self.job, self.settings) == (job, settings)
            and (own.client, own.first_round) == (other.client, other.first_round)
            and (own.first_batch, own.scale) == (other.first_batch, other.scale)
            and same(own.start, other.start)
            and same(own.correction, other.correction)
        )

    @property
    def next_round(self) -> int:
        """The first round that is not done."""
        return self.segment.first_round + self.done


def same(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two models have the same values."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())


def steady_clock() -> Callable[[], float]:
    """The time of day as it is now, and from then on without jumps.

    A device may learn the time late, or anew: that makes no rounds pass.

    Example:
        >>> now = steady_clock()
        >>> abs(now() - time.time()) < 1
        True
    """
    # One that goes on while the device sleeps, where there is one.
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    ahead = time.time() - time.clock_gettime(clock)
    return lambda: ahead + time.clock_gettime(clock)


class Trainer:
    """One client's trainer, with its state in a folder.

    Example:
        >>> import tempfile
        >>> from fedpbc.tasks import Quadratic
        >>> task = Quadratic([[8.0], [4.0]])
        >>> trainer = Trainer(1, Path(tempfile.mkdtemp()), lambda settings: task)
        >>> trainer.handle(Payload({"kind": "hello", "job": "j"})).whole("client")
        1
    """

    def __init__(
        self,
        client: int,
        folder: Path,
        make_task: Callable[[str], Task],
        *,
        lazy: bool = False,
        now: Callable[[], float] | None = None,
    ) -> None:
        """Take up what an earlier process left, if there is anything.

        Args:
            client: which client this device is.
            folder: where its state is kept.
            make_task: makes the task from the server's settings.
            lazy: train only when asked, all rounds missed at once.
            now: the device's clock, in seconds; None: a :func:`steady_clock`.
        """
        self.client, self.folder, self.lazy = client, folder, lazy
        self._make_task, self._now = make_task, now or steady_clock()
        self._task: tuple[str, Task] | None = None
        self._lock = Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._place = folder / "trainer.safetensors"
        self.progress = self._load()

    def _load(self) -> Progress | None:
        if not self._place.exists():
            return None
        try:
            return Progress.from_state(load_state(self._place))
        except (DamagedCheckpointError, KeyError, TypeError, AttributeError) as error:
            # Nothing is lost but time: the server sends again what it owes.
            LOG.warning("begins anew: %s", error)
            return None

    def handle(self, parcel: Payload) -> Payload:
        """Answer a parcel; a FedpbcError if it cannot be answered."""
        if parcel.kind == "hello":
            return Payload({"kind": "hello", "client": self.client})
        with self._lock:
            return self._work(TrainRequest.unpack(parcel)).pack()

    def _work(self, work: TrainRequest) -> TrainReply:
        if work.client != self.client:
            raise MessageError(f"this is client {self.client}, not {work.client}")
        task = self._task_for(work.settings)
        segment = self._segment(work, task)
        progress = self.progress
        if progress is not None:
            progress = progress.towards(work.job, work.settings, segment)
        if progress is None:
            progress = Progress(
                job=work.job,
                settings=work.settings,
                everyone=work.everyone,
                segment=segment,
                done=0,
                model=segment.start,
                round=-1,
                asked=0,
                asked_model=segment.start,
                began=0.0,
                round_seconds=work.round_seconds,
                job_rounds=work.job_rounds,
            )
        caught_up = progress.done
        progress = self._trained(task, progress, segment.rounds)
        progress = replace(
            progress,
            segment=segment,
            round=work.round,
            asked=progress.done,
            asked_model=progress.model,
            began=self._now() - work.age,
            round_seconds=work.round_seconds,
            job_rounds=work.job_rounds,
        )
        # On disk before anything is sent.
        self._keep(progress)
        self._log(work, progress, caught_up)
        return TrainReply(work.job, work.round, self.client, to_vector(progress.model))

    def tick(self) -> bool:
        """Train a round that passed without a message; gives whether there was one to train.

        A round is missed when its time is over: until then its message may come, with another
        model to start from. After the job's last round there is none.
        """
        with self._lock:
            progress = self.progress
            if self.lazy or progress is None or not progress.everyone:
                return False
            if progress.next_round >= progress.job_rounds:
                return False
            over = progress.began + (progress.next_round - progress.round + 1) * (
                progress.round_seconds
            )
            if self._now() < over:
                return False
            task = self._task_for(progress.settings)
            self._keep(self._trained(task, progress, progress.done + 1))
            LOG.info("round %d trained without a link", progress.next_round)
            return True

    def _trained(self, task: Task, progress: Progress, rounds: int) -> Progress:
        """So many rounds of its segment done."""
        left = rounds - progress.done
        if not left:
            return progress
        rest = replace(
            progress.segment,
            start=progress.model,
            first_round=progress.next_round,
            rounds=left,
            first_batch=progress.segment.first_batch + progress.done * task.training.local_steps,
        )
        with one_thread():
            return replace(progress, done=rounds, model=train(task, rest).end)

    def _segment(self, work: TrainRequest, task: Task) -> Segment:
        like = task.init()
        dtype = str(like.dtype).removeprefix("torch.")

        def vector(name: str) -> Tensor:
            found = work.start if name == "start" else work.correction
            assert found is not None
            try:
                return torch.from_numpy(found.array(dtype, len(like)))
            except MessageError as error:
                raise MessageError(
                    f"the server's model is another than this device's: {error}"
                ) from None

        return Segment(
            client=work.client,
            start=vector("start"),
            first_round=work.first_round,
            rounds=work.rounds,
            first_batch=work.first_batch,
            scale=work.scale,
            correction=None if work.correction is None else vector("correction"),
        )

    def _task_for(self, settings: str) -> Task:
        if self._task is None or self._task[0] != settings:
            self._task = settings, self._make_task(settings)
        task = self._task[1]
        if not 0 <= self.client < task.clients:
            raise FedpbcError(f"this is client {self.client}, but the fleet has {task.clients}")
        return task

    def _keep(self, progress: Progress) -> None:
        save_state(self._place, progress.state())
        self.progress = progress

    def _log(self, work: TrainRequest, progress: Progress, caught_up: int) -> None:
        line = {
            "job": work.job,
            "round": work.round,
            "first_round": work.first_round,
            "trained_before": caught_up,
            "trained_now": progress.done - caught_up,
            "checksum": checksum(progress.model),
        }
        with (self.folder / "answers.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        LOG.info("round %d: %d rounds trained", work.round, progress.done - caught_up)
