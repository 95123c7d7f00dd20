"""Worker processes, one thread each: all cores, and no core waits at the end of a round.

Segments are handed out as soon as they are submitted, what is due first comes first. Start models
and data lie in shared memory. A thread of its own listens to the workers, so that they have work
while this process averages or evaluates. A worker that dies is replaced and its segment run again.
"""

from __future__ import annotations

import heapq
import os
import selectors
import signal
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Annotated

from annotated_types import Ge
from torch import Tensor

from fedpbc.engines.engine import LOOKAHEAD_BYTES
from fedpbc.engines.segment import Segment, Trained
from fedpbc.engines.shared_memory import Order, SharedTask, Slots, pack
from fedpbc.errors import DivergedError, FedpbcError, InputError, WorkerError, one_line
from fedpbc.parallel import usable_cores
from fedpbc.tasks.task import Task

__all__ = ["PoolEngine"]


@dataclass(eq=False)
class Job:
    """A segment on its way."""

    segment: Segment
    failures: int = 0
    slot: int = -1

    @property
    def vectors(self) -> list[Tensor]:
        """What the worker has to see."""
        segment = self.segment
        return [v for v in (segment.start, segment.correction) if v is not None]


@dataclass(eq=False)
class Worker:
    """A process, the line to it, and what it is doing."""

    process: subprocess.Popen[bytes]
    connection: Connection
    lifeline: int
    jobs: list[Job] = field(default_factory=list)
    ready: bool = False


@dataclass
class Placed:
    """A vector that jobs need, and the slot that it was copied into."""

    vector: Tensor
    jobs: int = 0
    slot: int | None = None


