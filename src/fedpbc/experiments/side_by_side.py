"""Worker processes that take tasks one after another, each over a pipe of its own.

Nothing here has a name in the system, as semaphores and queues have: whatever kills these
processes, even all at once, they leave nothing behind.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Any

from fedpbc.errors import explained, one_line
from fedpbc.interrupts import exit_quickly, held_back, interrupt_main, leave_to_parent

__all__ = ["Ended", "Work", "side_by_side"]

Work = Callable[[int, Any, Callable[[Any], None], Callable[[], bool]], Any]
"""Runs in a worker: the number of a task, the task, a function that sends a message to whoever
started it, and one that tells whether to stop. Returns the result. An order to stop also interrupts
it, as Ctrl-C would."""

STOP = "stop"
READY = "ready"
"""A worker's first message: until then it imports modules, and may be killed."""


@dataclass(frozen=True)
class Ended:
    """The end of a task: its result, or why there is none."""

    number: int
    result: Any = None
    failure: str | None = None


@dataclass
class Worker:
    """A process, the connection to it, and the number of its task."""

    process: SpawnProcess
    connection: Connection
    number: int = -1
    ready: bool = False

    def send(self, value: Any) -> None:
        """Send a task, or the order to stop or to end; a process that is gone does not hear it."""
        try:
            self.connection.send(value)
        except OSError:
            return  # Its end is noticed where its messages are read.


def side_by_side(work: Work, tasks: Sequence[Any], jobs: int) -> Generator[Any, None, None]:
    """Run tasks, ``jobs`` at a time, and yield their messages and the :class:`Ended` of each.

    If this is closed early, the work under way is told to stop, and waited for.
    """
    context = multiprocessing.get_context("spawn")
    waiting = deque(enumerate(tasks))
    workers: list[Worker] = []
    started: list[Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                # Interrupted before it is listed, a worker would never be ended.
                with held_back():
                    started.append(start(context, work))
                workers.append(started[-1])
                give_next(workers[-1], waiting)
            for connection in wait([worker.connection for worker in workers]):
                worker = next(w for w in workers if w.connection is connection)
                try:
                    message = worker.connection.recv()
                except (EOFError, OSError):
                    workers.remove(worker)
                    failure = "its process was killed; resume to run it again"
                    yield Ended(worker.number, failure=failure)
                    continue
                if message == READY:
                    worker.ready = True
                    continue
                if isinstance(message, Ended) and not give_next(worker, waiting):
                    workers.remove(worker)
                yield message
    finally:
        end_all(started)


def give_next(worker: Worker, waiting: deque[tuple[int, Any]]) -> bool:
    """Give a worker its next task; without one, it ends."""
    if not waiting:
        worker.send(None)
        return False
    worker.number, task = waiting.popleft()
    worker.send((worker.number, task))
    return True


def start(context: SpawnContext, work: Work) -> Worker:
    """Start a worker, which leaves signals to this process."""
    connection, remote = context.Pipe()
    process = context.Process(target=serve, args=(remote, work))
    with held_back():
        # Starting Python's resource tracker unblocks signals; the worker must begin without them.
        resource_tracker.ensure_running()
    with held_back(), without_main():
        process.start()
    remote.close()
    return Worker(process, connection)


@contextmanager
def without_main() -> Iterator[None]:
    """Processes started here do not import the main module: a script would run all over again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def end_all(workers: Sequence[Worker]) -> None:
    """Stop what is under way, and wait until all processes have ended."""
    for worker in workers:
        if not worker.ready:
            worker.process.kill()
            continue
        worker.send(STOP)
        worker.send(None)
    for worker in workers:
        # A process that sends while nobody reads would wait for ever.
        while worker.process.is_alive():
            for ready in wait([worker.connection, worker.process.sentinel]):
                if ready is not worker.connection:
                    break
                try:
                    worker.connection.recv()
                except (EOFError, OSError):
                    worker.process.join()
                    break
        worker.process.join()
        worker.connection.close()


def serve(connection: Connection, work: Work) -> None:
    """Work in a worker process until there is nothing more to do."""
    stop = threading.Event()
    leave_to_parent(stop)
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def read() -> None:
        while True:
            try:
                task = connection.recv()
            except Exception:
                os._exit(1)  # Whoever gave the tasks is gone.
            if task == STOP:
                stop.set()
                interrupt_main()
            else:
                tasks.put(task)

    def send(message: Any) -> None:
        # Half a message would be taken for another one.
        with held_back():
            try:
                connection.send(message)
            except OSError:
                os._exit(1)  # Whoever gave the tasks is gone.

    send(READY)
    threading.Thread(target=read, daemon=True).start()
    try:
        while (task := tasks.get()) is not None:
            number, value = task
            try:
                ended = Ended(number, work(number, value, send, stop.is_set))
            except Exception as error:
                ended = Ended(number, failure=explained(error) or one_line(error))
            send(ended)
    except KeyboardInterrupt:
        pass  # Whoever gave the tasks wants no more of them.
    if stop.is_set():
        exit_quickly(0)  # Somebody waits for that.
    leave_to_parent()
