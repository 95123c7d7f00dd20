"""The orchestrator's side: start contestants, run them in turn, and stop them."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.machine import Process, cores, family
from benchmarks.protocol import REPLIES

__all__ = ["ROOT", "AbsentError", "Contestant", "Running", "contestants", "peers"]

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benchmarks" / ".peers"
READY_SECONDS = 180.0
BLOCK_SECONDS = 600.0
QUIT_SECONDS = 20.0
SETTLE_SECONDS = 0.3
"""After being woken: what has waited meanwhile, such as Ray's heartbeats, is not to be timed."""
MARK = "FEDPBC_BENCH_MARK"

PEER_NAMES = ("flower", "pfl", "flgo", "blazefl", "fluke", "appfl", "fedjax")

# Where these are installed, and their options for using all cores besides the number of workers.
ALSO = {
    "pfl": ("pfl",),
    "flgo": ("flgo",),
    "blazefl": ("blazefl",),
    "blazefl-processes": ("blazefl", "--mode", "processes"),
}

# Keep Ray clusters apart, and disable telemetry and progress bars.
QUIET = {
    "RAY_ADDRESS": "local",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_TELEMETRY_ENABLED": "0",
    "TQDM_DISABLE": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class AbsentError(Exception):
    """A contestant that cannot take part, and why, in one line."""


@dataclass(frozen=True)
class Contestant:
    """How to start one.

    Attributes:
        name: in tables.
        kind: "plain", "ours", "peer" or "bound".
        command: what to run; the folder of the work is added.
        missing: why it cannot be started, if so.
    """

    name: str
    kind: str
    command: tuple[str, ...]
    missing: str = ""


def contestants(algorithm: str) -> list[Contestant]:
    """Return the contestants that support this algorithm, in the order of the tables."""
    from fedpbc import ENGINES

    python = sys.executable
    available = [Contestant("plain", "plain", (python, "-m", "benchmarks.plain"))]
    available += [engine(name) for name in ENGINES]
    return available + (peers() if algorithm == "fedavg" else [])


def engine(name: str, workers: int | None = None) -> Contestant:
    """The package with one of its engines."""
    command = [sys.executable, "-m", "benchmarks.ours", "--engine", name]
    if workers is None:
        return Contestant(name, "ours", tuple(command))
    return Contestant(f"{name}@{workers}", "ours", (*command, "--workers", str(workers)))


def peers() -> list[Contestant]:
    """The other frameworks; each has its own environment, made by ``make bench-peers``."""
    available = [_peer(name, name) for name in PEER_NAMES]
    if (count := len(cores())) > 1:
        # These also have a way to use all cores that has to be asked for.
        available += [
            _peer(f"{name}@{count}", home, "--parallel", str(count), *options)
            for name, (home, *options) in ALSO.items()
        ]
    return available


def _peer(name: str, home: str, *options: str) -> Contestant:
    stamp = PEERS / home / "installed"
    python = PEERS / home / "bin" / "python"
    missing = "" if stamp.exists() else "not installed (make bench-peers)"
    module = f"benchmarks.peers.{home}_peer"
    return Contestant(name, "peer", (str(python), "-m", module, *options), missing)


class Running:
    """A contestant's process, waiting for its turns."""

    def __init__(self, contestant: Contestant, folder: Path) -> None:
        """Start it; :meth:`ready` waits until it has warmed up."""
        if contestant.missing:
            raise AbsentError(contestant.missing)
        self.contestant = contestant
        self.about: dict[str, Any] = {}
        self.round_seconds = 0.0
        self._log = folder / f"{contestant.name}.log"
        self._mark = uuid.uuid4().hex
        self._family: set[Process] = set()
        self._ended = False
        read, write = os.pipe()
        try:
            with self._log.open("wb") as log:
                self.process = subprocess.Popen(
                    [*contestant.command, str(folder)],
                    cwd=ROOT,
                    env={**os.environ, **QUIET, MARK: self._mark, REPLIES: str(write)},
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[write],
                    # Ctrl-C reaches only us; we end it.
                    start_new_session=True,
                )
        finally:
            os.close(write)
        os.set_blocking(read, False)
        self._replies, self._unread = read, b""

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def ready(self) -> None:
        """Wait until it has prepared and warmed up."""
        answer = self._answer(READY_SECONDS)
        if "refused" in answer:
            raise AbsentError(answer["refused"])
        self.about, self.round_seconds = answer["about"], answer["round_seconds"]
        self._signal(signal.SIGSTOP)

    def go(self, rounds: int) -> dict[str, Any]:
        """Make it run this many rounds; return its answer.

        While others have their turns everything of it is stopped: waiting takes no processor time,
        but Ray, for one, looks after its cluster all the time.
        """
        self._signal(signal.SIGCONT)
        time.sleep(SETTLE_SECONDS)
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"go {rounds}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise AbsentError(self._last_line()) from None
        answer = self._answer(BLOCK_SECONDS)
        self._signal(signal.SIGSTOP)
        return answer

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes.

        Not to its group: Ray's daemons and our workers make themselves independent of that.
        """
        self._family = {*self._family, *family(self.process.pid, f"{MARK}={self._mark}")}
        for process in self._family:
            process.signal(number)

    def _answer(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if time.monotonic() > deadline:
                    raise AbsentError(f"no answer within {seconds:.0f} s: {self._last_line()}")
                # Its children may hold the pipe open after it is gone, so look at it, too.
                gone = self.process.poll() is not None
                if selector.select(timeout=0 if gone else 0.5):
                    self._unread += os.read(self._replies, 65536)
                elif gone:
                    raise AbsentError(self._last_line())
                if gone and b"\n" not in self._unread:
                    raise AbsentError(self._last_line())
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_line(self) -> str:
        """The last line that it printed."""
        text = self._log.read_text(errors="replace").strip()
        # What is kept of a measurement does not say where it was made.
        for path in (ROOT, self._log.parent, Path.home()):
            text = text.replace(str(path), "…")
        lines = text.splitlines()
        return f"it failed: {lines[-1].strip()[:200]}" if lines else "it ended without output"

    def end(self) -> None:
        """Ask it to quit, and kill what remains."""
        if self._ended:
            return
        self._ended = True
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()  # the end of its input means quit
        self._signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(QUIT_SECONDS)
        os.close(self._replies)
        self._signal(signal.SIGKILL)
        self.process.wait()
