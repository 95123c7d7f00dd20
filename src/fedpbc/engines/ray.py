"""The Ray engine: segments as Ray tasks, on this machine or on an existing cluster.

Models are in Ray's object store: a start model is stored once, however many clients start from it,
and a result from which a client continues is not stored again. The task is stored once per node. A
segment that fails, or whose process is lost, is run once more; one that is lost with its node is
run again while there are nodes.
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
from fedpbc.engines.ray_nodes import ClusterNodes
from fedpbc.engines.ray_store import Failure, StoredVector, fetch_vector, store_task, store_vector
from fedpbc.engines.ray_traffic import StoredObject, Traffic
from fedpbc.engines.segment import Segment, Trained
from fedpbc.engines.shared_memory import pickled_by_value
from fedpbc.errors import FedpbcError, InputError, NoNodeError, WorkerError, one_line
from fedpbc.tasks.task import Task

if TYPE_CHECKING:
    from ray import ObjectRef

__all__ = ["RayEngine"]

WAIT_SECONDS = 2.0
"""How often the nodes are looked at while a result is awaited."""
MAX_LOSSES = 5
"""How often a segment may be lost with its node: it may be what brings the nodes down."""


@dataclass(eq=False)
class RayJob:
    """A submitted segment; it has references once it was sent to Ray."""

    segment: Segment
    references: list[ObjectRef[Any]] = field(default_factory=list)
    """Those of the id of its node, and of its results in the order of the segment's outputs."""
    inputs: list[StoredObject] = field(default_factory=list)
    failures: int = 0
    losses: int = 0
    """How often it was lost with its node."""


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
        self._run: Callable[..., list[ObjectRef[Any]]] | None = None
        # Vectors in the object store (StoredObject), for as long as the vectors exist here.
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
        while isinstance(outcome, Failure) and self._may_repeat(job, outcome):
            self._prepare_retry(job, outcome)
            outcome = self._outcome(job)
        del self._jobs[client]
        self._sent -= 1
        self._dispatch()
        segment = job.segment
        if isinstance(outcome, Failure):
            rounds = segment.first_round, segment.last_round
            raise outcome.error or WorkerError(client, *rounds, outcome.reason)
        node, results = outcome
        vectors = dict(zip(segment.outputs, map(fetch_vector, results), strict=True))
        for vector, reference in zip(vectors.values(), job.references[1:], strict=True):
            copies = {node, self._nodes.here}
            self._stored[vector] = StoredObject(reference, vector.nbytes, copies, node)
        result_bytes = sum(vector.nbytes for vector in vectors.values())
        self._traffic.count_segment(
            segment.last_round, node, self._stored_task, job.inputs, result_bytes
        )
        return Trained.from_vectors(segment, vectors)

    def cluster_summary(self) -> dict[str, float] | None:
        """What was moved between the nodes, and which came and went; None on a single node.

        Only before :meth:`close`.
        """
        if self._run is None:
            return None
        self._nodes.refresh(max_age=0)
        if self._nodes.count < 2:
            return None
        nodes = self._nodes
        counts = {"nodes": nodes.count, "nodes_joined": nodes.joined, "nodes_lost": nodes.lost}
        return counts | self._traffic.as_dict()

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
            self._nodes = ClusterNodes()
            remote, key, reference = remote_function(), uuid4().hex, ray.put(stored)
        except BaseException as error:
            self._instance.leave()
            if isinstance(error, ray.exceptions.RayError):
                raise FedpbcError(f"Ray cannot store the task: {one_line(error)}") from error
            raise
        here = self._nodes.here
        self._stored_task = StoredObject(reference, stored[0].nbytes, {here})
        self._traffic = Traffic(here)
        # The id of the node is returned along with the vectors.
        self._run = lambda outputs, *arguments: remote.options(num_returns=1 + outputs).remote(
            key, reference, *arguments
        )
        self._limit = self._instance.limit(self._nodes.cpus())
        self._model_bytes = max(first.start.nbytes, 1)

    def _bound(self) -> int:
        """How many segments may be running or finished; more when nodes are added."""
        workers = self._limit or self._nodes.cpus()
        return max(4 * workers, LOOKAHEAD_BYTES // self._model_bytes)

    def _dispatch(self) -> None:
        """Send as many jobs as allowed, those due first before others."""
        while self._queue and self._sent < self._bound() and self._may_send():
            client = heapq.heappop(self._queue)[1]
            job = self._jobs.get(client)
            if job is not None and not job.references:
                self._send(job)

    def _may_send(self) -> bool:
        """Return whether one more may run; without a limit, Ray's CPUs are the limit."""
        import ray

        if self._limit and len(self._running) >= self._limit:
            self._running = ray.wait(self._running, timeout=0, fetch_local=False)[1]
        return not self._limit or len(self._running) < self._limit

    def _send(self, job: RayJob) -> None:
        assert self._run is not None
        segment, inputs = job.segment, job.segment.inputs
        rule = None if segment.rule is None else pickled_by_value(segment.rule)
        job.inputs = [self._store(vector) for vector in inputs.values()]
        given = segment.numbers, rule, segment.outputs, list(inputs)
        stored = (each.reference for each in job.inputs)
        job.references = self._run(len(segment.outputs), *given, *stored)
        self._sent += 1
        if self._limit:
            self._running.append(job.references[0])

    def _store(self, vector: Tensor) -> StoredObject:
        """Return a vector in the store; it is put there if it is not."""
        import ray

        if vector not in self._stored:
            reference = ray.put(store_vector(vector))
            self._stored[vector] = StoredObject(reference, vector.nbytes, {self._nodes.here})
        stored: StoredObject = self._stored[vector]
        return stored

    def _outcome(self, job: RayJob) -> tuple[str, list[StoredVector]] | Failure:
        """Wait for a job's result, which is needed now, regardless of the look-ahead bound."""
        import ray

        while not job.references:
            if self._may_send():
                self._send(job)
            else:
                self._wait(self._running, job)
        while not self._wait([job.references[0]], job):
            # Meanwhile, send other jobs as running ones end.
            self._dispatch()
        try:
            node, *results = ray.get(job.references)
        except ray.exceptions.RayError as error:
            return Failure(describe(error), lost=was_lost(error))
        return results[0] if isinstance(results[0], Failure) else (node, results)

    def _wait(self, references: list[ObjectRef[Any]], job: RayJob) -> bool:
        """Wait until one of these has ended, or a moment; raises if there is no node left."""
        import ray

        # Where this engine limits what runs, every task that ends makes room for another.
        watched = list(dict.fromkeys([*references, *self._running]))
        ready = ray.wait(watched, timeout=WAIT_SECONDS, fetch_local=False)[0]
        if reason := self._nodes.missing():
            segment = job.segment
            raise NoNodeError(segment.client, segment.first_round, segment.last_round, reason)
        self._running = [each for each in self._running if each not in ready]
        return any(each in ready for each in references)

    def _may_repeat(self, job: RayJob, failure: Failure) -> bool:
        """Whether to run a failed job again: once, but not for what nodes are to blame for."""
        if failure.lost:
            return job.losses < MAX_LOSSES
        return failure.error is None and not job.failures

    def _prepare_retry(self, job: RayJob, failure: Failure) -> None:
        """Make a failed job ready to be sent again."""
        if failure.lost:
            job.losses += 1
        else:
            job.failures += 1
        self._withdraw(job, trust_store=failure.lost)
        if failure.lost:
            self._repeat_others()

    def _withdraw(self, job: RayJob, *, trust_store: bool) -> None:
        """Take a job back from Ray, to be sent again."""
        job.references = []
        self._sent -= 1
        self._traffic.repeated += 1
        for vector in job.segment.inputs.values():
            if vector not in self._stored:
                continue
            # What other nodes made may be lost with one of them: it is stored again from here, once
            # for all jobs that read it. What was stored from here is lost only with this process.
            if self._stored[vector].result_of is not None or not trust_store:
                del self._stored[vector]

    def _repeat_others(self) -> None:
        """Send again whatever else was lost with a node, not one by one as it is needed."""
        self._nodes.refresh(max_age=0)
        for client, job in self._jobs.items():
            if job.references and job.losses < MAX_LOSSES and self._is_lost(job):
                job.losses += 1
                self._withdraw(job, trust_store=True)
                heapq.heappush(self._queue, (job.segment.last_round, client))
        self._dispatch()

    def _is_lost(self, job: RayJob) -> bool:
        """Whether a job that was sent is known to be lost; one that is still running is not."""
        import ray

        report, *_ = job.references
        if not ray.wait([report], timeout=0, fetch_local=False)[0]:
            return False
        try:
            # The results of a job that has ended are on its node, until they are needed here.
            return not self._nodes.has(ray.get(report))
        except ray.exceptions.RayError as error:
            return was_lost(error)


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
        return ray.get_runtime_context().get_node_id(), *run_segment(*arguments)

    # No retries by Ray: the arguments may have been dropped from the store by then.
    return ray.remote(num_cpus=1, max_retries=0, name="fedpbc segment")(work)


def was_lost(error: Exception) -> bool:
    """Whether a job, its result or what it reads was lost with a node."""
    import ray

    losses = ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError
    return isinstance(error, losses) or isinstance(getattr(error, "cause", None), losses)


def describe(error: Exception) -> str:
    """Return one line on why Ray did not finish a job."""
    import ray

    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return "its process was killed, since its machine ran out of memory"
    if isinstance(error, ray.exceptions.WorkerCrashedError):
        return "its process was killed, or ended by itself"
    if was_lost(error):
        return f"it was lost with its node, {1 + MAX_LOSSES} times"
    return one_line(getattr(error, "cause", None) or error)
