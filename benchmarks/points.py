"""Single points of the scaling curves, each in a fresh process: prints one line of JSON."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ONLINE = 0.1
CLASSES = 10


def peak_mib() -> float:
    """The most memory that this process has had since it was started."""
    # Not getrusage: that begins with the peak of whoever started us.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this system does not tell a process's peak memory")


def links(scheme: str, clients: int, rounds: int, file: str) -> dict[str, Any]:
    """Draw a timetable and ask for every round's active clients."""
    from fedpbc.engines.malloc import keep_freed_memory
    from fedpbc.links import SCHEMES, Setting, Timetable

    keep_freed_memory()  # as the command does
    # What is imported when it is first needed is not a matter of clients.
    Timetable.draw("bernoulli", Setting(0, 1, 1, np.ones(1)))
    before = peak_mib()
    rng = np.random.default_rng(0)
    setting = Setting(0, clients, rounds, rng.uniform(0, 2 * ONLINE, clients))
    if SCHEMES[scheme].needs_data({}):
        data = {
            "class_shares": rng.random((clients, CLASSES)),
            "samples": rng.integers(1, 1000, clients),
        }
        setting = replace(setting, **data)
    start = time.perf_counter()
    timetable = Timetable.draw(scheme, setting, {"file": file} if file else {})
    for t in range(rounds):
        timetable.active(t)
    seconds = time.perf_counter() - start
    return {
        "scheme": scheme,
        "clients": clients,
        "rounds": rounds,
        "milliseconds": 1000 * seconds / rounds,
        "peak_mib": peak_mib(),
        "imported_mib": before,
    }


def memory(engine: str, model: str, clients: int, rounds: int) -> dict[str, Any]:
    """FedPBC with a network for CIFAR-10; whoever started us watches the memory."""
    from fedpbc import LocalTraining, Supervised, simulate
    from fedpbc.engines.malloc import keep_freed_memory
    from fedpbc.tasks.networks import build_model

    keep_freed_memory()
    rng = np.random.default_rng(0)
    # All clients draw from the same few pictures: this is about models, not about data.
    pictures = rng.integers(0, 256, (100, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(100) % 10
    task = Supervised(
        build_model(model, (32, 32, 3), 10, seed=0),
        (pictures, labels),
        (pictures[:10], labels[:10]),
        partition=rng.integers(0, 100, (clients, 2)),
        # A small rate: random labels and batches of one picture would let a larger one diverge.
        training=LocalTraining(local_steps=1, batch_size=1, learning_rate=1e-4),
        normalise=([128.0] * 3, [64.0] * 3),
        train_samples=10,
    )
    start = time.perf_counter()
    result = simulate(
        task,
        "fedpbc",
        {"name": "bernoulli", "p": ONLINE},
        rounds=rounds,
        evaluate_every=rounds,
        views=["server", "averaged"],
        engine=engine,
    )
    return {
        "engine": engine,
        "model": model,
        "clients": clients,
        "rounds": rounds,
        "seconds": time.perf_counter() - start,
        "model_bytes": result.models["server"].nbytes,
    }


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["links", "memory"])
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--scheme", default="")
    parser.add_argument("--file", default="")
    parser.add_argument("--engine", default="serial")
    parser.add_argument("--model", default="cnn_cifar10")
    o = parser.parse_args()
    if o.kind == "links":
        point = links(o.scheme, o.clients, o.rounds, o.file)
    else:
        point = memory(o.engine, o.model, o.clients, o.rounds)
    print(json.dumps(point))


if __name__ == "__main__":
    main()
