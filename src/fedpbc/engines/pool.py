"""Worker processes with one thread each: all cores are used, and none waits for a round to end.

Segments are dispatched as soon as they are submitted, those due first before others. Start models
and data are in shared memory. A thread reads the workers' messages, so that they have work while
this process averages or evaluates. A worker that dies is replaced and its segment run again.
"""

from __future__ import annotations

import heapq
import os
import selectors
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge
from torch import Tensor

from fedpbc.algorithms.client import ClientRule
from fedpbc.engines.engine import LOOKAHEAD_BYTES
from fedpbc.engines.segment import Segment, Trained
from fedpbc.engines.shared_memory import Slots, pack, pickled_by_value
from fedpbc.engines.worker_process import PoolJob, WorkerProcess
from fedpbc.errors import DivergedError, FedpbcError, InputError, WorkerError, one_line
from fedpbc.interrupts import held_back
from fedpbc.parallel import usable_cores
from fedpbc.tasks.task import Task

__all__ = ["PoolEngine"]

SIGNAL_SECONDS = 0.1
"""How long a signal may be held back while this process waits for a worker."""


@dataclass
class SharedVector:
    """A vector that jobs read, and the slot it was copied into."""

    vector: Tensor
    jobs: int = 0
    slot: int | None = None


class PoolEngine:
    """Runs segments in worker processes, one per core."""

    name = "pool"

    def __init__(self, task: Task, *, workers: Annotated[int, Ge(0)] = 0) -> None:
        if sys.platform == "win32":
            raise InputError("engine", "pool", "'serial': the pool does not run on Windows")
        if workers < 0:
            raise InputError("workers", workers, "at least 1, or 0 for one per core")
        # A client has at most one segment under way: more processes would never have work.
        self.workers = min(workers or usable_cores(), max(task.clients, 1))
        self._clients = task.clients
        self._shared_task = pack(task)
        # A closed engine can be used again: its memory is freed with the engine itself.
        weakref.finalize(self, os.close, self._shared_task.file)
        model = task.init()
        # Layers that stay on a client have a slot of their own.
        kept = task.layout.dimension - task.layout.sent
        self._kind = max(len(model) - kept, kept), model.dtype
        lookahead = min(LOOKAHEAD_BYTES // max(model.nbytes, 1), task.clients)
        self._bound = max(4 * self.workers, lookahead)
        self._slots: Slots
        self._reserve = 0
        self._pickled_rule: tuple[ClientRule | None, bytes | None] = None, None
        # Protects everything below, which the caller and the reader thread share.
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._reset()

    def _reset(self) -> None:
        self._processes: list[WorkerProcess] = []
        self._waiting: dict[int, PoolJob] = {}
        self._queue: list[tuple[int, int]] = []  # (due round, client), a heap
        self._vectors: dict[int, SharedVector] = {}
        self._running = 0
        self._finished: dict[int, Trained | FedpbcError] = {}
        self._awaited: int | None = None
        self._closing = False
        self._failed_starts = 0
        self._broken: FedpbcError | None = None

    def processes(self) -> list[int]:
        """Return the process ids of the workers."""
        with self._condition:
            return [worker.process.pid for worker in self._processes]

    # A signal whose handler raises while the lock is taken would leave it locked forever: signals
    # are held back until the lock is released.

    def submit(self, segment: Segment) -> None:
        """Accept a segment; it begins as soon as a worker is free."""
        with held_back(), self._condition:
            self._start(segment)
            job = PoolJob(segment)
            for vector in job.vectors:
                self._vectors.setdefault(id(vector), SharedVector(vector)).jobs += 1
            self._enqueue(job)
            self._wake()

    def result(self, client: int) -> Trained:
        """Wait for the client's segment."""
        outcome = self._first_look(client)
        while outcome is None:
            outcome = self._next_look(client)
        if isinstance(outcome, FedpbcError):
            raise outcome
        return outcome

    def close(self) -> None:
        """End all processes and drop segments that were not run."""
        if self._thread is None:
            return
        with held_back():
            with self._condition:
                self._closing = True
                self._wake()
            self._thread.join()
            self._thread = None
            os.close(self._wake_write)
            os.close(self._wake_read)
            for shared in self._vectors.values():
                if shared.slot is not None:
                    self._slots.release(shared.slot)
            self._reset()

    def _first_look(self, client: int) -> Trained | FedpbcError | None:
        """Ask for a client's segment before the others; return it if it is finished."""
        with held_back(), self._condition:
            if client in self._waiting:
                # It is needed now, regardless of the look-ahead bound.
                heapq.heappush(self._queue, (-1, client))
                self._wake()
            elif client not in self._finished and client not in self._running_clients():
                raise LookupError(f"no segment of client {client} was submitted")
            self._awaited = client
            return self._take_outcome(client)

    def _next_look(self, client: int) -> Trained | FedpbcError | None:
        """Return a client's segment if it is finished within a moment."""
        with held_back(), self._condition:
            if client not in self._finished and self._broken is None:
                self._condition.wait(SIGNAL_SECONDS)
            return self._take_outcome(client)

    # All methods below are called with the lock held, except _read_messages.

    def _take_outcome(self, client: int) -> Trained | FedpbcError | None:
        if client not in self._finished:
            return self._broken
        outcome = self._finished.pop(client)
        self._awaited = None
        if self._waiting:
            # The bound may now allow another job.
            self._wake()
        return outcome

    def _start(self, first: Segment) -> None:
        if not self._reserve:
            inputs, outputs = len(first.inputs), len(first.outputs)
            # Always enough for every client's vectors, and the results under way.
            self._reserve = inputs * self._clients + outputs * (self._bound + 4 * self.workers)
            self._reserve += self._clients
            spare = outputs * self._clients + self._clients
            self._slots = Slots(*self._kind, self._reserve + spare)
            weakref.finalize(self, os.close, self._slots.file)
        if self._thread is None:
            self._wake_read, self._wake_write = os.pipe()
            os.set_blocking(self._wake_write, False)
            self._selector = selectors.DefaultSelector()
            self._selector.register(self._wake_read, selectors.EVENT_READ)
            for _ in range(self.workers):
                self._start_worker()
            # A daemon: the program can end even if the engine is never closed.
            self._thread = threading.Thread(
                target=self._read_messages, name="fedpbc-pool", daemon=True
            )
            self._thread.start()

    def _start_worker(self) -> None:
        worker = WorkerProcess.start(self._shared_task, self._slots)
        self._processes.append(worker)
        self._selector.register(worker.connection, selectors.EVENT_READ, worker)

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"!")
        except BlockingIOError:
            return  # The pipe is full: the thread will wake anyway.

    def _running_clients(self) -> set[int]:
        return {job.segment.client for worker in self._processes for job in worker.jobs}

    def _enqueue(self, job: PoolJob) -> None:
        client = job.segment.client
        self._waiting[client] = job
        due = -1 if client == self._awaited else job.segment.last_round
        heapq.heappush(self._queue, (due, client))

    def _read_messages(self) -> None:
        """Run the thread that reads the workers' messages and dispatches jobs."""
        try:
            while True:
                events = self._selector.select()
                with self._condition:
                    for key, _ in events:
                        if key.fileobj == self._wake_read:
                            os.read(self._wake_read, 4096)
                        else:
                            self._receive(key.data)
                    if self._closing:
                        return
                    self._dispatch()
                    if self._awaited in self._finished or self._broken is not None:
                        self._condition.notify_all()
        except BaseException as error:
            # Passed on to whoever waits for a result, who would otherwise wait forever.
            with self._condition:
                self._broken = FedpbcError(f"the pool broke: {one_line(error)}")
                self._condition.notify_all()
        finally:
            self._stop_workers()

    def _receive(self, worker: WorkerProcess) -> None:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            self._replace(worker)
            return
        if message is None:
            worker.ready, self._failed_starts = True, 0
            return
        if isinstance(message, str):
            worker.failure = message  # It could not start, and ends now.
            return
        client, failure, sizes = message
        job = next(job for job in worker.jobs if job.segment.client == client)
        worker.jobs.remove(job)
        self._running -= 1
        if failure is None:
            vectors = {key: self._take_result(job.slots[key], sizes[key]) for key in job.slots}
            self._finish(job, Trained.from_vectors(job.segment, vectors))
            return
        self._release(job)
        if isinstance(failure, DivergedError):
            self._finish(job, failure)
        else:
            self._retry(job, failure)

    def _take_result(self, slot: int, size: int) -> Tensor:
        """Return the vector in a slot; not copied while there are slots to spare."""
        if len(self._slots) > self._reserve:
            return self._slots.lend(slot)[:size]
        vector = self._slots.view(slot)[:size].clone()
        self._slots.release(slot)
        return vector

    def _release(self, job: PoolJob) -> None:
        """Free the slots for a result that will not come."""
        for slot in job.slots.values():
            self._slots.release(slot)
        job.slots = {}

    def _finish(self, job: PoolJob, outcome: Trained | FedpbcError) -> None:
        self._finished[job.segment.client] = outcome
        for vector in job.vectors:
            shared = self._vectors[id(vector)]
            shared.jobs -= 1
            if not shared.jobs:
                del self._vectors[id(vector)]
                if shared.slot is not None:
                    self._slots.release(shared.slot)

    def _retry(self, job: PoolJob, reason: str) -> None:
        """Run a failed job once more; the second failure is final."""
        job.failures += 1
        if job.failures < 2:
            self._enqueue(job)
            return
        segment = job.segment
        self._finish(
            job, WorkerError(segment.client, segment.first_round, segment.last_round, reason)
        )

    def _replace(self, worker: WorkerProcess) -> None:
        """Replace a process that has ended, and run its jobs again."""
        self._disconnect(worker)
        reason = worker.exit_reason()
        if not worker.ready:
            self._failed_starts += 1
        for position, job in enumerate(worker.jobs):
            self._running -= 1
            self._release(job)
            if position == 0:
                self._retry(job, f"its process {reason}")
            else:
                self._enqueue(job)  # Only the first job was running.
        if self._failed_starts > 2 * self.workers:
            self._broken = FedpbcError(f"worker processes end before they are ready: one {reason}")
        elif not self._closing:
            self._start_worker()

    def _disconnect(self, worker: WorkerProcess) -> None:
        self._processes.remove(worker)
        self._selector.unregister(worker.connection)
        worker.disconnect()

    def _stop_workers(self) -> None:
        workers = list(self._processes)
        for worker in workers:
            self._disconnect(worker)
        for worker in workers:
            worker.stop()
            for job in worker.jobs:
                self._release(job)  # No process writes there any more.
        self._selector.close()

    def _dispatch(self) -> None:
        """Send waiting jobs to free workers, those due first before others."""
        while self._waiting:
            # With many jobs a worker gets the next one while it still reports the last.
            depth = 2 if len(self._waiting) > 4 * self.workers else 1
            free = [w for w in self._processes if w.ready and len(w.jobs) < depth]
            if not free:
                return
            while self._queue[0][1] not in self._waiting:
                heapq.heappop(self._queue)
            client = self._queue[0][1]
            if self._running + len(self._finished) >= self._bound and client != self._awaited:
                return
            heapq.heappop(self._queue)
            self._send(min(free, key=lambda w: len(w.jobs)), self._waiting.pop(client))

    def _send(self, worker: WorkerProcess, job: PoolJob) -> None:
        segment = job.segment
        job.slots = {key: self._slots.take() for key in segment.outputs}
        inputs = {key: (self._slot_of(v), len(v)) for key, v in segment.inputs.items()}
        worker.jobs.append(job)
        self._running += 1
        try:
            worker.connection.send(
                (segment.numbers, self._pickled(segment.rule), inputs, job.slots)
            )
        except OSError:
            return  # It has just died: _receive will see that, and the job is on its list.

    def _pickled(self, rule: ClientRule | None) -> bytes | None:
        """The client's rule for a worker; pickled once, since all segments have the same."""
        if rule is not self._pickled_rule[0]:
            self._pickled_rule = rule, None if rule is None else pickled_by_value(rule)
        return self._pickled_rule[1]

    def _slot_of(self, vector: Tensor) -> int:
        """Return the slot of a vector in shared memory; it is copied there once for all jobs."""
        slot = self._slots.find(vector)
        if slot is not None:
            return slot
        shared = self._vectors[id(vector)]
        if shared.slot is None:
            shared.slot = self._slots.take()
            self._slots.view(shared.slot)[: len(vector)].copy_(vector)
        return shared.slot
