"""The example app with `flwr run`: in Flower's simulation, and over real SuperNodes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

import fedpbc
from fedpbc.storage.tensors import load_state
from tests.flower.quickstart import (
    FOLDER,
    QuickstartTask,
    down_table,
    import_example,
    largest_difference,
    simulated,
)

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(1800)]

CLIENTS, ROUNDS, OUTAGE = 2, 4, 0.5
NAMES = ("fedpbc", "fedau", "mifa")
START_LOCAL_SUPERLINK = """\
from flwr.cli import local_superlink as own
own.LOCAL_SUPERLINK_STARTUP_TIMEOUT = 300.0
own._start_local_superlink()
"""
"""What `flwr run` does first in a simulation, if nobody has done it; but it gives up after 15 s,
which is too short on a busy machine."""


def environment(home: Path) -> dict[str, str]:
    """Of Flower's processes: nothing goes out, and each finds the others and this package."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_HOME": str(home),
        "PATH": path,
        # Also where the package is not installed, but on the path of this process.
        "PYTHONPATH": str(Path(fedpbc.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        # Not behind everything else on a busy machine, as Ray would have it.
        "RAY_worker_niceness": "0",
        # Not the instance of someone else on this machine.
        "RAY_ADDRESS": "local",
        "RAY_AUTH_MODE": "disabled",
    }


def run_app(home: Path, connection: str, out: Path, name: str, rounds: int = ROUNDS) -> None:
    """Submit the example, and wait for its end."""
    out.mkdir(exist_ok=True)
    settings = {"folder": str(out), "algorithm": name, "num-server-rounds": rounds}
    # Each message starts a process: only training matters here.
    settings |= {"outage": OUTAGE, "fraction-evaluate": 0.0}
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    command = ["flwr", "run", str(home / "app"), connection, "--stream", "-c", config]
    with (home / "run.log").open("ab") as log:
        subprocess.run(
            command, env=environment(home), stdout=log, stderr=log, timeout=900, check=True
        )


def check(out: Path, name: str, monkeypatch, rounds: int = ROUNDS) -> np.ndarray:
    """The models are the simulator's on the links that occurred; returns those."""
    table = load_state(out / "job.safetensors")["job"]["table"]
    assert table.shape == (rounds, CLIENTS)
    task = QuickstartTask(import_example(monkeypatch).task, CLIENTS)
    expected = simulated(task, name, table)
    views = {view: torch.load(out / f"{view}.pt") for view in expected}
    difference = largest_difference(task, views, expected)
    print(f"{name}: {difference:.2g} on {table.astype(int).tolist()}")
    assert difference <= 1e-6
    return table


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def copied(home: Path) -> None:
    shutil.copytree(FOLDER, home / "app", ignore=shutil.ignore_patterns("__pycache__"))


def test_over_real_supernodes(tmp_path, monkeypatch):
    """One job for each algorithm; one of them in two runs, as after a server app that failed."""
    copied(tmp_path)
    address = f"127.0.0.1:{free_port()}"
    host, port = address.split(":")
    connection = f'[superlink]\ndefault = "real"\n[superlink.real]\naddress = "{address}"\n'
    (tmp_path / "config.toml").write_text(connection + "insecure = true\n")
    commands = [["flower-superlink", "--insecure", "--host", host, "--port", port]]
    for i in range(CLIENTS):
        node = ["flower-supernode", "--insecure", "--superlink", address, "--host", host]
        node += ["--port", str(free_port())]
        node += ["--node-config", f"partition-id={i} num-partitions={CLIENTS}"]
        commands.append(node)
    with ExitStack() as stack:
        for k, command in enumerate(commands):
            log = stack.enter_context((tmp_path / f"process-{k}.log").open("wb"))
            process = subprocess.Popen(
                command, env=environment(tmp_path), stdout=log, stderr=log, cwd=tmp_path
            )
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            time.sleep(0 if k else 8)
        links = import_example(monkeypatch).links
        for name in NAMES:
            out = tmp_path / name
            if name == "fedpbc":
                run_app(tmp_path, "real", out, name, rounds=2)
            run_app(tmp_path, "real", out, name)
            table = check(out, name, monkeypatch)
            # At most what the app's own links let through; Flower may lose more.
            assert not (table & ~down_table(links, CLIENTS, ROUNDS, OUTAGE)).any()
            assert table.any()


def test_in_flowers_simulation(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    copied(tmp_path)
    try:
        start = [sys.executable, "-c", START_LOCAL_SUPERLINK]
        subprocess.run(start, env=environment(tmp_path), timeout=330, check=True)
        for name in NAMES:
            run_app(tmp_path, "local", tmp_path / name, name)
            table = check(tmp_path / name, name, monkeypatch)
            links = import_example(monkeypatch).links
            assert np.array_equal(table, down_table(links, CLIENTS, ROUNDS, OUTAGE))
    finally:
        stop_local_superlink(tmp_path)


def stop_local_superlink(home: Path) -> None:
    """End the SuperLink that `flwr run` has started in this folder, and nobody else's."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if "flower-superlink" in words and str(home) in words:
            os.kill(int(path.name), 15)
