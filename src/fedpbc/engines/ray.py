"""Segments as Ray tasks: on this machine, or on an existing cluster.

Models lie in Ray's object store: a start model is placed there once, however many clients begin
from it, and a result that somebody trains on from never comes back there from this process. The
task is placed once a node. A segment that fails, or whose process or machine is gone, is run again.
"""

from __future__ import annotations

import heapq
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

from annotated_types import Ge
from torch import Tensor

from fedpbc.engines.engine import LOOKAHEAD_BYTES
from fedpbc.engines.ray_instance import Instance, check_address, need_ray
from fedpbc.engines.ray_store import (
    Failure,
    StoredVector,
    fetch_vector,
    numbers_of,
    store_task,
    store_vector,
)
from fedpbc.engines.segment import Segment, Trained
from fedpbc.errors import FedpbcError, InputError, WorkerError, one_line
from fedpbc.tasks.task import Task

if TYPE_CHECKING:
    from ray import ObjectRef

__all__ = ["RayEngine"]


@dataclass(eq=False)
class Job:
    """A segment on its way; without a reference it still waits for its turn."""

    segment: Segment
    reference: ObjectRef[Any] | None = None
    failures: int = 0


class RayEngine:
    """Runs segments as tasks of Ray, which is started, or joined, with the first of them.

    Where Ray was started before, with ``ray.init(…)``, it is used as it is and left running.

    Args:
        task: what is trained.
        workers: how many segments run at once; 0: one a core here, all that a cluster has.
        ray_address: of an existing cluster, of which this machine is a part, or «auto»; empty:
            Ray is started here, and ended with the engine.

    Example:
        >>> from fedpbc.tasks import Quadratic
        >>> task = Quadratic([[8.0], [4.0]])
        >>> engine = RayEngine(task, workers=2)  # doctest: +SKIP
        >>> for client in (0, 1):
        ...     engine.submit(Segment(client, task.init(), 0, 1, 0))  # doctest: +SKIP
        >>> engine.result(1).end  # doctest: +SKIP
        tensor([0.9049], dtype=torch.float64)
        >>> engine.close()  # doctest: +SKIP
    """

    name = "ray"

    def __init__(
        self, task: Task, *, workers: Annotated[int, Ge(0)] = 0, ray_address: str = ""
    ) -> None:
        need_ray()
        if workers < 0:
            raise InputError("workers", workers, "at least 1, or 0 for one a core")
        # Now, before anything of a run is written.
        check_address(ray_address)
        self.task = task
        self._instance = Instance(workers, ray_address)
        self._run: Callable[..., ObjectRef[Any]] | None = None
        self._forget()

    def _forget(self) -> None:
        self._run = None
        self._vectors = References()
        self._jobs: dict[int, Job] = {}
        # Jobs' clients by the round in which they are due; those that went ahead are passed over.
        self._order: list[tuple[int, int]] = []
        self._sent = 0
        # What Ray has not finished, where this engine has to count it.
        self._running: list[ObjectRef[Any]] = []

    def submit(self, segment: Segment) -> None:
        """Take on a segment; it begins as soon as Ray has a place for it."""
        if self._run is None:
            self._start(segment)
        self._jobs[segment.client] = Job(segment)
        heapq.heappush(self._order, (segment.last_round, segment.client))
        self._hand_out()

    def result(self, client: int) -> Trained:
        """Wait for the client's segment."""
        if client not in self._jobs:
            raise LookupError(f"no segment of client {client} was submitted")
        job = self._jobs[client]
        outcome = self._outcome(job)
        while isinstance(outcome, Failure) and outcome.error is None and not job.failures:
            self._prepare_again(job)
            outcome = self._outcome(job)
        del self._jobs[client]
        self._sent -= 1
        self._hand_out()
        segment = job.segment
        if isinstance(outcome, Failure):
            rounds = segment.first_round, segment.last_round
            raise outcome.error or WorkerError(client, *rounds, outcome.reason)
        end = fetch_vector(outcome)
        assert job.reference is not None
        self._vectors.remember(end, job.reference)
        return Trained(segment, end)

    def close(self) -> None:
        """Give up what is under way, and end Ray if it was started here."""
        if self._run is None:
            return
        import ray

        try:
            if ray.is_initialized():
                for job in self._jobs.values():
                    if job.reference is not None:
                        ray.cancel(job.reference)
        finally:
            self._forget()
            self._instance.leave()

    def _start(self, first: Segment) -> None:
        """Join Ray, and place the task in its object store."""
        import ray

        stored = store_task(self.task)
        self._instance.join()
        try:
            remote, key, placed = remote_work(), uuid4().hex, ray.put(stored)
        except BaseException as error:
            self._instance.leave()
            if isinstance(error, ray.exceptions.RayError):
                raise FedpbcError(f"Ray did not take the task: {one_line(error)}") from error
            raise
        self._run = lambda *arguments: remote.remote(key, placed, *arguments)
        self._limit = self._instance.limit()
        workers = self._limit or self._instance.cpus()
        self._bound = max(4 * workers, LOOKAHEAD_BYTES // max(first.start.nbytes, 1))

    def _hand_out(self) -> None:
        """Let as many begin as may, what is due first comes first."""
        while self._order and self._sent < self._bound and self._has_place():
            client = heapq.heappop(self._order)[1]
            job = self._jobs.get(client)
            if job is not None and job.reference is None:
                self._send(job)

    def _has_place(self) -> bool:
        """Whether one more may run; where Ray has no more CPUs than that, it counts itself."""
        if self._limit and len(self._running) >= self._limit:
            self._look(timeout=0)
        return not self._limit or len(self._running) < self._limit

    def _look(self, timeout: float | None = None) -> None:
        """Which are still running? Without a timeout: when one more has ended."""
        import ray

        self._running = ray.wait(self._running, timeout=timeout)[1]

    def _send(self, job: Job) -> None:
        assert self._run is not None
        segment = job.segment
        correction = segment.correction
        job.reference = self._run(
            self._vectors.of(segment.start),
            None if correction is None else self._vectors.of(correction),
            numbers_of(segment),
        )
        self._sent += 1
        if self._limit:
            self._running.append(job.reference)

    def _outcome(self, job: Job) -> StoredVector | Failure:
        """Wait for what a job gives; whatever the bound says, it is wanted now."""
        import ray

        while job.reference is None:
            if self._has_place():
                self._send(job)
            else:
                self._look()
        while self._limit and job.reference in self._running:
            # Others wait for a place that only this process can give them.
            self._look()
            self._hand_out()
        try:
            outcome: StoredVector | Failure = ray.get(job.reference)
        except ray.exceptions.RayError as error:
            return Failure(described(error))
        return outcome

    def _prepare_again(self, job: Job) -> None:
        """A job has failed: back to where it waits for its turn."""
        job.failures += 1
        job.reference = None
        self._sent -= 1
        # What it began from may have been lost with a machine: this process still has it.
        self._vectors.forget(job.segment.start)
        if job.segment.correction is not None:
            self._vectors.forget(job.segment.correction)


def remote_work() -> Any:
    """What Ray runs, as one of its remote functions."""
    import ray

    # Other machines know nothing of this process, and processes here not where its modules are.
    path = [os.path.abspath(place) for place in sys.path]  # noqa: PTH100

    def work(*arguments: Any) -> StoredVector | Failure:
        # Sent as it stands, since it is no module's own: from here on, modules can be found.
        sys.path.extend(place for place in path if place not in sys.path)
        from fedpbc.engines.ray_store import run_segment, set_up_process

        set_up_process()
        return run_segment(*arguments)

    # No tries of Ray's own: they would need what may have been dropped from the store by then.
    return ray.remote(num_cpus=1, max_retries=0, name="fedpbc segment")(work)


class References:
    """Where vectors are in the object store, for as long as somebody here has them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Tensor], ObjectRef[Any]]] = {}

    def of(self, vector: Tensor) -> ObjectRef[Any]:
        """A vector's reference; it is placed in the store if it is not there."""
        import ray

        known = self._known.get(id(vector))
        # An id may have belonged to another before.
        if known is None or known[0]() is not vector:
            self.remember(vector, ray.put(store_vector(vector)))
        return self._known[id(vector)][1]

    def remember(self, vector: Tensor, reference: ObjectRef[Any]) -> None:
        """A vector is in the store already."""
        key = id(vector)

        def gone(dead: weakref.ref[Tensor]) -> None:
            if key in self._known and self._known[key][0] is dead:
                del self._known[key]

        self._known[key] = weakref.ref(vector, gone), reference

    def forget(self, vector: Tensor) -> None:
        """Place it anew the next time."""
        self._known.pop(id(vector), None)


def described(error: Exception) -> str:
    """One line on what Ray says about a job that was not finished."""
    import ray

    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return "its process was killed, since its machine ran out of memory"
    if isinstance(error, ray.exceptions.WorkerCrashedError):
        return "its process was killed, or ended by itself"
    if isinstance(error, ray.exceptions.NodeDiedError):
        return "its machine was lost"
    return one_line(getattr(error, "cause", None) or error)