class PoolEngine:
    """Runs segments in processes of its own, one a core.

    Example:
        >>> from fedpbc.tasks import Quadratic
        >>> task = Quadratic([[8.0], [4.0]])
        >>> engine = PoolEngine(task, workers=1)
        >>> for client in (0, 1):
        ...     engine.submit(Segment(client, task.init(), 0, rounds=1, first_batch=0))
        >>> engine.result(1).end
        tensor([0.9049], dtype=torch.float64)
        >>> engine.close()
    """

    name = "pool"

    def __init__(self, task: Task, *, workers: Annotated[int, Ge(0)] = 0) -> None:
        if sys.platform == "win32":
            raise InputError("engine", "pool", "'serial': on Windows there is no pool")
        if workers < 0:
            raise InputError("workers", workers, "at least 1, or 0 for one a core")
        self.workers = workers or usable_cores()
        self._parcel: SharedTask = pack(task)
        model = task.init()
        # No client has more than one segment under way.
        room = min(LOOKAHEAD_BYTES // max(model.nbytes, 1), task.clients)
        self._bound = max(4 * self.workers, room)
        # Every client's start and correction, and the results under way, always find a slot.
        self._reserve = 2 * task.clients + self._bound + 4 * self.workers
        count = self._reserve + 2 * task.clients
        self._slots = Slots(len(model), model.dtype, count)
        for file in (self._parcel.file, self._slots.file):
            # An engine may be closed and used again: its memory goes with itself.
            weakref.finalize(self, os.close, file)
        # What is between this process's threads; everything below is touched with it held.
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._forget()

    def _forget(self) -> None:
        self._crew: list[Worker] = []
        self._waiting: dict[int, Job] = {}
        self._order: list[tuple[int, int]] = []
        self._placed: dict[int, Placed] = {}
        self._running = 0
        self._finished: dict[int, Trained | FedpbcError] = {}
        self._wanted: int | None = None
        self._closing = False
        self._dead_at_start = 0
        self._broken: FedpbcError | None = None

    def processes(self) -> list[int]:
        """The numbers of its processes."""
        with self._changed:
            return [worker.process.pid for worker in self._crew]

    def submit(self, segment: Segment) -> None:
        """Take on a segment; it begins as soon as a worker is free."""
        with self._changed:
            self._start()
            job = Job(segment)
            for vector in job.vectors:
                self._placed.setdefault(id(vector), Placed(vector)).jobs += 1
            self._queue(job)
            self._wake()

    def result(self, client: int) -> Trained:
        """Wait for the client's segment."""
        with self._changed:
            if client in self._waiting:
                # Whatever the bound says: it is wanted now.
                heapq.heappush(self._order, (-1, client))
                self._wake()
            elif client not in self._finished and client not in self._under_way():
                raise LookupError(f"no segment of client {client} was submitted")
            self._wanted = client
            while client not in self._finished:
                if self._broken is not None:
                    raise self._broken
                self._changed.wait()
            outcome = self._finished.pop(client)
            self._wanted = None
            if self._waiting:
                # There may be room for another one now.
                self._wake()
        if isinstance(outcome, FedpbcError):
            raise outcome
        return outcome

    def close(self) -> None:
        """End all processes and forget what was not run."""
        if self._thread is None:
            return
        with self._changed:
            self._closing = True
            self._wake()
        self._thread.join()
        self._thread = None
        os.close(self._bell)
        os.close(self._ears)
        for placed in self._placed.values():
            if placed.slot is not None:
                self._slots.give_back(placed.slot)
        self._forget()

    # From here on: with the lock held.

    def _start(self) -> None:
        if self._thread is None:
            self._bell, self._ears = os.pipe()[::-1]
            os.set_blocking(self._bell, False)
            self._selector = selectors.DefaultSelector()
            self._selector.register(self._ears, selectors.EVENT_READ)
            for _ in range(self.workers):
                self._hire()
            # A daemon: if nobody closes the engine, the program can still end.
            self._thread = threading.Thread(target=self._listen, name="fedpbc-pool", daemon=True)
            self._thread.start()

    def _hire(self) -> None:
        """Start a process and tell it what it needs."""
        ours, theirs = Pipe()
        hold, lifeline = os.pipe()[::-1]
        files = [theirs.fileno(), lifeline, self._parcel.file, self._slots.file]
        # The same modules are found there as here.
        path = os.pathsep.join(os.path.abspath(place) for place in sys.path)  # noqa: PTH100
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedpbc.engines.worker", *map(str, files[:2])],
            pass_fds=files,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            # Ctrl-C in a terminal is for this process alone.
            start_new_session=True,
        )
        theirs.close()
        os.close(lifeline)
        worker = Worker(process, ours, hold)
        self._crew.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        parcel, slots = self._parcel, self._slots
        ours.send(
            (
                (parcel.file, parcel.pickled, parcel.size),
                slots.dimension,
                slots.dtype,
                slots.count,
                slots.file,
            )
        )

    def _wake(self) -> None:
        try:
            os.write(self._bell, b"!")
        except BlockingIOError:
            return  # It has been rung often enough.

    def _under_way(self) -> set[int]:
        return {job.segment.client for worker in self._crew for job in worker.jobs}

    def _queue(self, job: Job) -> None:
        client = job.segment.client
        self._waiting[client] = job
        due = -1 if client == self._wanted else job.segment.last_round
        heapq.heappush(self._order, (due, client))

    def _listen(self) -> None:
        """The thread: hear what the workers say, and give them work."""
        try:
            while True:
                events = self._selector.select()
                with self._changed:
                    for key, _ in events:
                        if key.fileobj == self._ears:
                            os.read(self._ears, 4096)
                        else:
                            self._hear(key.data)
                    if self._closing:
                        return
                    self._hand_out()
                    if self._wanted in self._finished or self._broken is not None:
                        self._changed.notify_all()
        except BaseException as error:
            # Whoever waits for a result must hear of it, or would wait for ever.
            with self._changed:
                self._broken = FedpbcError(f"the pool broke: {one_line(error)}")
                self._changed.notify_all()
        finally:
            self._dismiss()

    def _hear(self, worker: Worker) -> None:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            self._bury(worker)
            return
        if message is None:
            worker.ready, self._dead_at_start = True, 0
            return
        client, failure = message
        job = next(job for job in worker.jobs if job.segment.client == client)
        worker.jobs.remove(job)
        self._running -= 1
        if failure is None:
            self._finish(job, Trained(job.segment, self._take_over(job)))
            return
        self._slots.give_back(job.slot)
        if isinstance(failure, DivergedError):
            self._finish(job, failure)
        else:
            self._again(job, failure)

    def _take_over(self, job: Job) -> Tensor:
        """The model in a job's slot: as it is, while there are slots to spare."""
        if len(self._slots) > self._reserve:
            return self._slots.lend(job.slot)
        model = self._slots.view(job.slot).clone()
        self._slots.give_back(job.slot)
        return model

    def _finish(self, job: Job, outcome: Trained | FedpbcError) -> None:
        self._finished[job.segment.client] = outcome
        for vector in job.vectors:
            placed = self._placed[id(vector)]
            placed.jobs -= 1
            if not placed.jobs:
                del self._placed[id(vector)]
                if placed.slot is not None:
                    self._slots.give_back(placed.slot)

    def _again(self, job: Job, reason: str) -> None:
        """Once more, or never again."""
        job.failures += 1
        if job.failures < 2:
            self._queue(job)
            return
        segment = job.segment
        self._finish(
            job, WorkerError(segment.client, segment.first_round, segment.last_round, reason)
        )

    def _bury(self, worker: Worker) -> None:
        """A process has ended: another takes its place and its work."""
        self._let_go(worker)
        code = worker.process.wait()
        how = f"was killed ({signal_name(-code)})" if code < 0 else f"ended with exit code {code}"
        if not worker.ready:
            self._dead_at_start += 1
        for position, job in enumerate(worker.jobs):
            self._running -= 1
            self._slots.give_back(job.slot)
            if position == 0:
                self._again(job, f"its process {how}")
            else:
                self._queue(job)  # It was only in line.
        if self._dead_at_start > 2 * self.workers:
            self._broken = FedpbcError(f"worker processes end before they are ready: one {how}")
        elif not self._closing:
            self._hire()

    def _let_go(self, worker: Worker) -> None:
        self._crew.remove(worker)
        self._selector.unregister(worker.connection)
        worker.connection.close()
        os.close(worker.lifeline)

    def _dismiss(self) -> None:
        """End all processes: each leaves when its lifeline is cut."""
        crew = list(self._crew)
        for worker in crew:
            self._let_go(worker)
        for worker in crew:
            try:
                worker.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            for job in worker.jobs:
                self._slots.give_back(job.slot)  # Nobody writes there any more.
        self._selector.close()

    def _hand_out(self) -> None:
        """Give work to whoever has none, what is due first comes first."""
        while self._waiting:
            # With much to do a worker has its next job already while it tells of the last one.
            depth = 2 if len(self._waiting) > 4 * self.workers else 1
            free = [w for w in self._crew if w.ready and len(w.jobs) < depth]
            if not free:
                return
            while self._order[0][1] not in self._waiting:
                heapq.heappop(self._order)
            client = self._order[0][1]
            if self._running + len(self._finished) >= self._bound and client != self._wanted:
                return
            heapq.heappop(self._order)
            self._send(min(free, key=lambda w: len(w.jobs)), self._waiting.pop(client))

    def _send(self, worker: Worker, job: Job) -> None:
        segment = job.segment
        job.slot = self._slots.take()
        correction = None if segment.correction is None else self._slot_of(segment.correction)
        worker.jobs.append(job)
        self._running += 1
        order = Order(
            segment.client,
            self._slot_of(segment.start),
            segment.first_round,
            segment.rounds,
            segment.first_batch,
            segment.scale,
            correction,
            job.slot,
        )
        try:
            worker.connection.send(order)
        except OSError:
            return  # It has just died: its silence will be heard next, and the job is on its list.

    def _slot_of(self, vector: Tensor) -> int:
        """Where a vector is in shared memory; copied there once, whoever needs it."""
        slot = self._slots.find(vector)
        if slot is not None:
            return slot
        placed = self._placed[id(vector)]
        if placed.slot is None:
            placed.slot = self._slots.take()
            self._slots.view(placed.slot).copy_(vector)
        return placed.slot


def signal_name(number: int) -> str:
    """The name of a signal.

    Example:
        >>> signal_name(9)
        'SIGKILL'
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
