"""A fleet of real processes on this machine: SuperLink, SuperNodes, trainers; with TLS and keys."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedpbc.flower.keys import make_certificates, make_node_key
from fedpbc.flower.launch import Launch

HERE = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return int(probe.getsockname()[1])


class Gate:
    """A link that can be cut: forwards connections while it is open, and drops them otherwise."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._pairs: set[socket.socket] = set()
        self._listening = socket.create_server((HERE, 0))
        self.port = int(self._listening.getsockname()[1])
        self.is_open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            if not self.is_open:
                near.close()
                continue
            far = socket.create_connection((HERE, self._target))
            self._pairs |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(2**16):
                sink.sendall(piece)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
            self._pairs.discard(end)

    def cut(self) -> None:
        self.is_open = False
        for end in list(self._pairs):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.cut()
        self._listening.close()


class Loopback:
    """Starts everything, and ends what it started."""

    def __init__(self, folder: Path, clients: int, *, secure: bool = True) -> None:
        self.folder, self.clients = folder, clients
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._keys = folder / "keys"
        certificates = None
        if secure:
            certificates = folder / "certificates"
            make_certificates(certificates, [HERE, "localhost"])
        port = free_port()
        self.launch = Launch(folder / "flower", HERE, port, certificates, insecure=not secure)
        self.launch.prepare()
        self.gates = [Gate(port) for _ in range(clients)]
        self.server = folder / "server"

    def environment(self) -> dict[str, str]:
        # As the tests run, and not with more threads than there are cores.
        return {**self.launch.environment(), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}

    def start(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment(),
                start_new_session=True,
            )

    def run(self, command: list[str], timeout: float = 60) -> str:
        ended = subprocess.run(
            command,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def start_superlink(self) -> None:
        self.start("superlink", self.launch.superlink(self.folder / "superlink.db"))
        self.until(lambda: self._answers(self.launch.port), 60)

    @staticmethod
    def _answers(port: int) -> bool:
        with suppress(OSError), socket.create_connection((HERE, port), timeout=1):
            return True
        return False

    def start_trainer(self, client: int, *options: str) -> None:
        state = self.folder / f"client{client}"
        command = [sys.executable, "-m", "fedpbc.cli", "trainer", "--client", str(client)]
        self.start(f"trainer{client}", [*command, "--state", str(state), *options])

    def start_supernode(self, client: int) -> None:
        key = self._keys / f"node{client}" if self.launch.certificates else None
        reached = Launch(
            self.launch.home,
            HERE,
            self.gates[client].port,
            self.launch.certificates,
            self.launch.insecure,
        )
        trainer = self.folder / f"client{client}" / "trainer"
        self.start(f"supernode{client}", reached.supernode(trainer, free_port(), key))

    def register(self, client: int) -> None:
        make_node_key(self._keys, f"node{client}")
        self.run(self.launch.register(self._keys / f"node{client}.pub"))

    def submit(self) -> str:
        return self.run(self.launch.submit(self.server))

    def lines(self) -> list[dict[str, Any]]:
        with suppress(OSError):
            text = (self.server / "rounds.jsonl").read_text()
            return [json.loads(line) for line in text.splitlines(keepends=True) if "\n" in line]
        return []

    def until(self, condition, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.logs()
            for name, process in self.processes.items():
                assert process.poll() is None or name.startswith("supernode"), self.logs(name)
            time.sleep(0.1)

    def logs(self, *names: str) -> str:
        found = []
        for path in sorted(self.folder.glob("*.log")):
            if not names or path.stem in names:
                found.append(f"--- {path.name}\n" + path.read_text(errors="replace")[-3000:])
        return "\n".join(found)

    def kill(self, name: str, how: int = signal.SIGKILL) -> None:
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        process.wait(30)

    def close(self) -> None:
        for gate in self.gates:
            gate.close()
        for name in list(self.processes):
            self.kill(name)
