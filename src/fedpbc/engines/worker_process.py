"""A worker process of the engine "pool", as the process that started it sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe

from torch import Tensor

from fedpbc.engines.segment import Segment
from fedpbc.engines.shared_memory import SharedTask, Slots
from fedpbc.interrupts import held_back

__all__ = ["PoolJob", "WorkerProcess"]


@dataclass(eq=False)
class PoolJob:
    """A submitted segment, and the slots for its result."""

    segment: Segment
    failures: int = 0
    slots: dict[str, int] = field(default_factory=dict)
    """The slots of the results, by their keys."""

    @property
    def vectors(self) -> list[Tensor]:
        """The vectors that the worker reads."""
        return list(self.segment.inputs.values())


@dataclass(eq=False)
class WorkerProcess:
    """A process, the connection to it, and the jobs that were sent to it.

    The process exits when the write end of its lifeline, a pipe, is closed: by :meth:`disconnect`,
    or by the system when this process ends in whatever way.
    """

    process: subprocess.Popen[bytes]
    connection: Connection
    lifeline: int
    jobs: list[PoolJob] = field(default_factory=list)
    ready: bool = False
    failure: str = ""
    """Why it could not start, if it said so."""

    @classmethod
    def start(cls, task: SharedTask, slots: Slots) -> WorkerProcess:
        """Start a process and send it the task and the slots."""
        connection, remote = Pipe()
        lifeline, lifeline_write = os.pipe()
        files = [remote.fileno(), lifeline, task.file, slots.file]
        # The worker finds the same modules as this process.
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)  # noqa: PTH100
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with held_back():
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fedpbc.engines.worker", *map(str, files[:2])],
                pass_fds=files,
                env=os.environ | {"PYTHONPATH": path, **threads},
                # Ctrl-C in a terminal reaches only this process.
                start_new_session=True,
            )
        remote.close()
        os.close(lifeline)
        with suppress(OSError):  # It has already ended: the reader will see that.
            connection.send((task, slots.dimension, slots.dtype, slots.count, slots.file))
        return cls(process, connection, lifeline_write)

    def disconnect(self) -> None:
        """Close the connection and the lifeline, so that the process exits."""
        self.connection.close()
        os.close(self.lifeline)

    def stop(self) -> None:
        """Wait for the process to exit after :meth:`disconnect`; kill it if it does not."""
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def exit_reason(self) -> str:
        """Wait for the process to exit, and describe how it did."""
        code = self.process.wait()
        if self.failure:
            return f"ended: {self.failure}"
        if code >= 0:
            return f"ended with exit code {code}"
        with suppress(ValueError):
            return f"was killed ({signal.Signals(-code).name})"
        return f"was killed (signal {-code})"
