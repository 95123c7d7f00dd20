"""The Ray engine: segments as Ray tasks, on this machine or on an existing cluster.

Models are in Ray's object store: a start model is stored once, however many clients start from it,
and a result from which a client continues is not stored again. The task is stored once per node. A
segment that fails, or whose process or machine is lost, is run again.
"""

from __future__ import annotations

import heapq
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

from annotated_types import Ge
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fedpbc.engines.engine import LOOKAHEAD_BYTES
from fedpbc.engines.ray_instance import Instance, check_address, need_ray
from fedpbc.engines.ray_store import Failure, StoredVector, fetch_vector, store_task, store_vector
from fedpbc.engines.segment import Segment, Trained
from fedpbc.engines.shared_memory import pickled_by_value
from fedpbc.errors import FedpbcError, InputError, WorkerError, one_line
from fedpbc.tasks.task import Task

if TYPE_CHECKING:
    from ray import ObjectRef

__all__ = ["RayEngine"]


@dataclass(eq=False)
class RayJob:
    """A submitted segment; it has references once it was sent to Ray."""

    segment: Segment
    references: list[ObjectRef[Any]] = field(default_factory=list)
    """Those of its results, in the order of the segment's outputs."""
    failures: int = 0


class RayEngine:
    """Runs segments as Ray tasks; Ray is started, or joined, with the first segment.

    If Ray was already started with ``ray.init(…)``, it is used as it is and left running.
    ``workers`` is how many segments run at once; 0: one per core of this machine or of the cluster.
    ``ray_address`` is that of an existing cluster that this machine is part of, or "auto"; if it is
    empty, Ray is started on this machine, and stopped with the engine.
    """

    name = "ray"

    def __init__(
        self, task: Task, *, workers: Annotated[int, Ge(0)] = 0, ray_address: str = ""
    ) -> None:
        need_ray()
        if workers < 0:
            raise InputError("workers", workers, "at least 1, or 0 for one per core")
        # Fail now, before a run writes anything.
        check_address(ray_address)
        self.task = task
        self._instance = Instance(workers, ray_address, most=task.clients)
        self._reset()

    def _reset(self) -> None:
        self._run: Callable[..., ObjectRef[Any] | list[ObjectRef[Any]]] | None = None
        # References to vectors in the object store, for as long as the vectors exist here.
        self._stored = WeakTensorKeyDictionary()
        self._jobs: dict[int, RayJob] = {}
        # (due round, client), a heap; entries of jobs that were already sent are skipped.
        self._queue: list[tuple[int, int]] = []
        self._sent = 0
        # Unfinished tasks, tracked only where this engine limits their number.
        self._running: list[ObjectRef[Any]] = []

    def submit(self, segment: Segment) -> None:
        """Accept a segment; it begins as soon as Ray has a free CPU."""
        if self._run is None:
            self._start(segment)
        self._jobs[segment.client] = RayJob(segment)
        heapq.heappush(self._queue, (segment.last_round, segment.client))
        self._dispatch()

    def result(self, client: int) -> Trained:
        """Wait for the client's segment."""
        if client not in self._jobs:
            raise LookupError(f"no segment of client {client} was submitted")
        job = self._jobs[client]
        outcome = self._outcome(job)
        while isinstance(outcome, Failure) and outcome.error is None and not job.failures:
            self._prepare_retry(job)
            outcome = self._outcome(job)
        del self._jobs[client]
        self._sent -= 1
        self._dispatch()
        segment = job.segment
        if isinstance(outcome, Failure):
            rounds = segment.first_round, segment.last_round
            raise outcome.error or WorkerError(client, *rounds, outcome.reason)
        vectors = {}
        for key, stored, reference in zip(segment.outputs, outcome, job.references, strict=True):
            vectors[key] = fetch_vector(stored)
            self._stored[vectors[key]] = reference
        return Trained.from_vectors(segment, vectors)

    def close(self) -> None:
        """Cancel running segments, and stop Ray if this engine started it."""
        if self._run is None:
            return
        import ray

        try:
            if ray.is_initialized():
                for job in self._jobs.values():
                    if job.references:
                        ray.cancel(job.references[0])
        finally:
            self._reset()
            self._instance.leave()

    def _start(self, first: Segment) -> None:
        """Join Ray, and put the task into its object store."""
        import ray

        stored = store_task(self.task)
        self._instance.join()
        try:
            remote, key, reference = remote_function(), uuid4().hex, ray.put(stored)
        except BaseException as error:
            self._instance.leave()
            if isinstance(error, ray.exceptions.RayError):
                raise FedpbcError(f"Ray cannot store the task: {one_line(error)}") from error
            raise
        self._run = lambda count, *arguments: remote.options(num_returns=count).remote(
            key, reference, *arguments
        )
        self._limit = self._instance.limit()
        workers = self._limit or self._instance.cpus()
        self._bound = max(4 * workers, LOOKAHEAD_BYTES // max(first.start.nbytes, 1))

    def _dispatch(self) -> None:
        """Send as many jobs as allowed, those due first before others."""
        while self._queue and self._sent < self._bound and self._may_send():
            client = heapq.heappop(self._queue)[1]
            job = self._jobs.get(client)
            if job is not None and not job.references:
                self._send(job)

    def _may_send(self) -> bool:
        """Return whether one more may run; without a limit, Ray's CPUs are the limit."""
        if self._limit and len(self._running) >= self._limit:
            self._update_running(timeout=0)
        return not self._limit or len(self._running) < self._limit

    def _update_running(self, timeout: float | None = None) -> None:
        """Update the unfinished tasks; without a timeout, wait until one more has ended."""
        import ray

        self._running = ray.wait(self._running, timeout=timeout)[1]

    def _send(self, job: RayJob) -> None:
        assert self._run is not None
        segment, inputs = job.segment, job.segment.inputs
        rule = None if segment.rule is None else pickled_by_value(segment.rule)
        stored = [self._store(vector) for vector in inputs.values()]
        given = segment.numbers, rule, segment.outputs, list(inputs)
        references = self._run(len(segment.outputs), *given, *stored)
        # Ray returns a single reference by itself.
        job.references = references if isinstance(references, list) else [references]
        self._sent += 1
        if self._limit:
            self._running.append(job.references[0])

    def _store(self, vector: Tensor) -> ObjectRef[Any]:
        """Return a vector's reference; the vector is stored if it is not in the store."""
        import ray

        if vector not in self._stored:
            self._stored[vector] = ray.put(store_vector(vector))
        reference: ObjectRef[Any] = self._stored[vector]
        return reference

    def _outcome(self, job: RayJob) -> list[StoredVector] | Failure:
        """Wait for a job's result, which is needed now, regardless of the look-ahead bound."""
        import ray

        while not job.references:
            if self._may_send():
                self._send(job)
            else:
                self._update_running()
        while self._limit and job.references[0] in self._running:
            # Meanwhile, send other jobs as running ones end.
            self._update_running()
            self._dispatch()
        try:
            outcome = ray.get(job.references)
        except ray.exceptions.RayError as error:
            return Failure(describe(error))
        return outcome[0] if isinstance(outcome[0], Failure) else outcome

    def _prepare_retry(self, job: RayJob) -> None:
        """Make a failed job ready to be sent again."""
        job.failures += 1
        job.references = []
        self._sent -= 1
        # The stored vectors may have been lost with a machine: store them again.
        for vector in job.segment.inputs.values():
            if vector in self._stored:
                del self._stored[vector]


def remote_function() -> Any:
    """Return the Ray remote function that runs a segment."""
    import ray

    # Worker processes import modules from where this process does.
    path = [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100

    def work(*arguments: Any) -> Any:
        # This function is pickled by value; the modules below must be importable first.
        sys.path.extend(entry for entry in path if entry not in sys.path)
        from fedpbc.engines.ray_store import run_segment, set_up_process

        set_up_process()
        return run_segment(*arguments)

    # No retries by Ray: the arguments may have been dropped from the store by then.
    return ray.remote(num_cpus=1, max_retries=0, name="fedpbc segment")(work)


def describe(error: Exception) -> str:
    """Return one line on why Ray did not finish a job."""
    import ray

    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return "its process was killed, since its machine ran out of memory"
    if isinstance(error, ray.exceptions.WorkerCrashedError):
        return "its process was killed, or ended by itself"
    if isinstance(error, ray.exceptions.NodeDiedError):
        return "its machine was lost"
    return one_line(getattr(error, "cause", None) or error)
