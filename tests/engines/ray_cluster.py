"""A Ray cluster of several nodes on this machine, started as one would by hand, for tests."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedpbc.engines import ray_probe
from tests.processes import PATIENCE, child, wait_until

STORE_BYTES = 80 * 2**20
STARTED = "Ray runtime started"


@dataclass
class LocalCluster:
    """A head without CPUs, which runs nothing, and nodes with one CPU that come and go."""

    folder: Path
    address: str
    environment: dict[str, str]
    stack: ExitStack
    nodes: list[subprocess.Popen[str]] = field(default_factory=list)
    logs: dict[subprocess.Popen[str], Path] = field(default_factory=dict)

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start a node; it is stopped with the cluster."""
        command = [Path(sys.executable).with_name("ray"), "start", "--block", *options]
        command += [f"--object-store-memory={STORE_BYTES}", "--disable-usage-stats"]
        log = self.stack.enter_context((self.folder / f"log{len(self.logs)}").open("w"))
        process = self.stack.enter_context(
            child(command, stdout=log, stderr=log, env=os.environ | self.environment)
        )
        self.stack.callback(kill, process)
        self.logs[process] = Path(log.name)
        return process

    def lose_head(self) -> None:
        """Kill the head, as a run on another node sees it.

        Its raylet lives on: on one machine it is also that of the run, which Ray would end.
        """
        head = next(iter(self.logs))
        control = {pid for pid in descendants(head.pid) if "gcs_server" in name_of(pid)}
        assert control
        # The process that started both would stop the raylet as well.
        os.kill(head.pid, signal.SIGSTOP)
        kill_all(control)

    def grow(self, count: int) -> None:
        """Add nodes until so many have joined."""
        while len(self.nodes) < count:
            # Together: each takes seconds.
            missing = range(count - len(self.nodes))
            new = [self.start(f"--address={self.address}", "--num-cpus=1") for _ in missing]
            self.nodes += [node for node in new if self.has_joined(node)]

    def has_joined(self, node: subprocess.Popen[str]) -> bool:
        """Wait until a node has joined; false if it gave up, as Ray does on a busy machine."""
        log = self.logs[node]
        wait_until(lambda: STARTED in log.read_text() or node.poll() is not None)
        return node.poll() is None

    def lose(self) -> None:
        """Kill a node, all of its processes at once, as when a machine fails."""
        kill(self.nodes.pop(0))


@contextmanager
def local_cluster() -> Iterator[LocalCluster]:
    """A cluster with a folder and a token of its own, that finds lost nodes within seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(16),
        # Ray gives its workers the niceness 15: on a busy machine they starve.
        "RAY_worker_niceness": "0",
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_failure_threshold": "10",
    }
    # Not in pytest's folder: the names of sockets in it would be too long.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        environment["RAY_TMPDIR"] = folder
        with ExitStack() as stack:
            cluster = LocalCluster(Path(folder), f"127.0.0.1:{port}", environment, stack)
            options = [f"--port={port}", "--num-cpus=0", "--include-dashboard=false"]
            head = cluster.start("--head", *options)
            wait_until(lambda: answers(cluster.address) or head.poll() is not None)
            yield cluster


def answers(address: str) -> bool:
    """Whether Ray answers there."""
    try:
        ray_probe.check_answer(address)
    except OSError:
        return False
    return True


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and all that come from it, at once."""
    kill_all([process.pid, *descendants(process.pid)])
    process.wait(PATIENCE)


def kill_all(pids: Iterable[int]) -> None:
    """Kill processes that may have ended by themselves."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def name_of(pid: int) -> str:
    """The name of a process; empty if it has ended."""
    listed = subprocess.run(["ps", "-o", "comm=", "-p", str(pid)], capture_output=True, text=True)
    return listed.stdout


def descendants(parent: int) -> set[int]:
    """The processes that come from another one."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True)
    pairs = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    found = {parent}
    while more := {pid for pid, ppid in pairs if ppid in found} - found:
        found |= more
    return found - {parent}
